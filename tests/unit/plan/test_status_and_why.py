"""status and why, as tables."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from oars.base import codec
from oars.base.errors import OarsError
from oars.model import HEAD, Cause, Failure, LoopState, MemberId, MemberState, Observed, Retiring, View
from oars.plan.status import failed, status
from oars.plan.why import explain, pass_failure
from oars.spec.status import GroupStatus, Phase, Status
from tests.unit.plan.clusters import NOW, desired, head, view_of, worker

W0, W2 = MemberId("worker-0"), MemberId("worker-2")
ALL = (head(), worker(0), worker(1), worker(2))


def failure(count: int, *tail: str) -> Failure:
    return Failure(count, NOW, NOW, "1", "was killed by SIGKILL", tail)


def status_of(observed: Observed, view: View, running: bool = True) -> Status:
    wanted = replace(desired(), running=running)
    return status(wanted, observed, view, explain(wanted, observed, view), {"client": "toy://x"})


@pytest.mark.parametrize(
    ("observed", "up", "running", "phase", "reason"),
    [
        (Observed(), True, True, Phase.PENDING, ""),
        (Observed((head(),)), False, True, Phase.STARTING, "HeadStarting"),
        (Observed((head(), worker(0))), True, True, Phase.STARTING, ""),
        (Observed(ALL), True, True, Phase.READY, ""),
        (Observed(ALL, LoopState(failures={W0: failure(1)})), True, True, Phase.READY, "Replaced"),
        (Observed((head(), worker(0, MemberState.EXITED)), LoopState(failures={W0: failure(1)})), True, True,
         Phase.DEGRADED, "WorkerLost"),
        (Observed((head(), worker(0, MemberState.EXITED)), LoopState(failures={W0: failure(3)})), True, True,
         Phase.DEGRADED, "CrashLoop"),
        (Observed((head(MemberState.EXITED),), LoopState(failures={HEAD: failure(1)})), False, True,
         Phase.DEGRADED, "HeadLost"),
        (Observed((head(MemberState.EXITED),), LoopState(failures={HEAD: failure(3)})), False, True,
         Phase.FAILED, "CrashLoop"),
        (Observed((*ALL, worker(3)), LoopState(retiring={MemberId("worker-3"): Retiring(NOW)})), True, True,
         Phase.READY, "Draining"),
        (Observed(ALL), True, False, Phase.STOPPING, "Stopping"),
        (Observed(), True, False, Phase.STOPPED, ""),
    ],
)  # fmt: skip
def test_phase_and_reason(observed: Observed, up: bool, running: bool, phase: Phase, reason: str) -> None:
    found = status_of(observed, view_of(observed) if up else View(message="refused"), running)
    assert (found.phase, found.reason) == (phase, reason)


def test_json_form_is_stable() -> None:
    data = status_of(Observed(ALL), view_of(Observed(ALL))).to_dict()
    assert list(data) == ["name", "engine", "place", "phase", "reason", "message", "endpoints", "groups", "members",
                          "mode", "namespace"]  # fmt: skip
    assert data["endpoints"] == {"client": "toy://x", "dashboard": ""}
    assert data["groups"] == [{"name": "default", "wanted": 3, "ready": 3}]
    assert list(data["members"][1]) == ["id", "role", "group", "phase", "address", "pid", "reason"]
    assert "members" not in status_of(Observed(ALL), View()).to_dict(members=False)


def test_status_survives_a_round_trip_through_json() -> None:
    before = status_of(Observed(ALL), view_of(Observed(ALL)))
    assert codec.load(Status, json.loads(json.dumps(before.to_dict()))) == before


def test_replaced_member_shows_how_its_predecessor_ended() -> None:
    observed = Observed(ALL, LoopState(failures={W0: failure(1)}))
    found = {m.id: m for m in status_of(observed, view_of(observed)).members}
    assert found["worker-0"].phase is Phase.READY
    assert "SIGKILL" in found["worker-0"].reason


def test_retiring_workers_do_not_count_as_ready() -> None:
    observed = Observed(ALL, LoopState(retiring={W2: Retiring(NOW, waits_for="a task")}))
    found = status_of(observed, view_of(observed))
    assert found.groups[0].ready == 2
    assert found.members[3].phase is Phase.STOPPING and found.members[3].reason == "a task"


@pytest.mark.parametrize(
    ("line", "cause", "hint"),
    [
        ("ModuleNotFoundError: No module named 'pandas'", "the Python module pandas is missing", "packages"),
        ("OSError: [Errno 28] No space left on device", "the disk is full", "Free"),
        ("OSError: [Errno 98] Address already in use", "another program uses a port", "other program"),
        ("MemoryError", "ran out of memory", "more `memory`"),
        ("PermissionError: [Errno 13] Permission denied: '/data'", "may not read or write /data", "permissions"),
        ("something nobody has seen before", "was killed by SIGKILL", "oars logs"),
    ],
)
def test_log_lines_are_explained(line: str, cause: str, hint: str) -> None:
    observed = Observed((head(), worker(0, MemberState.EXITED)), LoopState(failures={W0: failure(3, "noise", line)}))
    (found, *_) = explain(desired(), observed, view_of(observed))
    assert cause in found.message
    assert hint in found.hint
    assert found.lines == ("noise", line)


def test_worker_that_cannot_be_drained_shows_why_and_how_to_force_it() -> None:
    observed = Observed(ALL, LoopState(retiring={W2: Retiring(NOW, waits_for="a pinned item")}))
    (found,) = explain(desired(2), observed, view_of(observed))
    assert "a pinned item" in found.message and "--force" in found.hint


def test_ready_cluster_has_no_causes() -> None:
    assert explain(desired(), Observed(ALL), view_of(Observed(ALL))) == ()


def test_causes_and_remarks_of_the_place_are_shown() -> None:
    grave, mild = Cause("NoSpace", "The disk is full."), Cause("Unwatched", "Nobody watches the owner.")
    observed = Observed((head(),), causes=(grave,), remarks=(mild,))
    causes = explain(desired(0), observed, view_of(observed))
    assert (causes[0], causes[-1]) == (grave, mild)


def test_death_that_the_place_explains_is_not_explained_twice() -> None:
    state = LoopState(failures={W0: failure(1)})
    known = Cause("OutOfMemory", "worker-0 needs more memory.", members=("worker-0",))
    observed = Observed((head(), worker(0, MemberState.EXITED)), state, causes=(known,))
    assert [cause.reason for cause in explain(desired(1), observed, view_of(observed))] == ["OutOfMemory"]


@pytest.mark.parametrize(
    ("before", "generation", "after"),
    [
        (Phase.READY, 1, Phase.READY),
        (Phase.READY, 2, Phase.DEGRADED),
        (Phase.STARTING, 2, Phase.STARTING),
        (Phase.FAILED, 2, Phase.FAILED),
    ],
)
def test_failed_pass_keeps_the_phase_unless_it_is_about_an_older_spec(
    before: Phase, generation: int, after: Phase
) -> None:
    known = Status("demo", "toy", "local", before, generation=1, groups=(GroupStatus("default", 3, 3),))
    found = failed(known, Cause("PassFailed", "Why."), generation)
    expected = replace(known, phase=after, reason="PassFailed", message="Why.", generation=generation)
    assert found == expected


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (OarsError("The disk is full.", "Free some space."), "PassFailed", "cluster: The disk is full. Oars retries."),
        (OSError("no space"), "PassFailed", "cluster: no space. Oars retries."),
        (TimeoutError(), "PassFailed", "cluster: TimeoutError. Oars retries."),
        (KeyError("name"), "InternalError", "KeyError: 'name'. Oars retries."),
    ],
)
def test_cause_of_a_failed_pass(error: Exception, reason: str, words: str) -> None:
    cause = pass_failure(error, "keeper.log")
    assert cause.reason == reason and cause.message.endswith(words)
    assert cause.hint == getattr(error, "hint", "") or "with keeper.log" in cause.hint
