"""The page "Run on Kubernetes" of Mars: its tables and its examples, without a cluster."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from oars.compat.mars import arguments
from oars.compat.mars.arguments import Arguments
from tests.compat import blocks
from tests.unit.compat.test_mars_interface import NEW_CLUSTER

PAGE = blocks.text(blocks.MARS_KUBERNETES)
BLOCKS = [code for language, code in blocks.code_blocks(PAGE) if language == "python"]


def test_every_argument_of_the_page_is_in_the_signature() -> None:
    named = [line.strip("| ") for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(named) == 12 and set(named) <= set(NEW_CLUSTER)


def test_example_with_a_hundred_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments as a spec; nothing is created."""
    code = next(code for code in BLOCKS if "worker_num=100" in code)
    found: list[Arguments] = []
    original = arguments.resolve

    def record(given: Any, more: Any, _: Any) -> Arguments:
        found.append(original(given, more, lambda _: "pymars"))
        raise InterruptedError

    config = types.SimpleNamespace(new_client_from_config=lambda: None)
    monkeypatch.setitem(sys.modules, "kubernetes", types.SimpleNamespace(config=config))
    monkeypatch.setattr(arguments, "resolve", record)
    with pytest.raises(InterruptedError):
        exec(code.replace("mars.deploy.kubernetes", "oars.compat.mars"), {})
    (args,) = found
    (group,) = args.spec.workers
    assert (group.replicas, group.cpu, group.memory, args.spec.min_ready) == (100, 4.0, 16 * 2**30, 95)
