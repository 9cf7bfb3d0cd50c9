"""Log lines: constant messages with fields, as text and as JSON."""

from __future__ import annotations

import json
import logging
import time

from oars.base.log import pairs
from oars.operator.main import JsonFormatter


def test_fields_follow_the_message() -> None:
    assert pairs("step failed", cluster="demo", error="a b") == "step failed cluster=demo error=a b"


def test_secrets_are_masked() -> None:
    line = pairs("login with password=x", token="abc", key="plain", api_key="secret")
    assert line == "login with password=*** token=*** key=plain api_key=***"
    assert line.fields == {"token": "***", "key": "plain", "api_key": "***"} and "x" not in line.message.split("=")[1]


def test_long_line_is_masked_at_once() -> None:
    """Errors quote what users write."""
    start = time.process_time()
    assert pairs("spec rejected", error="a" * 50_000 + " my_key=secret").endswith("a my_key=***")
    assert time.process_time() - start < 0.5


def test_fields_are_keys_in_json() -> None:
    """So that the lines of one cluster can be selected."""
    line = pairs("step failed", cluster="demo", error="a b")
    record = logging.LogRecord("oars.control", logging.WARNING, "", 0, line, None, None)
    found = json.loads(JsonFormatter().format(record))
    assert (found["message"], found["cluster"], found["error"], found["level"]) == (
        "step failed", "demo", "a b", "warning",
    )  # fmt: skip
