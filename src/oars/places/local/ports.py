"""Finds free ports. No two clusters get the same one, and a restarted member keeps its own."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from itertools import islice

from oars.base.errors import StartFailed

# Below the kernel's range for outgoing connections, so that none of those can occupy the port of a restarting member;
# above the ports that engines take for their own sub-processes by default.
FIRST, LAST = 20_000, 31_999


def free_ports(count: int, claimed: Collection[int], host: str = "127.0.0.1") -> list[int]:
    """`count` ports that are neither claimed nor in use."""
    candidates = [port for port in range(FIRST, LAST + 1) if port not in claimed]
    random.shuffle(candidates)
    found = list(islice((port for port in candidates if _can_bind(port, host)), count))
    if len(found) < count:
        message = f"No {count} free ports between {FIRST} and {LAST}."
        raise StartFailed(message, "Stop clusters that are not needed: oars ls.")
    return found


def can_rebind(ports: Collection[int], host: str = "127.0.0.1") -> bool:
    """True if no other process took the ports since their owner ended. Its own lingering connections do not count."""
    return all(_can_bind(port, host, reuse=True) for port in ports)


def _can_bind(port: int, host: str, *, reuse: bool = False) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
