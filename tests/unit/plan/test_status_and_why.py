"""status and why, as tables."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from oars.base import codec
from oars.base.errors import OarsError
from oars.model import (
    HEAD,
    Cause,
    Demand,
    Desired,
    Failure,
    LoopState,
    Member,
    MemberId,
    MemberState,
    Observed,
    Resources,
    Retiring,
    View,
)
from oars.places.process.machine import UNKNOWN_EXIT
from oars.plan.logs import telling_lines
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
        (Observed(ALL, LoopState(head_epoch=0, head_lost_at=NOW)), True, True, Phase.READY, "HeadReplaced"),
        (Observed(ALL, is_head_leaving=True), True, True, Phase.STARTING, ""),
        (Observed(ALL), True, False, Phase.STOPPING, "Stopping"),
        (Observed(), True, False, Phase.STOPPED, ""),
    ],
)  # fmt: skip
def test_phase_and_reason(observed: Observed, up: bool, running: bool, phase: Phase, reason: str) -> None:
    found = status_of(observed, view_of(observed) if up else View(message="refused"), running)
    assert (found.phase, found.reason) == (phase, reason)


def test_members_have_the_tasks_that_the_engine_reports() -> None:
    view = view_of(Observed(ALL))
    name, reported = next((name, each) for name, each in view.members.items() if name != "head")
    busy = replace(view, members={**view.members, name: replace(reported, tasks=4)})
    found = {each.id: each.tasks for each in status_of(Observed(ALL), busy).members}
    assert found.pop(name) == 4 and set(found.values()) == {None}


def test_head_that_answered_before_is_silent_and_not_starting() -> None:
    found = status_of(Observed(ALL), View(message="no answer within 5 s", has_answered=True))
    assert (found.phase, found.reason) == (Phase.DEGRADED, "HeadSilent")


@pytest.mark.parametrize(
    ("wanted", "members", "demand", "message"),
    [
        (desired(0), (head(),), (Demand({}, 20),), "20 tasks wait, and the cluster has no workers."),
        (
            desired(0),
            (head(),),
            (Demand({}, 1), Demand({}, 5, floor=True)),
            "1 task waits, and the cluster has no workers.",
        ),
        (desired(0), (head(),), (), ""),
        (desired(0), (head(),), None, ""),  # the engine cannot tell
        (desired(0), (head(),), (Demand({}, 3, running=1),), ""),  # the head takes tasks
        (desired(0), (head(), worker(0)), (Demand({}, 3),), ""),  # it leaves, and says so itself
        (desired(1), (head(),), (Demand({}, 3),), ""),  # it is about to start
        (desired(0, gpu=1), (head(),), (Demand({}, 3),), ""),
        (replace(desired(0), drain_all=True), (head(),), (Demand({}, 3),), ""),
    ],
)
def test_work_that_waits_for_the_first_worker(
    wanted: Desired, members: tuple[Member, ...], demand: tuple[Demand, ...] | None, message: str
) -> None:
    found = [c for c in explain(wanted, Observed(members), View(up=True, demand=demand)) if c.reason == "NoWorkers"]
    assert [cause.message for cause in found] == ([message] if message else [])
    assert all(cause.hint == "Add some, for example: `oars scale demo 1`." for cause in found)


def test_autoscaling_adds_the_first_worker_by_itself() -> None:
    wanted = desired(0)
    groups = tuple(replace(group, min=0, max=4) for group in wanted.shape.workers)
    wanted = replace(wanted, shape=replace(wanted.shape, workers=groups))
    assert explain(wanted, Observed((head(),)), View(up=True, demand=(Demand({}, 3),))) == ()


def test_unknown_end_reads_as_a_sentence() -> None:
    unknown = replace(failure(1), reason=UNKNOWN_EXIT.reason)
    (cause,) = explain(desired(), Observed(ALL, LoopState(failures={W0: unknown})), view_of(Observed(ALL)))
    assert cause.message.startswith("worker-0 ended with an unknown exit status and was started again;")


def test_json_form_is_stable() -> None:
    data = status_of(Observed(ALL), view_of(Observed(ALL))).to_dict()
    assert list(data) == ["name", "engine", "place", "phase", "reason", "message", "endpoints", "groups", "members",
                          "mode", "namespace", "expires", "host", "created"]  # fmt: skip
    assert data["endpoints"] == {"client": "toy://x", "dashboard": ""}
    assert data["groups"] == [{"name": "default", "wanted": 3, "ready": 3}]
    assert list(data["members"][1]) == ["id", "role", "group", "phase", "address", "pid", "reason", "tasks"]
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


def test_death_says_what_is_lost_and_what_to_do() -> None:
    observed = Observed(ALL, LoopState(failures={HEAD: failure(1), W0: failure(1)}))
    lost_head, lost_worker = explain(desired(), observed, view_of(observed))
    name = desired().name
    assert lost_head.message == (
        "head was killed by SIGKILL and was started again; all results of the cluster are lost."
    )
    assert lost_head.hint == (f"Connect your clients again and repeat the work. Read its log: `oars logs {name} head`.")
    assert lost_worker.message == (
        "worker-0 was killed by SIGKILL and was started again; results that only it held are lost or computed again."
    )
    assert lost_worker.hint == f"Read its log: `oars logs {name} worker-0`."


@pytest.mark.parametrize(
    ("lines", "telling"),
    [
        (["2026-11-18 01:52:14,094 - distributed.core - INFO - Threads: 1"], []),
        (["2026-11-18 09:12:25,815\tSUCC scripts.py:1085 -- Ray runtime started."], []),
        (["2026-11-18 09:12:25,815\tINFO scripts.py:1143 --   ray stop", "ValueError: x"], ["ValueError: x"]),
        (["01:52:14,094 - a - ERROR - INFO was wrong"], ["01:52:14,094 - a - ERROR - INFO was wrong"]),
        (["printed by a task: INFO"], ["printed by a task: INFO"]),
        ([str(number) for number in range(20)], [str(number) for number in range(12, 20)]),
    ],
)  # fmt: skip
def test_lines_of_every_healthy_start_explain_nothing(lines: list[str], telling: list[str]) -> None:
    assert telling_lines(lines) == tuple(telling)


@pytest.mark.parametrize(
    ("reason", "tail", "message"),
    [
        ("ran out of memory and was killed by SIGKILL (the limit is 300Mi)", (),
         "worker-0 ran out of memory and was killed by SIGKILL (the limit is 300Mi)"),
        ("exited with code 137", ("Out of memory: 290 MiB in use, limit 285 MiB. This worker exits.",),
         "worker-0 exited with code 137: it ran out of memory"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("state", [MemberState.EXITED, MemberState.RUNNING])
def test_out_of_memory_is_named_with_the_figure_to_raise(
    reason: str, tail: tuple[str, ...], message: str, count: int, state: MemberState
) -> None:
    wanted = desired()
    (group,) = wanted.shape.workers
    sized = replace(group, resources=Resources(memory=300 * 2**20))
    wanted = replace(wanted, shape=replace(wanted.shape, workers=(sized,)))
    died = Failure(count, NOW, NOW, "1", reason, tail)
    observed = Observed((head(), worker(0, state), worker(1), worker(2)), LoopState(failures={W0: died}))
    cause = explain(wanted, observed, view_of(observed))[0]
    assert cause.reason == "OOMKilled"
    assert message.partition(" ")[2].split(":")[0].split(" (")[0] in cause.message
    assert cause.hint == f"Raise workers[{group.name}].memory, which is 300Mi, or process less data at a time."
