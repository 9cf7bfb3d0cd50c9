"""Logging: constant messages with key=value fields; secrets are masked."""

from __future__ import annotations

import logging
import re

_SECRET = re.compile(r"(?i)(token|password|secret|\w+_key)=(\S+)")


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


def pairs(message: str, **values: object) -> str:
    """'worker replaced', member='worker-0' → 'worker replaced member=worker-0'."""
    text = " ".join([message, *(f"{key}={value}" for key, value in values.items())])
    return _SECRET.sub(r"\1=***", text)


def log_to_file(path: str) -> None:
    """Write all logs to a file; used by the keeper."""
    logging.basicConfig(
        filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
