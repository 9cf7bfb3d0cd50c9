"""What the classic KubeCluster adds to a Dask scheduler, in real processes started as its pods start them."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from distributed.core import rpc

from oars.compat.dask_kubernetes import make_pod_spec
from oars.compat.dask_kubernetes.templates import Settings, scheduler_pod, worker_pod

pytestmark = [pytest.mark.live]
LOCAL = "127.0.0.1"
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind((LOCAL, 0))
        second.bind((LOCAL, 0))
        return first.getsockname()[1], second.getsockname()[1]


class Machine:
    """Runs the first containers of pods as processes. `entry_point`: of their image."""

    def __init__(self, folder: Path, entry_point: Sequence[str] = (), **settings: Any) -> None:
        port, dashboard = free_ports()
        self.entry_point = entry_point
        self.folder = folder
        self.address = f"tcp://{LOCAL}:{port}"
        self.members = f"http://{LOCAL}:{dashboard}/oars/members.json"
        self.settings = Settings("demo", "lab", "ann", address=self.address, **settings)
        self.started: list[subprocess.Popen[bytes]] = []
        options = ("--host", LOCAL, "--port", str(port), "--dashboard-address", f"{LOCAL}:{dashboard}")
        self.scheduler = self.run(scheduler_pod(None, make_pod_spec("i:1"), self.settings), *options)
        await_reply(self.members)

    def worker(self, name: str, death_timeout: int = 60) -> subprocess.Popen[bytes]:
        template = make_pod_spec("i:1", memory_limit="1G")
        words = template.spec.containers[0].args
        assert words[words.index("--death-timeout") + 1] == "60"
        words[words.index("--death-timeout") + 1] = str(death_timeout)
        return self.run(worker_pod(template, self.settings), "--no-dashboard", DASK_WORKER_NAME=name)

    def run(self, pod: Any, *more: str, **env: str) -> subprocess.Popen[bytes]:
        container = pod.spec.containers[0]
        values = {each["name"]: each.get("value", "").replace("$$(", "$(") for each in container.env} | env
        assert container.command is None, "a command replaces the entry point of the image"
        words = [*self.entry_point, *container.args, *more]
        for name in ("DASK_SCHEDULER_ADDRESS", "DASK_WORKER_NAME"):  # as a kubelet does
            words = [word.replace(f"$({name})", values.get(name, "")) for word in words]
        values |= {"PATH": f"{self.folder}/bin:{PATH}", "HOME": str(self.folder), "PYTHONPATH": str(self.folder)}
        with (self.folder / f"{len(self.started)}.log").open("wb") as log:
            self.started.append(subprocess.Popen(words, stdout=log, stderr=log, cwd=self.folder, env=values))
        return self.started[-1]

    def end(self) -> None:
        for number, process in enumerate(self.started):
            process.terminate()
            process.wait(30)
            print((self.folder / f"{number}.log").read_text()[-3000:])  # noqa: T201


def await_reply(url: str) -> Any:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return json.loads(reply.read())
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)  # another process: there is nothing to await


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    found: list[Machine] = []
    yield found
    for machine in found:
        machine.end()


# As in Dask's images. apt and conda only say what they would install.
ENTRY_POINT = {
    "entry": """#!/bin/sh
set -e
if [ "$EXTRA_APT_PACKAGES" ]; then apt-get install -y $EXTRA_APT_PACKAGES; fi
if [ "$EXTRA_CONDA_PACKAGES" ]; then conda install -y $EXTRA_CONDA_PACKAGES; fi
if [ "$EXTRA_PIP_PACKAGES" ]; then pip install $EXTRA_PIP_PACKAGES; fi
exec "$@"
""",
    "apt-get": '#!/bin/sh\necho "apt-get $*"\n',
    "conda": '#!/bin/sh\necho "conda $*"\n',
    "pip": '#!/bin/sh\nshift\nexec uv pip install --no-cache --no-index --target "$HOME" "$@"\n',
}


def wheel(folder: Path, name: str) -> Path:
    """A package with one empty module."""
    path, info = folder / f"{name}-1-py3-none-any.whl", f"{name}-1.dist-info"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr(f"{name}.py", "")
        content.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        content.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        content.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_entry_point_of_the_image_installs_extra_packages(tmp_path: Path, machines: list[Machine]) -> None:
    """In the scheduler and in workers, before Dask starts."""
    (tmp_path / "bin").mkdir()
    for name, source in ENTRY_POINT.items():
        (tmp_path / "bin" / name).write_text(source)
        (tmp_path / "bin" / name).chmod(0o755)
    wheels = [str(wheel(tmp_path, name)) for name in ("first_extra", "second_extra")]
    env = {
        "EXTRA_APT_PACKAGES": "graphviz git", "EXTRA_CONDA_PACKAGES": "pyarrow", "EXTRA_PIP_PACKAGES": " ".join(wheels)
    }  # fmt: skip
    machine = Machine(tmp_path, [str(tmp_path / "bin" / "entry")], env=env)
    machines.append(machine)
    machine.worker("demo-a")
    with Client(machine.address) as client:
        client.wait_for_workers(1, 60)
        for run in (client.run_on_scheduler, lambda find: client.submit(find).result(60)):
            assert run(lambda: [bool(find_spec(name)) for name in ("first_extra", "second_extra")]) == [True, True]
    for number in range(2):
        lines = (tmp_path / f"{number}.log").read_text().splitlines()
        assert lines[:2] == ["apt-get install -y graphviz git", "conda install -y pyarrow"]


def test_scheduler_lists_and_drains_workers(tmp_path: Path, machines: list[Machine]) -> None:
    """Through the shim, for this Python has no program dask-scheduler. A user's preload is loaded too."""
    (tmp_path / "mine.py").write_text("def dask_setup(scheduler):\n    scheduler.mine = 'loaded'\n")
    machine = Machine(tmp_path, env={"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "mine"})
    machines.append(machine)
    first = await_reply(machine.members)
    unused = {"idle": first["idle"], "no_client": first["no_client"]}
    assert first == {"address": machine.address, "workers": [], "demand": [], **unused}
    assert min(unused.values()) >= 0
    for name in ("demo-a", "demo-b"):
        machine.worker(name)
    with Client(machine.address) as client:
        client.wait_for_workers(2, 60)
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.mine) == "loaded"
        assert {each["name"] for each in await_reply(machine.members)["workers"]} == {"demo-a", "demo-b"}
        held = client.map(lambda n: n * n, range(20))
        assert sum(client.gather(held)) == 2470

        async def drain() -> Any:
            async with rpc(machine.address) as scheduler:
                request = {"op": "drain", "names": ["demo-a"], "seconds": 30, "force": False}
                return await scheduler.oars_ask(request=request)

        assert asyncio.run(drain()) == {"demo-a": {"outcome": "moved"}}
        assert [each["name"] for each in await_reply(machine.members)["workers"]] == ["demo-b"]
        assert sum(client.gather(held)) == 2470


def test_scheduler_without_a_client_ends(tmp_path: Path, machines: list[Machine]) -> None:
    """It stays while any Dask client is there, and ends with code 0 when none has been there for a while."""
    machine = Machine(tmp_path, orphaned=2.0)
    machines.append(machine)
    worker = machine.worker("demo-a")
    with Client(machine.address) as client:
        client.wait_for_workers(1, 60)
        time.sleep(4.0)  # longer than the limit: a connected client keeps it
        assert machine.scheduler.poll() is None
    assert machine.scheduler.wait(30) == 0
    assert worker.wait(60) == 0, "the worker ends with it"


def test_worker_that_cannot_connect_ends_after_its_death_timeout(tmp_path: Path, machines: list[Machine]) -> None:
    """One whose scheduler is killed, and one that never finds a scheduler."""
    machine = Machine(tmp_path)
    machines.append(machine)
    left = machine.worker("demo-a", death_timeout=20)  # it must connect within that on a busy machine
    with Client(machine.address) as client:
        client.wait_for_workers(1, 60)
    machine.scheduler.kill()
    machine.scheduler.wait(30)
    alone = machine.worker("demo-b", death_timeout=3)
    for worker in (left, alone):
        worker.wait(90)
