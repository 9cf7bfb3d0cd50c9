"""Where Oars may limit the memory of members. The kernel's part is in tests/live/test_spill.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from oars.places.local import cgroup
from oars.places.local.cgroup import Delegation, delegation

OWN = "user.slice/user@1000.service/app.slice/run-1.scope"


def system(root: Path, *delegated: str) -> tuple[Path, Path]:
    """A file tree like that of version 2; these cgroups give the memory controller to their children."""
    proc, top = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(f"0::/{OWN}\n")
    (top / OWN).mkdir(parents=True)
    (top / "cgroup.controllers").write_text("cpu memory pids\n")
    for path in (top / OWN, *(top / OWN).parents[:3], top):
        (path / "cgroup.procs").touch()
        given = str(path.relative_to(top)) in delegated
        (path / "cgroup.subtree_control").write_text("memory pids\n" if given else "\n")
    return proc, top


def test_nearest_delegated_cgroup_is_used(tmp_path: Path) -> None:
    proc, top = system(tmp_path, "user.slice/user@1000.service", "user.slice/user@1000.service/app.slice")
    assert delegation({}, proc, top) == Delegation(top / "user.slice/user@1000.service/app.slice", 2)


def test_without_delegation_the_problem_and_a_command_are_named(tmp_path: Path) -> None:
    found = delegation({}, *system(tmp_path))
    assert found.path is None and found.problem == "no cgroup is delegated to this session"
    assert "`systemd-run --user --scope bash`" in found.hint


def test_version_1_is_used_only_if_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("4:memory:/\n0::/\n")
    found = delegation({}, tmp_path, tmp_path)
    assert found.path is None and "version 2" in found.problem and "OARS_CGROUP" in found.hint
    (tmp_path / "memory.limit_in_bytes").touch()
    assert delegation({"OARS_CGROUP": str(tmp_path)}) == Delegation(tmp_path, 1)


def test_given_directory_must_be_a_cgroup_and_limits_can_be_off(tmp_path: Path) -> None:
    found = delegation({"OARS_CGROUP": str(tmp_path)})
    assert found.path is None and str(tmp_path) in found.problem and found.hint
    assert delegation({"OARS_CGROUP": "off"}).path is None
    assert cgroup.create(found, "tag", 1) == ""


@pytest.mark.parametrize(
    ("version", "events"), [(1, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), (2, "oom 5\noom_kill 2\n")]
)
def test_limit_and_kills_of_a_member(tmp_path: Path, version: int, events: str) -> None:
    path = cgroup.create(Delegation(tmp_path, version), "mark-1", 300 * 2**20)
    assert path == str(tmp_path / "oars-mark-1")
    assert Path(path, cgroup.LIMIT[version]).read_text() == str(300 * 2**20) and cgroup.kills(path) == 0
    Path(path, cgroup.EVENTS[version]).write_text(events)
    assert cgroup.kills(path) == 2


def test_cgroups_of_a_cluster_are_removed(tmp_path: Path) -> None:
    for name in ("oars-mark-1", "oars-mark-2", "oars-other-1"):
        (tmp_path / name).mkdir()
    cgroup.remove(str(tmp_path / "oars-mark-9"))
    cgroup.remove_all(Delegation(tmp_path), "mark-")
    assert [path.name for path in tmp_path.iterdir()] == ["oars-other-1"]


def test_member_that_cannot_be_limited_still_starts(tmp_path: Path) -> None:
    (tmp_path / "oars-mark-1").touch()  # no directory can be created there
    assert cgroup.create(Delegation(tmp_path), "mark-1", 2**20) == ""
