"""What machines of one cluster tell each other: JSON lines over TLS. The join token authenticates both sides: it holds
a secret, and the fingerprint of the head's certificate."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from oars.base import codec
from oars.base.errors import Denied, OarsError, UsageError
from oars.model import Member, MemberId, MemberState, MemberView

PROTOCOL = 1
CONNECT_SECONDS = 10.0
POLL_SECONDS = 1.0  # between two messages of a worker's machine
SILENT_SECONDS = 6.0  # after which a machine that sends nothing counts as lost
MAX_MESSAGE = 2**22

T = TypeVar("T")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class JoinToken:
    """`secret` proves that a machine may join, `fingerprint` that the head is the one that made the token."""

    secret: str = field(repr=False)
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.secret}.{self.fingerprint}"


def parse_token(text: str) -> JoinToken:
    secret, _, fingerprint = text.strip().partition(".")
    if not (len(secret) == len(fingerprint) == 64 and set(secret + fingerprint) <= set("0123456789abcdef")):
        raise UsageError("This is not a join token.", "Copy the token file that `oars head` names, as it is.")
    return JoinToken(secret, fingerprint)


@dataclass(frozen=True)
class Hello:
    token: str = field(repr=False)
    name: str  # of the joining machine's members; empty: it only reads
    instance: str = ""  # identifies one start of `oars worker`
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class HostReport:
    """The members on a worker's machine. `heads`: the head that each was started for (HeadAddress.key)."""

    members: tuple[Member, ...] = ()
    addresses: Mapping[MemberId, Mapping[str, str]] = field(default_factory=dict)
    heads: Mapping[MemberId, str] = field(default_factory=dict)
    has_secrets: str = ""  # digest of the secrets that it has
    is_leaving: bool = False


@dataclass(frozen=True)
class HeadAddress:
    """The head's process. `key` changes with every start of it."""

    key: str
    state: MemberState
    host: str
    ports: Mapping[str, int]


@dataclass(frozen=True)
class HeadState:
    """What the head's machine tells the others. `error`: it refuses them. `secrets` None: they are as before."""

    error: str = ""
    cluster: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    spec_digest: str = ""
    head: HeadAddress | None = None
    is_up: bool = False
    message: str = ""
    views: Mapping[MemberId, MemberView] = field(default_factory=dict)
    secrets: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a secret that would be written outside of its directory."""
        for name in self.secrets or {}:
            if Path(name).name != name or name == "..":
                raise ValueError(f"{name!r} is not the name of a secret")


async def send(writer: asyncio.StreamWriter, message: object) -> None:
    writer.write(json.dumps(codec.dump(message)).encode() + b"\n")
    async with asyncio.timeout(SILENT_SECONDS):
        await writer.drain()


async def receive(reader: asyncio.StreamReader, kind: type[T], seconds: float = SILENT_SECONDS) -> T:
    """Raises ConnectionError at the end of the stream, ValueError for another message, TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        line = await reader.readline()
    if not line:
        raise ConnectionError("the connection was closed")
    try:
        return codec.load(kind, json.loads(line))
    except RecursionError as error:  # too many brackets
        raise ValueError("the message cannot be read") from error


def digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(certificate: bytes) -> str:
    """Of a certificate in PEM form."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.decode())).hexdigest()


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    return context


async def connect(address: str, token: JoinToken) -> Streams:
    """A connection to the head's machine. No secret is sent before its certificate is the one that the token names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the fingerprint is checked instead
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    host, port = split(address)
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=MAX_MESSAGE)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if not secrets.compare_digest(hashlib.sha256(found).hexdigest(), token.fingerprint):
        writer.close()
        message = f"The head at {address} is not the one that made this join token."
        raise Denied(message, "Check the address, or copy the token file from that head again.")
    return reader, writer


async def start_tls(transport: asyncio.Transport, context: ssl.SSLContext) -> Streams:
    """The streams of a connection that the head's machine has accepted. Raises OSError if the handshake fails."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=MAX_MESSAGE)
    protocol = asyncio.StreamReaderProtocol(reader)
    tls = await loop.start_tls(transport, protocol, context, server_side=True, ssl_handshake_timeout=CONNECT_SECONDS)
    if tls is None:
        raise ConnectionResetError("the connection was closed")
    protocol.connection_made(tls)
    return reader, asyncio.StreamWriter(tls, protocol, reader, loop)


def split(address: str) -> tuple[str, int]:
    """The host and port of `host:port` or `[host]:port`."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{address!r} is not an address.", "Write HOST:PORT, such as 10.0.0.1:8700.")
    return host, int(port)


def failure(error: Exception) -> str:
    """Why a connection failed. The text of asyncio's own errors repeats the address, which the caller knows."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def refused(state: HeadState) -> OarsError:
    return Denied(f"The head refuses this machine: {state.error}.", "Copy the token file from the head again.")
