"""When certificates are announced to expire and when they are due, with a clock of the test's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from oars.secure import certs, expiry
from oars.secure.secrets import cluster_secrets

DAY = 86_400.0
EXPIRES = datetime(2036, 11, 18, tzinfo=UTC).timestamp()


def test_expiry_is_that_of_the_certificates() -> None:
    files = cluster_secrets("demo", ("tls",))
    found = expiry.expires_at(files)
    for name in ("ca.pem", "cert.pem"):
        (certificate,) = x509.load_pem_x509_certificates(files[name])
        assert certificate.not_valid_after_utc.timestamp() == found


def test_certificates_outlive_clusters() -> None:
    assert certs.VALID >= timedelta(days=3650)


@pytest.mark.parametrize("damaged", [b"", b"nonsense", b"\xff", b"-----BEGIN CERTIFICATE-----\nAA==\n"])
def test_damaged_certificate_has_no_expiry(damaged: bytes) -> None:
    assert expiry.expires_at({"ca.pem": damaged}) is None


@pytest.mark.parametrize("kinds", [(), ("token",)])
def test_tokens_do_not_expire(kinds: tuple[str, ...]) -> None:
    found = expiry.expires_at(cluster_secrets("demo", kinds))
    assert found is None
    assert not expiry.is_due(found, EXPIRES) and not expiry.is_announced(found, EXPIRES)
    assert expiry.announcement(found, EXPIRES, "") == ()


@pytest.mark.parametrize(
    ("days", "announced", "due"),
    [(61, False, False), (59, True, False), (31, True, False), (29, True, True), (0, True, True), (-5, True, True)],
)
def test_expiry_is_announced_before_the_certificates_are_replaced(days: int, announced: bool, due: bool) -> None:
    now = EXPIRES - days * DAY
    assert (expiry.is_announced(EXPIRES, now), expiry.is_due(EXPIRES, now)) == (announced, due)
    causes = expiry.announcement(EXPIRES, now, "Do it.")
    assert bool(causes) is announced
    for cause in causes:
        assert (cause.reason, cause.hint) == ("CertificateExpires", "Do it.")
        assert "expire on 2036-11-18" in cause.message
        if not due:
            assert "On 2036-10-19 Oars replaces them" in cause.message
