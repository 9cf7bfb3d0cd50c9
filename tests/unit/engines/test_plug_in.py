"""The toy plug-in engine through everything that needs no process: diff, render, why, CRD, option checks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from oars import engines
from oars.base.errors import EngineUnreachable, SpecError
from oars.engines.base import drain_outcomes
from oars.engines.ray.shape import INCARNATION_LABEL, MEMBER_LABEL
from oars.model import (
    HEAD,
    Desired,
    DrainOutcome,
    Failure,
    LoopState,
    Member,
    MemberId,
    MemberState,
    Observed,
    Role,
    View,
)
from oars.operator import crd
from oars.places.kube.render.changes import Version, compare
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.objects import manifests
from oars.places.kube.why.deaths import explain_pod_log
from oars.plan import desired as plan
from oars.plan.changes import Effect
from oars.plan.why import explain
from oars.spec.load import build, dump

toy = engines.get("toy")


def version(**spec: Any) -> Version:
    checked = build({"engine": "toy", **spec}, option_model=engines.option_model).spec
    return Version(checked, plan.build("demo", checked, toy, DEFAULTS, namespace="ns"))


def desired(**spec: Any) -> Desired:
    return version(**spec).desired


def test_diff_refuses_a_change_of_an_immutable_option() -> None:
    (change,) = compare(version(), version(toy={"wireFormat": "text"}))
    assert change.effect is Effect.REFUSED
    assert change.message == "toy.wireFormat cannot change: running members use the old one."
    assert change.lines == ("toy.wireFormat: json → text",)
    assert compare(version(), version(toy={"wireFormat": "json"})) == ()


def test_diff_of_another_option_replaces_workers() -> None:
    assert [change.effect for change in compare(version(), version(toy={"crash": "1"}))] == [Effect.ROLLED]


def test_render_exposes_the_dashboard_port() -> None:
    objects = {each["kind"]: each for each in manifests(desired(expose={"host": "demo.example"}))}
    (path,) = objects["Ingress"]["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"]["port"]["number"] == 7002


def test_why_uses_the_engine_s_log_patterns() -> None:
    shape = desired().shape
    lines = ("starting", "toy: worker worker-0 gave up")
    meaning = explain_pod_log(lines, shape.log_patterns, "ns")
    assert meaning is not None and meaning.meaning == "worker worker-0 gave up"
    worker = MemberId("worker-0")
    members = (
        Member(HEAD, Role.HEAD, "head", MemberState.RUNNING),
        Member(worker, Role.WORKER, "default", MemberState.EXITED),
    )
    state = LoopState(failures={worker: Failure(1, 0.0, 0.0, "1", "exited with code 1", lines)})
    (cause, *_) = explain(Desired("demo", "toy", "local", shape), Observed(members, state), View(up=True))
    assert "worker worker-0 gave up" in cause.message and cause.hint == "Play with it less."


def test_crd_has_the_engine_s_block() -> None:
    schema = crd.spec_schema()
    block = schema["properties"]["toy"]
    assert block["properties"]["wireFormat"]["enum"] == ["json", "text"]
    assert block["properties"]["items"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": "Items that every worker starts with.",
    }
    rules = [each for each in schema["x-kubernetes-validations"] if "toy.wireFormat" in each["message"]]
    assert len(rules) == 1 and 'self.toy.wireFormat : "json"' in rules[0]["rule"]
    assert "toy" not in crd.spec_schema(engines.BUILT_IN)["properties"]


def test_block_is_kept_under_the_engine_s_name() -> None:
    manifest = build({"engine": "toy", "toy": {"wire_format": "text"}}, option_model=engines.option_model)
    assert dump(manifest)["spec"] == {"engine": "toy", "toy": {"wireFormat": "text"}}
    assert build(dump(manifest), option_model=engines.option_model) == manifest


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"toy": {"wireFormat": "jsn"}}, "spec.toy.wireFormat is 'jsn', which is not one of json, text; did you mean"),
        ({"toy": {"crsh": "1"}}, "spec.toy.crsh is not a known field; did you mean 'crash'?"),
        ({"toy": 3}, "spec.toy must be a mapping of fields, not 3."),
        ({"ty": {}}, "spec.ty is not a known field; did you mean 'toy'?"),
        ({"options": {"crash": "1"}}, "spec.options is not read by the engine 'toy'."),
        ({"dask": {"protocol": "tls"}, "toy": {"crash": 1}}, "spec.toy.crash must be text, not 1; put it in quotes."),
    ],
)
def test_wrong_options_are_explained(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        build({"engine": "toy", **spec}, option_model=engines.option_model)
    assert caught.value.message.startswith(message)


def test_blocks_of_other_engines_are_checked_and_left_out() -> None:
    """One file may describe the cluster for several engines, of which `--engine` chooses one."""
    data = {"engine": "toy", "toy": {"crash": "1"}, "ray": {"auth": "none"}}
    manifest = build(data, option_model=engines.option_model)
    assert dump(manifest)["spec"] == {"engine": "toy", "toy": {"crash": "1"}}
    with pytest.raises(SpecError, match=r"^spec\.ray\.auht is not a known field"):
        build({**data, "ray": {"auht": "none"}}, option_model=engines.option_model)


def test_engine_without_a_model_reads_options() -> None:
    """The engine for simulated pods."""
    spec = build({"engine": "simulated", "options": {"a": 1}}, option_model=engines.option_model).spec
    assert spec.options == {"a": 1}
    with pytest.raises(SpecError, match="the engine 'simulated' has no block"):
        build({"engine": "simulated", "simulated": {"a": 1}}, option_model=engines.option_model)


def test_engine_checks_options_that_were_not_checked_when_loaded() -> None:
    spec = build({"engine": "toy", "toy": {"crsh": "1"}}).spec
    with pytest.raises(SpecError, match="did you mean 'crash'"):
        toy.check(spec)


class ReadOnlyWire:
    """Replies to every request, and fails on requests that could change the head."""

    READ_ONLY = ("look",)

    def __init__(self, replies: Mapping[str, Any]) -> None:
        self.replies = replies
        self.addresses = {HEAD: {"client": "127.0.0.1:1", "dashboard": "127.0.0.1:2"}}
        self.incarnations = {HEAD: "1", MemberId("worker-0"): "2"}
        self.requests = 0

    def fill(self, text: str) -> str:
        return text

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        assert method == "GET" and not body
        self.requests += 1
        return json.dumps(self.replies[path]).encode()

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = 120.0) -> Any:
        assert request["op"] in self.READ_ONLY
        self.requests += 1
        return self.replies[request["op"]]


NODE = {"status": "READY", "age": 0.1, "idle": 0.0, "held": 0}
WORKER = {
    "name": "worker-0",
    "address": "tcp://127.0.0.1:9",
    "status": "running",
    "idle": 0.0,
    "held": 0,
    "pinned": False,
}
LABELS = {MEMBER_LABEL: "head", INCARNATION_LABEL: "1"}
MARS_NODES = {"a:1": {"identity": "head:1", **NODE}, "a:2": {"identity": "worker-0:1", **NODE}}
REPLIES: dict[str, Mapping[str, Any]] = {
    "dask": {
        "/oars/members.json": {
            "address": "tls://127.0.0.1:1",
            "workers": [{**WORKER, "incarnation": "2"}],
            "demand": [],
        }
    },
    "ray": {"look": {"nodes": [{"node": "x", "labels": LABELS, "address": "127.0.0.1:1"}], "demand": []}},
    # The old incarnation of worker-0 is a record that reconcile would correct.
    "mars": {"/api/oars/nodes": {"nodes": MARS_NODES, "demand": []}},
    "toy": {"/workers": {"worker-0": {"address": "a:1", "items": [], "incarnation": "1"}}},
}


@pytest.mark.parametrize("engine", REPLIES)
def test_look_never_writes(engine: str) -> None:
    wire = ReadOnlyWire(REPLIES[engine])
    assert asyncio.run(engines.get(engine).look(wire)).up
    assert wire.requests == 1


def test_drain_outcomes_of_current_and_older_heads() -> None:
    reply: dict[str, Any] = {
        "a": {"outcome": "moved"}, "b": {"outcome": "refused", "reason": "a task"}, "c": "", "d": "2 results"
    }  # fmt: skip
    assert drain_outcomes(reply, "abcd", "") == {
        "a": (DrainOutcome.MOVED, ""),
        "b": (DrainOutcome.REFUSED, "a task"),
        "c": (DrainOutcome.FINISHED, ""),
        "d": (DrainOutcome.REFUSED, "2 results"),
    }


@pytest.mark.parametrize(
    "reply",
    [
        None,
        [],
        "finished",
        {"stranger": ""},
        {"a": 1},
        {"a": {}},
        {"a": {"outcome": "gone"}},
        {"a": {"outcome": "refused"}},
        {"a": {"outcome": "moved", "reason": "a task"}},
        {"a": {"outcome": "refused", "reason": 3}},
    ],
)
def test_reply_that_is_not_the_head_s_own_drains_nobody(reply: object) -> None:
    with pytest.raises(EngineUnreachable, match="no drain"):
        drain_outcomes(reply, "a", "no drain")
