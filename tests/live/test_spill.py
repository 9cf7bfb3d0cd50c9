"""A workload three times larger than a worker's memory finishes on every engine, because its results are spilled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oars import Cluster
from oars.base.errors import StartFailed
from oars.places.local.cgroup import ENV, delegation
from oars.spec.load import build
from oars.testing.driver import DriverProgram

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

MIB = 2**20
CACHE = 100 * MIB
# Memory of a worker. Ray and Mars run several processes in it.
SIZES = {"dask": 300 * MIB, "ray": 600 * MIB, "xorbits": 500 * MIB, "pymars": 500 * MIB}

# Each makes random (not compressible) results of 10 MiB, as many as its argument says, and then reads all of them.
DASK = """
import sys
import numpy as np
from distributed import Client, wait
client = Client()
make = lambda number: np.append(float(number), np.random.default_rng().random(10 * 2**17))
made = client.map(make, range(int(sys.argv[1])), pure=False)
wait(made)
print("made")
print("sum", sum(client.gather(client.map(lambda part: float(part[0]), made))))
input()
"""

RAY = """
import sys
import numpy as np
import ray
ray.init(log_to_driver=False)
# With a mark, for which a program outside the cluster can wait: to wait for the result itself, Ray Client fetches it.
make = ray.remote(num_returns=2)(
    lambda number: (np.append(float(number), np.random.default_rng().random(10 * 2**17)), number)
)
first = ray.remote(lambda part: float(part[0]))
made, marks = zip(*(make.remote(number) for number in range(int(sys.argv[1]))))
ray.get(list(marks))
print("made")
print("sum", sum(ray.get([first.remote(part) for part in made])))
input()
"""

MARS = """
import os
import sys
import numpy as np
import oars
session = oars.connect()
if os.environ["OARS_MARS_DISTRIBUTION"] == "xorbits":
    from xorbits._mars import remote
else:
    from mars import remote
quiet = {"show_progress": False}
make = lambda number: np.append(float(number), np.random.default_rng().random(10 * 2**17))
made = [remote.spawn(make, args=(number,)) for number in range(int(sys.argv[1]))]
remote.ExecutableTuple(made).execute(**quiet)
print("made")
firsts = remote.ExecutableTuple([remote.spawn(lambda part: float(part[0]), args=(part,)) for part in made])
print("sum", sum(firsts.execute(**quiet).fetch()))
input()
"""

ENGINES: dict[str, tuple[dict[str, Any], str]] = {
    "dask": ({"engine": "dask"}, DASK),
    "ray": ({"engine": "ray", "ray": {"dashboard": False}}, RAY),
    "xorbits": ({"engine": "mars"}, MARS),
    "pymars": ({"engine": "mars", "mars": {"distribution": "pymars"}}, MARS),
}


@pytest.fixture(autouse=True)
def cgroup(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cgroup of this test, so that the kernel enforces the memory of workers; empty if we may not create one."""
    found = delegation({})
    if found.path is None:  # version 1, of which Oars uses only what it is given
        own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        path = next((path for _, controllers, path in own if controllers == "memory"), "")
        found = delegation({ENV: f"/sys/fs/cgroup/memory{path}"})
    if found.path is None:
        yield ""
        return
    mine = found.path / f"oars-test-{os.getpid()}"
    mine.mkdir()
    if found.version == 2:
        (mine / "cgroup.subtree_control").write_text("+memory")
    monkeypatch.setenv(ENV, str(mine))
    yield str(mine)
    assert not list(mine.glob("oars-*")), "cgroups of members are left"
    mine.rmdir()


def start(kind: str, **worker: Any) -> Cluster:
    group = {"replicas": 1, "memory": SIZES[kind], "cache": CACHE, **worker}
    return Cluster(build({**ENGINES[kind][0], "workers": [group]}).spec, timeout="180s")


def bytes_in(directory: Path) -> int:
    """The size of all files; some may vanish meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out waiting for a condition"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ENGINES)
def test_workload_of_three_times_the_memory_finishes(kind: str, tmp_path: Path) -> None:
    spill, count = tmp_path / "spill", 3 * SIZES[kind] // (10 * MIB)
    spill.mkdir()
    with start(kind, spill={"paths": [str(spill)]}) as cluster:
        with DriverProgram(cluster, ENGINES[kind][1], str(count)) as driver:
            driver.expect("made", 200.0)
            written = bytes_in(spill)
            line = driver.expect("sum ", 200.0)
        (own,) = spill.iterdir()
        assert own.stat().st_mode & 0o777 == 0o700, "another user can read it"
        (worker,) = (each for each in cluster.members() if each.id != "head")
        assert worker.reason == "" and not cluster.why(), "the worker died meanwhile"
    assert line == f"sum {float(sum(range(count)))}"
    assert written > 2 * SIZES[kind], f"only {written // MIB} MiB were spilled"
    assert list(spill.iterdir()) == [], "the worker's directory is still there"


def test_directories_of_killed_members_are_removed(tmp_path: Path) -> None:
    """Two disks: the workers take them in turn. Nothing is left, however a worker and the cluster end."""
    disks = [tmp_path / "a [1]".replace(" ", "-"), tmp_path / "b"]
    with start("dask", replicas=2, spill={"paths": [str(disk) for disk in disks]}) as cluster:
        first, second = (each for each in cluster.members() if each.id != "head")
        found = {disk.name: [path.name for path in disk.iterdir() if any(path.iterdir())] for disk in disks}
        assert [len(used) for used in found.values()] == [1, 1], f"both workers use the same disk: {found}"
        assert all(len(list(disk.iterdir())) == 2 for disk in disks)
        before = {path.name for path in disks[0].iterdir()}
        os.kill(first.pid or 0, signal.SIGKILL)
        until(lambda: len({each.pid for each in cluster.members()} - {None, first.pid}) == 3)
        until(lambda: len(list(disks[0].iterdir())) == 2 and {path.name for path in disks[0].iterdir()} != before)
        assert second.pid in {each.pid for each in cluster.members()}
    assert [list(disk.iterdir()) for disk in disks] == [[], []]


def test_unusable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartFailed) as caught:
        start("dask", spill={"paths": [str(tmp_path / "file")]}).__enter__()
    assert f"The spill directory {tmp_path}/file cannot be used" in str(caught.value)


def test_kernel_enforces_the_memory_of_a_worker(cgroup: str) -> None:
    """Dask's own check is off, so only the kernel can end the worker."""
    if not cgroup:
        pytest.skip("this session may not create cgroups")
    config = {"distributed": {"worker": {"memory": {"terminate": False}}, "scheduler": {"allowed-failures": 0}}}
    data = {"engine": "dask", "workers": [{"replicas": 1, "memory": "300Mi"}], "dask": {"config": config}}
    with Cluster(build(data).spec, timeout="180s") as cluster:
        with pytest.raises(Exception, match="worker"):
            cluster.executor().submit(lambda: len(b"x" * (2 * 300 * 2**20))).result(120)
        until(lambda: cluster.status().ready == 1 and cluster.why())
        (cause,) = cluster.why()
        assert cause.reason == "OOMKilled"
        assert "worker-0 ran out of memory and was killed by SIGKILL (the limit is 300Mi)" in cause.message
        assert cause.hint == "Raise workers[default].memory, which is 300Mi, or process less data at a time."


def test_killed_process_of_a_worker_that_goes_on_is_named(cgroup: str) -> None:
    """Ray runs each task in a process of its own."""
    if not cgroup:
        pytest.skip("this session may not create cgroups")
    source = """
import ray
ray.init(log_to_driver=False)
try:
    ray.get(ray.remote(max_retries=0)(lambda: len(b"x" * 2**30)).remote(), timeout=120)
except ray.exceptions.RayError as error:
    print("lost", type(error).__name__)
print("sum", ray.get(ray.remote(lambda: 2).remote(), timeout=120))
input()
"""
    with start("ray") as cluster, DriverProgram(cluster, source) as driver:
        driver.expect("lost")
        driver.expect("sum 2")
        until(cluster.why)
        (cause,) = cluster.why()
        assert cause.reason == "OOMKilled" and cluster.status().ready == 1
        assert cause.message.startswith("worker-0 ran out of memory (the limit is 600Mi): the kernel killed ")
        assert cause.hint == "Raise workers[default].memory, which is 600Mi, or process less data at a time."


RAY_ON_DISK = """
import sys
import numpy as np
import ray
ray.init(log_to_driver=False)
make = ray.remote(lambda number: np.append(float(number), np.random.default_rng().random(10 * 2**17)))
made = [make.remote(number) for number in range(int(sys.argv[1]))]
ray.wait(made, num_returns=len(made), fetch_local=False)
del made[3:]
print("made")
input()
print("first", [float(part[0]) for part in ray.get(made)])
del made
input()
"""


def test_raylet_whose_objects_are_all_on_disk_is_kept_until_they_are_released(tmp_path: Path) -> None:
    """Ray reports no bytes for them."""
    with start("ray", spill={"paths": [str(tmp_path)]}) as cluster:
        with DriverProgram(cluster, RAY_ON_DISK, str(3 * CACHE // (10 * MIB))) as driver:
            driver.expect("made")
            cluster.scale(0)
            until(lambda: any("objects on its disk" in cause.message for cause in cluster.why()), 120.0)
            assert bytes_in(tmp_path) > 3 * 10 * MIB
            driver.tell()
            driver.expect("first [0.0, 1.0, 2.0]")
            until(lambda: len(cluster.members()) == 1, 120.0)
            driver.tell()
