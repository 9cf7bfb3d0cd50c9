"""`oars dashboard`: what it says besides the address."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oars.cli import dashboard
from oars.client.backends import Where
from oars.places.kube.render.values import SECRETS
from tests.unit.client.test_kube_backend import Server, at_home, with_direct


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        ({"engine": "ray"}, f"oars exec demo --context far -n team -- cat {SECRETS}/token"),
        ({"engine": "ray", "ray": {"auth": "none"}}, ""),
        ({"engine": "ray", "ray": {"dashboard": False}}, ""),
        ({"engine": "dask"}, ""),
    ],
)
def test_the_command_that_prints_what_the_page_asks_for(spec: dict[str, Any], command: str) -> None:
    server = Server()
    with_direct(server, {**spec, "image": "i:1"})
    where = Where("kubernetes", context="far", namespace="team")
    assert asyncio.run(dashboard._secret_command(at_home(server), "demo", where)) == command


@pytest.mark.parametrize(("command", "said"), [("cat /s/token", "This prints it: cat /s/token\n"), ("", "")])
def test_it_is_told_beside_the_address(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard._tell("http://127.0.0.1:1", command, browse=False)
    shown = capsys.readouterr()
    assert shown.out == "http://127.0.0.1:1\n"
    assert shown.err.endswith(said) and bool(shown.err) is bool(command)
