"""Read an object's name from a request body in JSON or Kubernetes' protobuf format."""

import json
from collections.abc import Iterator

MAGIC = b"k8s\x00"


def name_in(body: bytes) -> str:
    """Return metadata.name, or an empty string if there is none or the body cannot be parsed."""
    try:
        if body.startswith(MAGIC):
            return _name_in_protobuf(body[len(MAGIC) :])
        return str(json.loads(body)["metadata"].get("name", ""))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return ""


def _name_in_protobuf(envelope: bytes) -> str:
    """Field 2 of the envelope is the object; field 1 of an object is its metadata, whose field 1 is the name."""
    return _field(_field(_field(envelope, 2), 1), 1).decode()


def _field(message: bytes, wanted: int) -> bytes:
    return next((content for number, content in _fields(message) if number == wanted), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields; skip numbers."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        if key & 7 == 2:
            size, at = _number(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        elif key & 7 == 0:
            _, at = _number(message, at)
        else:
            at += 8 if key & 7 == 1 else 4


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; return its value and end position."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
