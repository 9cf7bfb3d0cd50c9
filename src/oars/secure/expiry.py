"""When a cluster's certificates expire, and what then. Loads no cryptography. Pure."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime

from oars.model import Cause

DAY = 86_400.0
ANNOUNCE_SECONDS = 60 * DAY  # before they expire: the status says so, and a head that starts anyway gets new ones
RENEW_SECONDS = 30 * DAY  # before they expire: they are replaced, and with them the head


def expires_at(files: Mapping[str, bytes]) -> float | None:
    """When the certificates among a cluster's secrets expire; None if it has none, or they cannot be read. The
    authority's certificate expires together with the one that it signed."""
    if "ca.pem" not in files:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=files["ca.pem"].decode())
    except (ssl.SSLError, ValueError):
        return None
    return min((ssl.cert_time_to_seconds(str(each["notAfter"])) for each in context.get_ca_certs()), default=None)


def is_announced(expires: float | None, now: float) -> bool:
    return expires is not None and expires - now < ANNOUNCE_SECONDS


def is_due(expires: float | None, now: float) -> bool:
    """True if the certificates must be replaced now."""
    return expires is not None and expires - now < RENEW_SECONDS


def announcement(expires: float | None, now: float, hint: str) -> tuple[Cause, ...]:
    """The remark about certificates that expire soon; empty if they do not."""
    if expires is None or not is_announced(expires, now):
        return ()
    due = _date(max(now, expires - RENEW_SECONDS))
    message = (
        f"The cluster's certificates expire on {_date(expires)}. On {due} Oars replaces them together with the head "
        "and all workers, and the cluster loses its data."
    )
    return (Cause("CertificateExpires", message, hint),)


def _date(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")
