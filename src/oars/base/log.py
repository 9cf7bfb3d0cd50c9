"""Logging: constant messages with key=value fields; secrets are masked."""

from __future__ import annotations

import logging
import re

_SECRET = re.compile(r"(?i)(token|password|secret|(?<=\w)_key)=(\S+)")


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


class LogLine(str):
    """The text of a log line, which also has its parts for formats that keep them apart."""

    message: str
    fields: dict[str, str]


def pairs(message: str, **values: object) -> LogLine:
    """'worker replaced', member='worker-0' → 'worker replaced member=worker-0'."""
    fields = {key: _SECRET.sub(r"\1=***", f"{key}={value}").partition("=")[2] for key, value in values.items()}
    message = _SECRET.sub(r"\1=***", message)
    line = LogLine(" ".join([message, *(f"{key}={value}" for key, value in fields.items())]))
    line.message, line.fields = message, fields
    return line


def log_to_file(path: str) -> None:
    """Write all logs to a file; used by the keeper."""
    logging.basicConfig(
        filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
