"""A cluster's certificates, used with Python's TLS in memory, without sockets."""

from __future__ import annotations

import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from oars.secure.certs import cluster_certificates

STRICT = 0x20  # ssl.VERIFY_X509_STRICT, the default from Python 3.13 on


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("certs"), cluster_certificates("demo"))


def write(directory: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (directory / name).write_bytes(data)
    return directory


def context(files: Path, purpose: ssl.Purpose, *, pair: bool = True) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cafile=str(files / "ca.pem"))
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= STRICT
    if pair:
        made.load_cert_chain(files / "cert.pem", files / "key.pem")
    return made


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, hostname: str) -> None:
    """Run both sides in turn until both are done. Raises ssl.SSLError."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    halves = [
        client.wrap_bio(back, there, server_hostname=hostname),
        server.wrap_bio(there, back, server_side=True),
    ]
    waiting = halves
    for _ in range(10):
        waiting = [half for half in waiting if not done(half)]
    assert not waiting


def done(half: ssl.SSLObject) -> bool:
    try:
        half.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


@pytest.mark.parametrize("hostname", ["demo", "localhost", "127.0.0.1"])
def test_members_trust_each_other(files: Path, hostname: str) -> None:
    server, client = context(files, ssl.Purpose.CLIENT_AUTH), context(files, ssl.Purpose.SERVER_AUTH)
    shake_hands(server, client, hostname)


def test_server_with_another_name_is_rejected(files: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context(files, ssl.Purpose.CLIENT_AUTH), context(files, ssl.Purpose.SERVER_AUTH), "example.org")


def test_certificate_of_another_cluster_is_rejected(files: Path, tmp_path: Path) -> None:
    other = write(tmp_path, cluster_certificates("demo"))
    with pytest.raises(ssl.SSLError):
        shake_hands(context(files, ssl.Purpose.CLIENT_AUTH), context(other, ssl.Purpose.SERVER_AUTH), "demo")


def test_client_without_certificate_is_rejected(files: Path) -> None:
    with pytest.raises(ssl.SSLError):
        bare = context(files, ssl.Purpose.SERVER_AUTH, pair=False)
        shake_hands(context(files, ssl.Purpose.CLIENT_AUTH), bare, "demo")


def test_validity_and_authority(files: Path) -> None:
    now = datetime.now(UTC)
    for name in ("ca.pem", "cert.pem"):
        certificate = x509.load_pem_x509_certificate((files / name).read_bytes())
        assert timedelta(minutes=59) < now - certificate.not_valid_before_utc < timedelta(minutes=65)
        assert timedelta(days=3649) < certificate.not_valid_after_utc - now <= timedelta(days=3650)
    ca = x509.load_pem_x509_certificate((files / "ca.pem").read_bytes())
    x509.load_pem_x509_certificate((files / "cert.pem").read_bytes()).verify_directly_issued_by(ca)


def test_longest_name_is_accepted() -> None:
    assert set(cluster_certificates("a" * 53)) == {"ca.pem", "cert.pem", "key.pem"}


def test_import_does_not_import_cryptography() -> None:
    code = "import sys, oars.secure.secrets; sys.exit('cryptography' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
