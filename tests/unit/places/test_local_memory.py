"""The memory that processes may use on this machine: cgroups of both versions, Slurm, limits of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from oars.places.local import memory
from oars.places.local.memory import physical_memory, usable_memory

GIB = 2**30
PHYSICAL = 256 * GIB
NONE = str(2**63 - 4096)  # what version 1 shows without a limit
V2 = "0::/user.slice/job.scope\n"
V1 = "9:name=systemd:/\n4:cpu,memory:/slurm/uid_1/job_2/step_0\n0::/\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        pytest.param("", {}, PHYSICAL, id="no cgroups"),
        pytest.param(V2, {"memory.max": "max"}, PHYSICAL, id="v2, no limit"),
        pytest.param(V2, {"user.slice/job.scope/memory.max": f"{8 * GIB}\n"}, 8 * GIB, id="v2"),
        pytest.param(V2, {"user.slice/memory.max": str(9 * GIB)}, 9 * GIB, id="v2, above"),
        pytest.param(V2, {"user.slice/memory.high": str(7 * GIB)}, 7 * GIB, id="v2, throttled"),
        pytest.param("0::/\n", {"memory.max": str(4 * GIB)}, 4 * GIB, id="v2, container"),
        pytest.param("0::/../../other\n", {"memory.max": str(4 * GIB)}, 4 * GIB, id="v2, outside of its namespace"),
        pytest.param("0::/docker/3f2a\n", {"memory.max": str(4 * GIB)}, 4 * GIB, id="v2, path of the machine"),
        pytest.param(V1, {"memory/slurm/uid_1/job_2/memory.limit_in_bytes": str(8 * GIB)}, 8 * GIB, id="v1, Slurm"),
        pytest.param(V1, {"memory/memory.limit_in_bytes": NONE}, PHYSICAL, id="v1, no limit"),
        pytest.param(V1, {"memory/memory.limit_in_bytes": str(4 * GIB)}, 4 * GIB, id="v1, container"),
        pytest.param(V1, {"unified/memory.max": str(4 * GIB)}, 4 * GIB, id="both versions"),
        pytest.param(V2, {"user.slice/memory.max": str(999 * GIB)}, PHYSICAL, id="more than there is"),
    ],
)  # fmt: skip
def test_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: Mapping[str, str], expected: int
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(memory, "PROC", tmp_path)
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroups")
    monkeypatch.setattr(memory, "physical_memory", lambda: PHYSICAL)
    assert usable_memory({}) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "8192"}, 8 * GIB),
        ({"SLURM_MEM_PER_CPU": "2048", "SLURM_CPUS_ON_NODE": "4"}, 8 * GIB),
        ({"SLURM_MEM_PER_NODE": "0"}, PHYSICAL),
        ({"SLURM_MEM_PER_CPU": "2048"}, PHYSICAL),
        ({"SLURM_MEM_PER_NODE": "a lot"}, PHYSICAL),
    ],
)
def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: int) -> None:
    monkeypatch.setattr(memory, "PROC", tmp_path)
    monkeypatch.setattr(memory, "physical_memory", lambda: PHYSICAL)
    assert usable_memory(environ) == expected


def test_limit_of_the_address_space() -> None:
    code = "import os; from oars.places.local.memory import usable_memory; print(usable_memory(os.environ))"
    limited = f"ulimit -v {2**20}; exec {sys.executable} -c '{code}'"
    shown = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, check=True, timeout=60).stdout
    assert int(shown) == min(GIB, usable_memory(os.environ))


def test_real_cgroup_is_honoured() -> None:
    """A process in a cgroup of its own, with a limit."""
    root = Path("/sys/fs/cgroup")
    v1 = root / "memory"
    group = (v1 if (v1 / "memory.limit_in_bytes").exists() else root) / f"oars-test-{os.getpid()}"
    try:
        group.mkdir()
        file = "memory.limit_in_bytes" if group.parent == v1 else "memory.max"
        (group / file).write_text(str(GIB))
    except OSError as error:
        pytest.skip(f"cannot create a cgroup: {error}")
    code = (
        "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()));"
        "from oars.places.local.memory import usable_memory; print(usable_memory({}))"
    )
    try:
        argv = [sys.executable, "-c", code, str(group / "cgroup.procs")]
        assert int(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout) == GIB
    finally:
        group.rmdir()


def test_without_limits_it_is_the_memory_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PROC", tmp_path)
    assert 0 < usable_memory({}) == physical_memory()
