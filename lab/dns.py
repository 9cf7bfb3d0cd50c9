"""Check a DNS server with one query."""

import secrets
import socket
import struct


def resolves(server: str, name: str, seconds: float = 0.5) -> bool:
    """True if `server` resolves `name` to an address within `seconds`."""
    number = secrets.randbelow(1 << 16)
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    question = struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(seconds)
        try:
            sock.connect((server, 53))
            sock.send(question)
            answer = sock.recv(4096)
        except OSError:
            return False
    returned, flags, _, answers = struct.unpack(">4H", answer[:8])
    return returned == number and not flags & 0xF and answers > 0
