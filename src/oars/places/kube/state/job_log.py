"""The kept output of a job's attempt, as a ConfigMap stores it: compressed, and at most so many bytes. Pure."""

from __future__ import annotations

import base64
import gzip

from oars.places.kube.names import Object

LOG_BYTES = 900 * 1024  # of a compressed log, in one ConfigMap
TEXT_BYTES = 8 * 2**20  # of a log before compression: the operator has many of them in memory
KEY = "log.gz"
CUT = (
    "(the beginning is not kept: logs.keep is {keep:.4g} MiB, and a ConfigMap has room for {text} MiB, {room} KiB "
    "compressed)\n"
)


def log_object(metadata: Object, text: bytes, keep: int, *, is_cut: bool = False) -> Object:
    """The ConfigMap with the end of an output. is_cut: the text lacks its beginning already."""
    packed = base64.b64encode(packed_end(text, keep, is_cut=is_cut)).decode()
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": {KEY: packed}}


def packed_end(text: bytes, keep: int, *, is_cut: bool = False) -> bytes:
    """The end of an output, compressed, at most LOG_BYTES. Its first line says if the beginning is missing."""
    note = CUT.format(keep=keep / 2**20, text=TEXT_BYTES // 2**20, room=LOG_BYTES // 1024).encode()
    size = min(keep, TEXT_BYTES)
    while True:
        end = text[-size:]
        if is_cut or len(end) < len(text):
            end = note + _whole_lines(end)
        if len(packed := gzip.compress(end, mtime=0)) <= LOG_BYTES:
            return packed
        size = min(size, len(text)) * 3 // 4


def _whole_lines(text: bytes) -> bytes:
    """Without the rest of a line at the beginning, unless there is no other line."""
    return text.partition(b"\n")[2] or text


def kept_lines(config_map: Object) -> list[str]:
    text = gzip.decompress(base64.b64decode(config_map["binaryData"][KEY])).decode(errors="replace")
    return text.removesuffix("\n").split("\n") if text else []
