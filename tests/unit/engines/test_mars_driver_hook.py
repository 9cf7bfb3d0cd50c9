"""Mars' own client in a driver, without Mars: a package with the same client stands in for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oars.engines.mars import driver_hook
from oars.engines.mars.driver_hook import is_of_cluster
from oars.engines.mars.shape import DRIVER_HOOK

CORE = """
class MarsWebAPIClientMixin:
    async def _request_url(self, method, path, **kwargs):
        return method, path, kwargs
"""
PROGRAM = """
import asyncio, sys
print("loaded", "PACKAGE" in sys.modules)
from PACKAGE.services.web import core
from PACKAGE.services.web.core import MarsWebAPIClientMixin as Client
for path in sys.argv[1:]:
    print(asyncio.run(Client()._request_url("GET", path, body=b"", headers={"a": "b"})))
"""


def run(folder: Path, *arguments: str, **env: str) -> list[str]:
    variables = {"PATH": os.defpath, "PYTHONPATH": f"{folder / 'hook'}:{folder}", **env}
    done = subprocess.run(
        [sys.executable, *arguments], env=variables, cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for package in ("mars", "xorbits/_mars"):
        core = tmp_path / package / "services/web/core.py"
        core.parent.mkdir(parents=True)
        core.write_text(CORE)
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook/sitecustomize.py").write_text(DRIVER_HOOK)
    return tmp_path


@pytest.mark.parametrize("package", ["mars", "xorbits._mars"])
def test_client_sends_the_token_to_its_cluster_only(folder: Path, package: str) -> None:
    (folder / "token").write_text("known\n")
    urls = ["http://127.0.0.1:2000/api/session", "http://127.0.0.1:2001/api/session", "http://other:2000/api"]
    env = {"OARS_MARS_ADDRESS": "http://127.0.0.1:2000", "OARS_TOKEN_FILE": str(folder / "token")}
    first, *lines = run(folder, "-c", PROGRAM.replace("PACKAGE", package), *urls, **env)
    assert first == "loaded False", "Mars is not imported before the program needs it"
    headers = [{"a": "b", "Authorization": "Bearer known"}, {"a": "b"}, {"a": "b"}]
    assert lines == [str(("GET", url, {"body": b"", "headers": h})) for url, h in zip(urls, headers, strict=True)]


def test_client_sends_the_token_to_further_addresses_of_its_cluster(folder: Path) -> None:
    (folder / "token").write_text("known\n")
    urls = ["http://job-webservice-0/api", "http://job-webservice-0.default:11111/api", "http://job-webservice-1/api"]
    env = {
        "OARS_MARS_ADDRESS": "http://job-head:7104",
        "OARS_MARS_ALIASES": "http://job-webservice-0 http://job-webservice-0:11111",
        "OARS_TOKEN_FILE": str(folder / "token"),
    }
    _, *lines = run(folder, "-c", PROGRAM.replace("PACKAGE", "mars"), *urls, **env)
    assert ["Bearer known" in line for line in lines] == [True, True, False]


def test_program_without_a_cluster_is_not_affected(folder: Path) -> None:
    url = "http://127.0.0.1:2000/api"
    lines = run(folder, "-c", PROGRAM.replace("PACKAGE", "mars"), url)
    assert lines[1:] == [str(("GET", url, {"body": b"", "headers": {"a": "b"}}))]


def test_sitecustomize_of_the_user_still_runs(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("print('mine', __name__)\n")
    assert run(folder, "-c", "print('end')") == ["mine sitecustomize", "end"]


@pytest.mark.parametrize(
    ("url", "address", "found"),
    [
        ("http://demo-head:7104/api", "http://demo-head:7104", True),
        ("http://demo-head.team:7104/api", "http://demo-head:7104", True),
        ("http://demo-head.team.svc.cluster.local:7104/api", "http://demo-head:7104", True),
        ("http://demo-head:7105/api", "http://demo-head:7104", False),
        ("http://demo-header:7104/api", "http://demo-head:7104", False),
        ("http://127.0.0.1:7104/api", "http://demo-head:7104", False),
        ("http://demo-head:7104/api", "", False),
    ],
)
def test_addresses_of_the_cluster(url: str, address: str, found: bool) -> None:
    assert is_of_cluster(url, address) is found


def test_importing_it_as_a_module_changes_nothing() -> None:
    assert driver_hook.ClientFinder not in sys.meta_path
