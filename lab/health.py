"""Health checks over HTTP."""

import http.client
import ssl
from urllib.parse import urlsplit


def answers(address: str, seconds: float = 2) -> bool:
    """True if a health address answers 200.

    Certificates are not verified because some components use self-signed ones; nothing secret is sent.
    """
    url = urlsplit(address)
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        connection = http.client.HTTPSConnection(url.netloc, timeout=seconds, context=_any_certificate())
    else:
        connection = http.client.HTTPConnection(url.netloc, timeout=seconds)
    try:
        connection.request("GET", url.path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _any_certificate() -> ssl.SSLContext:
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    return trust
