"""Finds free ports. No two clusters get the same one, and a restarted member keeps its own."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from oars.base.errors import StartFailed

# Below the kernel's range for outgoing connections, so that none of those can occupy the port of a restarting member;
# above Ray's range for its worker processes.
FIRST, LAST = 20_000, 31_999


def free_ports(count: int, claimed: Collection[int], host: str = "127.0.0.1") -> list[int]:
    """`count` ports that are neither claimed nor in use."""
    found: list[int] = []
    candidates = [port for port in range(FIRST, LAST + 1) if port not in claimed]
    random.shuffle(candidates)
    for port in candidates:
        if len(found) == count:
            break
        if _is_free(port, host):
            found.append(port)
    if len(found) < count:
        raise StartFailed(
            f"No {count} free ports between {FIRST} and {LAST}.", "Stop clusters that are not needed: oars ls."
        )
    return found


def can_rebind(ports: Collection[int], host: str = "127.0.0.1") -> bool:
    """True if no other process took the ports since their owner ended. Its own lingering connections do not count."""
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def _is_free(port: int, host: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
