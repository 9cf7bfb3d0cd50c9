"""Oars on systems that lack what the local place needs, such as macOS: all but local clusters works. It runs in a
process in which the attributes that only Linux has are removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from oars.places.local.store import Store
from tests.unit.cli.test_commands import kubeconfig
from tests.unit.local_clusters import OTHER, record

# What typeshed knows for Linux and not for macOS, as far as anything might use it.
WITHOUT = """
import asyncio, ctypes, fcntl, os, signal, socket, sys, time
import aiohttp, click, psutil, pydantic, sysconfig, yaml
sysconfig.get_config_vars()
missing = {
    os: ["pidfd_open", "memfd_create", "eventfd", "sched_getaffinity", "waitid", "P_PID", "P_PIDFD", "WNOWAIT",
         "O_PATH", "O_TMPFILE", "posix_fadvise", "copy_file_range", "getrandom", "setns", "unshare", "splice"],
    signal: ["pidfd_send_signal", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "SIGPOLL", "sigtimedwait"],
    socket: ["TCP_KEEPIDLE", "SO_PEERCRED", "SO_MARK", "AF_NETLINK", "AF_PACKET", "SOCK_CLOEXEC", "TCP_USER_TIMEOUT"],
    time: ["CLOCK_BOOTTIME"],
    fcntl: ["F_OFD_SETLK", "F_OFD_GETLK", "F_SETPIPE_SZ", "F_ADD_SEALS", "F_NOTIFY"],
}
for module, names in missing.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
socket.TCP_KEEPALIVE = 4  # what macOS has instead of TCP_KEEPIDLE
sys.platform = "darwin"

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = Library
from oars.places.local import process
from pathlib import Path
process.PROC = Path("/no-such-directory")
"""
IMPORT = """
import importlib, pkgutil
import oars
INSIDE = ("head_helper", "head_plugin", "launch", "fork_server", "driver_hook", "shell_startup", "__main__")
imported = []
for found in pkgutil.walk_packages(oars.__path__, "oars."):
    if not found.name.endswith(INSIDE) and not found.name.startswith("oars.testing"):
        importlib.import_module(found.name)
        imported.append(found.name)
print(len(imported))
"""
CALL = "from oars.cli import errors; from oars.cli.main import call; sys.exit(errors.guard(lambda: call(sys.argv[1:])))"
CLUSTER = {
    "apiVersion": "oars.dev/v1alpha1",
    "kind": "ComputeCluster",
    "metadata": {"name": "demo", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"},
    "spec": {"engine": "dask"},
    "status": {"phase": "Ready", "observedGeneration": 1, "groups": [{"name": "default", "wanted": 2, "ready": 2}]},
}


class Api(BaseHTTPRequestHandler):
    """As much of an API server as it takes to list clusters."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        items: list[Any] = [CLUSTER] if path.endswith("/computeclusters") else []
        if path.endswith("/computeclusters/demo"):
            content: Any = CLUSTER
        elif path.endswith(("s", "/pods")):
            content = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
        else:
            content = {"kind": "Status", "code": 404, "reason": "NotFound", "message": path}
        is_watch = "watch=" in self.path  # nothing happens
        body = b"" if is_watch else json.dumps(content).encode()
        self.send_response(content.get("code", 200))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        config = tmp_path / "config"
        config.write_text(kubeconfig(f"http://127.0.0.1:{server.server_address[1]}"))
        monkeypatch.setenv("KUBECONFIG", str(config))
        yield
        server.shutdown()
        thread.join()


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))


def test_every_module_of_the_client_side_can_be_imported() -> None:
    done = run(IMPORT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


@pytest.mark.usefixtures("kubernetes")
@pytest.mark.parametrize("arguments", [("ls", "-o", "name"), ("ls", "--place", "kubernetes", "-o", "name")])
def test_clusters_on_kubernetes_are_listed(arguments: tuple[str, ...]) -> None:
    done = run(CALL, *arguments)
    assert (done.returncode, done.stdout) == (0, "demo\n"), done.stderr


@pytest.mark.usefixtures("kubernetes")
def test_cluster_on_kubernetes_is_shown() -> None:
    done = run(CALL, "status", "demo", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["phase"] == "Ready"


def test_manifests_are_rendered() -> None:
    done = run(CALL, "render", "demo", "--engine", "dask")
    assert done.returncode == 0, done.stderr
    assert "kind: Deployment" in done.stdout


@pytest.mark.parametrize("arguments", [("up", "demo", "--engine", "dask"), ("run", "--engine", "dask", "x.py")])
def test_local_place_refuses_with_a_sentence(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    script = tmp_path / "x.py"
    script.touch()
    done = run(CALL, *[str(script) if word == "x.py" else word for word in arguments])
    assert done.returncode == 1
    assert "Local clusters need Linux" in done.stderr and "--place kubernetes" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_says_what_is_missing() -> None:
    done = run(CALL, "doctor")
    assert done.returncode == 1
    assert "Local clusters need Linux" in done.stdout and "Cannot be examined" not in done.stdout


def test_cluster_of_a_linux_host_is_shown(own_state: Path) -> None:
    """A home directory that both systems share."""
    directory = Store(own_state).create(record("demo", host=OTHER), {})
    done = run(CALL, "ls", "--place", "local", "-o", "json")
    assert done.returncode == 0, done.stderr
    (shown,) = json.loads(done.stdout)
    assert shown["reason"] == "OtherHost" and directory.exists
