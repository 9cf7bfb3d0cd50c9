"""Events and conditions of a ComputeCluster, on a real control plane with simulated pods."""

from __future__ import annotations

from collections.abc import Callable

from tests.api.stage import Operator, Stage, group, resource


def events(stage: Stage, name: str) -> list[tuple[str, str]]:
    return [(event["type"], event["reason"]) for event in stage.events(name)]


def condition(stage: Stage, name: str, kind: str) -> str:
    """The reason of a condition that is true."""
    found = (stage.get(name).get("status") or {}).get("conditions") or ()
    return next((each["reason"] for each in found if each["type"] == kind and each["status"] == "True"), "")


def test_events_and_conditions_from_start_to_end(stage: Stage, operators: Callable[..., Operator]) -> None:
    """A normal start has no Warning. A change that replaces the head is held back, then announced and made."""
    operators()
    stage.create(resource("bad", engine="spark"))
    stage.create(resource("demo", group(replicas=1)))
    stage.await_ready("demo")
    stage.until("demo", "has its event", lambda: ("Normal", "Ready") in events(stage, "demo"))
    assert {kind for kind, _ in events(stage, "demo")} == {"Normal"}
    (head,) = stage.pods("demo", "head")

    stage.edit("demo", {"env": {"A": "1"}, "head": {"update": "OnDelete"}})
    stage.until("demo", "is held back", lambda: condition(stage, "demo", "HeadOutdated"))
    assert stage.await_ready("demo")["reason"] == "HeadOutdated"
    assert [pod["metadata"]["uid"] for pod in stage.pods("demo", "head")] == [head["metadata"]["uid"]]

    stage.edit("demo", {"head": {"update": "Recreate"}})
    stage.until("demo", "has another head", lambda: {
        pod["metadata"]["uid"] for pod in stage.pods("demo", "head")
    } - {head["metadata"]["uid"]})  # fmt: skip
    assert ("Normal", "HeadReplacing") in events(stage, "demo"), "announced before"
    (cause,) = stage.await_ready("demo")["causes"]
    assert cause["reason"] == "HeadReplaced" and "all results of the cluster are lost" in cause["message"]
    assert not condition(stage, "demo", "HeadOutdated")

    stage.until("bad", "is stalled", lambda: condition(stage, "bad", "Stalled") == "InvalidSpec")
    assert events(stage, "bad") == [("Warning", "InvalidSpec")]
