"""Which proxy the environment wants for a server, by the rules Go programs such as kubectl follow."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_of(server: str, environ: Mapping[str, str]) -> str:
    """HTTPS_PROXY or HTTP_PROXY, unless NO_PROXY names the server; empty: none."""
    url = urlsplit(server)
    proxy = _value(environ, f"{url.scheme}_proxy")
    host = (url.hostname or "").lower()
    if not proxy or _loopback(host) or _excepted(host, url.port, _value(environ, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _value(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _excepted(host: str, port: int | None, rules: str) -> bool:
    return any(_matches(host, port, rule.strip().lower()) for rule in rules.split(",") if rule.strip())


def _matches(host: str, port: int | None, rule: str) -> bool:
    if rule == "*":
        return True
    address = _address(host)
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    name, colon, digits = rule.rpartition(":")
    if colon and digits.isdigit() and _address(rule) is None:
        if int(digits) != port:
            return False
        rule = name.strip("[]")
    if address is not None:
        return address == _address(rule)
    bare = rule.removeprefix("*").lstrip(".")
    return host.endswith(f".{bare}") or (host == bare and not rule.startswith((".", "*")))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
