"""A real Dask cluster whose certificates expire while it runs."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest

from oars import Cluster
from oars.secure import certs
from oars.secure.expiry import expires_at
from oars.spec.load import build
from oars.testing.driver import run_driver
from tests.live.test_dask import program, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LIFETIME, RENEWED_BEFORE = 45, 20  # seconds
# Imported by every Python that finds it; only a keeper is changed.
EARLY_KEEPER = f"""
import sys
if any("oars.keeper" in word for word in sys.orig_argv):
    from oars.secure import expiry
    expiry.RENEW_SECONDS = {RENEWED_BEFORE}
    expiry.ANNOUNCE_SECONDS = {RENEWED_BEFORE + 10}
"""
WORK = program("print('sum', client.submit(sum, range(10)).result())")


def handshake(files: Path, address: str) -> None:
    """Connect as a client with these files. Raises SSLError if either side refuses."""
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    context.check_hostname = False
    context.load_cert_chain(files / "cert.pem", files / "key.pem")
    host, _, port = address.removeprefix("tls://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        with context.wrap_socket(connection) as wrapped:
            assert wrapped.recv(1)  # with TLS 1.3 the server refuses a client's certificate after the handshake


def test_certificates_are_renewed_before_they_expire(
    own_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(EARLY_KEEPER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    spec = build({"engine": "dask", "workers": [{"replicas": 1, "memory": "1Gi"}]}).spec
    with monkeypatch.context() as short:
        short.setattr(certs, "VALID", timedelta(seconds=LIFETIME))
        cluster = Cluster(spec, name="demo", timeout="120s")
    with cluster:
        secrets = own_state / "clusters" / "demo" / "secrets"
        first = tmp_path / "first"
        shutil.copytree(secrets, first)
        expires = expires_at({"ca.pem": (first / "ca.pem").read_bytes()})
        assert expires is not None and expires - time.time() < LIFETIME

        def is_renewed() -> bool:
            return (secrets / "key.pem").read_bytes() != (first / "key.pem").read_bytes()

        until(is_renewed, LIFETIME + 60)
        assert time.time() < expires, "before they expire"
        address = cluster.address
        until(lambda: time.time() > expires, LIFETIME + 5)
        cluster.wait(timeout="120s")
        assert cluster.address == address
        assert "sum 45" in run_driver(cluster, WORK)
        handshake(secrets, address)
        with pytest.raises(ssl.SSLError):
            handshake(first, address)
