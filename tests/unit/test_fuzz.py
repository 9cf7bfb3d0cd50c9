"""Bad inputs: manifests, overlays, state files and wire messages, made by chance. Each is accepted, or refused with an
error for people; none raises anything else. Nothing is half-made: every object of what is accepted can be rendered.

OARS_FUZZ sets the number of inputs. `make test` has 2,000, `make test-all` 100,000. What is damaged is valid before:
otherwise it would be refused for that, and nothing behind the first check would be tried.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from oars import engines
from oars.base import codec
from oars.base.errors import EngineUnreachable, OarsError
from oars.engines.base import checked
from oars.engines.ray.shape import INCARNATION_LABEL, MEMBER_LABEL
from oars.model import HEAD, Autoscale, Desired, LoopState, MemberId
from oars.operator.resources import RESOURCE_KINDS
from oars.places.hosts.messages import HeadState, Hello, HostReport, receive
from oars.places.http import parse_reply
from oars.places.intent import Intent
from oars.places.kube.render import objects
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.sidecar import head_and_owned
from oars.places.kube.state.root import read_intent, report_of
from oars.places.local.host import this_host
from oars.places.local.store import ClusterDir, ClusterRecord
from oars.places.process.ledger import read_ledger
from oars.places.report import Report
from oars.plan.autoscale import Memory
from oars.plan.decide import decide
from oars.plan.desired import build
from oars.plan.scale import scale
from oars.plan.status import status
from oars.plan.why import explain
from oars.service import foreign
from oars.spec import load
from oars.spec.load_job import load_job_text
from oars.spec.status import Phase, Status
from tests.unit.plan.clusters import NOW, desired, head, observe, worker

INPUTS = int(os.environ.get("OARS_FUZZ", "2000"))
JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**70, 1.5, float("inf"), "", "x", "4Gi", "☃", "a" * 300, "$(head.host)", [], {}, [[]],
    {"a": None}, {"": 1}, ["x", 1, None], {"spec": {"containers": "none"}}, "{{}}", "-1", "1e400", "../x", "\x00",
)  # fmt: skip
SPEC: dict[str, Any] = {
    "engine": "dask",
    "replicas": 3,
    "image": "x:1",
    "env": {"A": "1"},
    "head": {"cpu": 1, "memory": "1Gi", "env": {}, "pod": {"spec": {"nodeSelector": {"a": "b"}}}},
    "workers": [{"name": "default", "cpu": 1, "memory": "1Gi", "pod": {"metadata": {}}}],
    "expose": {"type": "ClusterIP", "host": "h.example", "annotations": {"a": "b"}, "clients": {"a": "b"}},
    "lifetime": {"orphaned": "2m"},
    "drain": {"timeout": "60s"},
    "dask": {"protocol": "tls"},
}
FOREIGN = [
    list(yaml.safe_load_all(path.read_text()))
    for path in sorted((Path(__file__).parent / "convert/manifests").glob("*.yaml"))
]
MANIFEST = {"apiVersion": "oars.dev/v1alpha1", "kind": "ComputeCluster", "metadata": {"name": "demo"}, "spec": SPEC}


def damaged(value: Any, rng: random.Random) -> Any:
    """The value with one to three parts replaced, removed, renamed or added."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        target = value
        while isinstance(target, dict | list) and target:
            key: Any = rng.choice(list(target)) if isinstance(target, dict) else rng.randrange(len(target))
            inner = target[key]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
                target = inner
                continue
            kind = rng.random()
            if kind < 0.6:
                target[key] = copy.deepcopy(rng.choice(JUNK))
            elif kind < 0.8 and isinstance(target, dict):
                target[rng.choice(("x", "Spec", " ", "metadata", str(key) + "s"))] = target.pop(key)
            else:
                target.pop(key)
            break
    return value


def text_of(value: Any, rng: random.Random) -> str:
    """As JSON or YAML, sometimes cut or with a character changed."""
    return _cut(json.dumps(value) if rng.random() < 0.7 else yaml.safe_dump(value, allow_unicode=True), rng)


def message_of(value: Any, rng: random.Random) -> str:
    """As JSON, sometimes cut, with a character changed, or nested too deep."""
    return _cut(json.dumps(value), rng) if rng.random() < 0.9 else "[" * 100_000


def _cut(text: str, rng: random.Random) -> str:
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(("", "\x00", "}", "☃", "\t")) + (text[at + 1 :] if rng.random() < 0.5 else "")
    return text


class Refused(Exception):
    """The input was refused, in the way that its reader expects."""


def try_manifest(rng: random.Random, path: Path) -> None:
    load.load_text(text_of(damaged(MANIFEST, rng), rng), "x.yaml", option_model=engines.option_model)


def try_foreign(rng: random.Random, path: Path) -> None:
    """A manifest of another project is converted and valid, or refused. It is damaged anywhere inside."""
    documents = copy.deepcopy(rng.choice(FOREIGN))
    inner = [rng.choice([each["spec"] for each in documents if "spec" in each])]
    for each in inner:
        children = each.values() if isinstance(each, dict) else each
        inner += [child for child in children if isinstance(child, dict | list)]
    target = rng.choice(inner)
    changed = damaged(target, rng)
    if isinstance(target, dict):
        target.clear()
        target |= changed
    else:
        target[:] = changed
    text = yaml.safe_dump_all(documents) if rng.random() < 0.9 else text_of(documents[0], rng)
    foreign.convert_text(text, "x.yaml")


def try_resource(rng: random.Random, path: Path) -> None:
    """As the operator: what it reads, it can also render."""
    spec = damaged(SPEC, rng)
    resource = {"metadata": {"name": "demo", "namespace": "n", "uid": "u", "generation": 1}, "spec": spec}
    render_all(RESOURCE_KINDS[0].desired(resource))


def render_all(desired: Desired) -> None:
    """Nothing is written before the desired state exists, so whatever fails here would leave half a cluster."""
    try:
        head_and_owned(desired, False, 0)
        objects.disruption_budgets(desired)
        for group in desired.shape.workers:
            json.dumps(objects.managed_worker_deployment(desired, group, group.replicas, "demo-worker", "r"))
    except OarsError as error:
        raise AssertionError(f"half-made: {error}") from error


def try_overlay(rng: random.Random, path: Path) -> None:
    overlay = damaged({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "env": []}]}}, rng)
    given = {"engine": "ray", "workers": [{"pod": overlay}], "head": {"pod": overlay}}
    spec = load.build(given, option_model=engines.option_model).spec
    desired = build("demo", spec, engines.get("ray"), DEFAULTS, namespace="n")
    objects.manifests(desired)  # as the operator and clients do before they write anything
    render_all(desired)


JOB: dict[str, Any] = {
    "entrypoint": ["python", "a.py"], "driver": {"cpu": 1, "memory": "1Gi"}, "env": {"A": "1"}, "cluster": SPEC,
    "deadline": "1h", "retries": 2, "backoff": {"first": "2s"}, "retryOn": {"exitCodes": [1, "128-255"]},
    "cleanup": {"policy": "all", "after": {"failed": "5m"}}, "secrets": [{"name": "s", "key": "k", "as": "E"}],
}  # fmt: skip


def try_job(rng: random.Random, path: Path) -> None:
    manifest = {"apiVersion": "oars.dev/v1alpha1", "kind": "ComputeJob", "metadata": {"name": "demo"}, "spec": JOB}
    load_job_text(text_of(damaged(manifest, rng), rng), "x.yaml", {}, option_model=engines.option_model)


def try_record(rng: random.Random, path: Path) -> None:
    """A local cluster's own files."""
    directory = ClusterDir(path.parent)
    desired = build("demo", load.build({"engine": "toy", "workers": 1}).spec, engines.get("toy"), DEFAULTS)
    record = ClusterRecord("demo", Intent(SPEC), desired, "/usr/bin/python", "mark", 1.0, this_host())
    report = Report(Status("demo", "toy", "local", Phase.READY), ())
    directory.record_file.write_text(text_of(damaged(codec.dump(record), rng), rng))
    directory.report_file.write_text(text_of(damaged(codec.dump(report), rng), rng))
    directory.read_report()
    directory.read()


MEMBER = {"id": "worker-0", "role": "worker", "group": "default", "state": "Running", "incarnation": "1"}
MESSAGES: tuple[tuple[type[Any], dict[str, Any]], ...] = (
    (Hello, {"token": "t", "name": "b", "instance": "i", "protocol": 1}),
    (HostReport, {"members": [MEMBER], "addresses": {"worker-0": {"a": "1"}}, "heads": {"worker-0": "k"}}),
    (HeadState, {"spec": SPEC, "head": {"key": "k", "state": "Running", "host": "h", "ports": {"a": 1}}, "views": {}}),
)


def try_host_message(rng: random.Random, path: Path) -> None:
    """What a machine of a cluster receives from another one."""
    kind, message = rng.choice(MESSAGES)
    line = f"{message_of(damaged(message, rng), rng)}\n".encode()

    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(line)
        reader.feed_eof()
        await receive(reader, kind)

    try:
        asyncio.run(read())
    except (ValueError, ConnectionError) as error:  # what both sides expect
        raise Refused from error


class DamagedWire:
    """A head whose replies are damaged. `to_drain`: that of a helper to a drain, if it is another one."""

    def __init__(self, reply: Any, rng: random.Random, to_drain: Any = None) -> None:
        self.reply, self._rng, self._to_drain = reply, rng, to_drain
        head = {"client": "127.0.0.1:1", "dashboard": "127.0.0.1:2", "supervisor": "127.0.0.1:3", "web": "127.0.0.1:4"}
        self.addresses = {HEAD: head, MemberId("worker-0"): {"worker": "127.0.0.1:10"}}
        self.incarnations = {HEAD: "1", MemberId("worker-0"): "2"}

    def fill(self, text: str) -> str:
        return text

    async def http(self, *_: object, **__: object) -> bytes:
        return text_of(damaged(self.reply, self._rng), self._rng).encode()

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = 0.0) -> Any:
        is_drain = self._to_drain is not None and request.get("op") == "drain"
        return damaged(self._to_drain if is_drain else self.reply, self._rng)


DEMAND = [{"needs": {"cpu": 1}, "count": 3, "running": 1, "seconds": 0.5}]
NODE = {"address": "127.0.0.1:10", "idle": 1.0, "held": 3}
RAYLETS = [
    {**NODE, "node": member, "labels": {MEMBER_LABEL: member, INCARNATION_LABEL: number}}
    for member, number in (("head", "1"), ("worker-0", "2"))
]
WORKER = {"name": "worker-0", "address": "tls://h:9", "status": "running", "idle": 1.5, "held": 3, "incarnation": "2"}
NODES = {
    f"127.0.0.1:{port}": {"identity": identity, "status": "READY", "age": 0.5, "idle": 1.0, "held": 3}
    for port, identity in ((3, "head:1"), (10, "worker-0:2"))
}
LOOKS: dict[str, Any] = {
    "dask": {"address": "tls://127.0.0.1:1", "workers": [{**WORKER, "pinned": False}], "demand": DEMAND},
    "ray": {"nodes": RAYLETS, "demand": DEMAND},
    "mars": {"nodes": NODES, "demand": DEMAND},
}


def try_look(rng: random.Random, path: Path) -> None:
    """What an engine reports, a pass can use."""
    name = rng.choice(list(LOOKS))
    view = asyncio.run(engines.get(name).look(DamagedWire(LOOKS[name], rng)))
    try:
        checked(view)
    except ValueError as error:  # what the loop expects
        raise Refused from error
    shape = desired(2).shape
    group = replace(shape.workers[0], min=0, max=9)
    wanted = replace(desired(2), shape=replace(shape, workers=(group,)), autoscale=Autoscale(enabled=True))
    observed = observe(head(), worker(0), worker(1), worker(2))
    scaled = scale(wanted, observed, view, Memory(), NOW)
    decision = decide(scaled.desired, replace(observed, state=scaled.state), view, NOW)
    observed = replace(observed, state=decision.state)
    json.dumps(codec.dump(status(scaled.desired, observed, view, explain(scaled.desired, observed, view), {})))
    if not view.up:
        raise Refused


def try_drain(rng: random.Random, path: Path) -> None:
    """A worker that has not answered is not removed: the outcome is the engine's own, or an error."""
    name = rng.choice(("dask", "ray", "mars"))
    member, refused = MemberId("worker-0"), {"outcome": "refused", "reason": "data"}
    replies = {"dask": {"worker-0": refused}, "ray": LOOKS["ray"], "mars": {"127.0.0.1:10": refused}}
    wire = DamagedWire(replies[name], rng, {"worker-0": False} if name == "ray" else None)
    asyncio.run(engines.get(name).drain(wire, [member], 1.0, False))


def try_intent(rng: random.Random, path: Path) -> None:
    data = damaged({"cluster.json": codec.dump(Intent(SPEC)), "report.json": {"status": {}, "causes": []}}, rng)
    root = {"metadata": {"name": "demo-oars", "namespace": "n"}}
    root["data"] = {str(key): text_of(value, rng) for key, value in data.items()}
    report_of(root)
    read_intent(root)


def try_state(rng: random.Random, path: Path) -> None:
    state = {"retiring": {"a": {"since": 1.0, "drained": True}}, "head": "x", "head_epoch": 2, "failures": {}}
    try:
        codec.load(LoopState, json.loads(text_of(damaged(state, rng), rng)))
    except ValueError as error:  # what readers of state expect
        raise Refused from error


def try_ledger(rng: random.Random, path: Path) -> None:
    entry = {"id": "worker-0", "group": "default", "role": "worker", "incarnation": 1, "pid": 3, "ports": {"a": 1}}
    ledger = {"entries": {"worker-0": entry}, "state": {"head": "1"}, "incarnations": 3}
    path.write_text(text_of(damaged(ledger, rng), rng))
    read_ledger(path)


def try_reply(rng: random.Random, path: Path) -> None:
    parse_reply(text_of(damaged({"ok": {"workers": [{"id": 1}]}}, rng), rng).encode(), "the head")


KINDS: tuple[Callable[[random.Random, Path], None], ...] = (
    try_manifest, try_foreign, try_resource, try_overlay, try_intent, try_state, try_ledger, try_reply, try_job,
    try_record, try_host_message, try_look, try_drain,
)  # fmt: skip


def accepts(kind: Callable[[random.Random, Path], None], seed: int, path: Path) -> bool:
    """False: the input was refused, and people or its reader know why. Raises anything else."""
    try:
        kind(random.Random(seed), path)
    except (OarsError, EngineUnreachable) as error:
        assert error.message, seed
        return False
    except Refused:
        return False
    return True


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_bad_input_is_refused_with_an_error_for_people(
    kind: Callable[[random.Random, Path], None], tmp_path: Path
) -> None:
    for seed in range(INPUTS // len(KINDS)):
        try:
            accepts(kind, seed, tmp_path / "file")
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_input_is_accepted_as_long_as_it_is_not_damaged(
    kind: Callable[[random.Random, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "damaged", lambda value, _: copy.deepcopy(value))
    for name in ("text_of", "message_of"):
        monkeypatch.setitem(globals(), name, lambda value, _: json.dumps(value))
    for seed in range(20):
        assert accepts(kind, seed, tmp_path / "file"), seed
