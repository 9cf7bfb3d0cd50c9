"""What another description would change, for `oars diff` and `oars apply`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from oars import engines
from oars.base.errors import NotFound, SpecError
from oars.cli import lookup
from oars.client.backends import Where
from oars.places.kube.render.changes import Change, Effect, compare, lines_between
from oars.places.kube.render.describe import describe

if TYPE_CHECKING:
    from oars.client.backend import Backend
    from oars.spec.cluster import ClusterSpec

PAINT = {Effect.HEAD: "red", Effect.REFUSED: "red", Effect.ROLLED: "yellow", Effect.DRAINED: "yellow"}


@dataclass(frozen=True)
class Found:
    """A running cluster and what the new description changes in it. home None: there is no such cluster yet."""

    home: Backend | None
    changes: tuple[Change, ...]


async def look(name: str, spec: ClusterSpec, where: Where) -> Found:
    """The caller closes the home."""
    try:
        home = await lookup.find(name, whereabouts(name, spec, where))
    except NotFound:
        return Found(None, (_new(name, spec),))
    try:
        return Found(home, await _between(home, name, spec))
    except BaseException:
        await home.close()
        raise


def whereabouts(name: str, spec: ClusterSpec, where: Where) -> Where:
    """Where to look, by options and description. A description that says local may have said nothing."""
    namespace = spec.namespace_for(name, where.namespace)
    far = spec.place == "kubernetes" or bool(namespace)
    return replace(where, place=where.place or ("kubernetes" if far else None), namespace=namespace)


def _new(name: str, spec: ClusterSpec) -> Change:
    groups = ", ".join(f"{group.name} {group.replicas}" for group in spec.workers)
    return Change(Effect.ADDED, f"The cluster {name!r} is new, with a head and workers: {groups}.")


async def _between(home: Backend, name: str, spec: ClusterSpec) -> tuple[Change, ...]:
    before = await home.spec(name)
    kube = lookup.in_kubernetes(home)
    if kube is None:
        return tuple(on_this_machine(before, spec))
    engine = engines.get(spec.engine)
    namespace = kube.namespace_of(name)
    old = describe(name, namespace, before, engines.get(before.engine))
    return compare(old, describe(name, namespace, spec, engine))


def on_this_machine(before: ClusterSpec, after: ClusterSpec) -> list[Change]:
    """Only numbers of workers can follow. Memory that is not said was chosen when the cluster was made."""
    old, new = _plain(before), _plain(after)
    for group in new["workers"]:
        chosen: dict[str, Any] = next((each for each in old["workers"] if each["name"] == group["name"]), {})
        group["memory"] = group["memory"] or chosen.get("memory")
    new["head"]["memory"] = new["head"]["memory"] or old["head"]["memory"]
    numbers = {group["name"]: (group.pop("replicas"), 0) for group in old["workers"]}
    numbers = {g["name"]: (numbers.get(g["name"], (0, 0))[0], g.pop("replicas")) for g in new["workers"]}
    if old != new:
        sentence = "On this machine only the numbers of workers can change; for the rest stop it and start it anew."
        return [Change(Effect.REFUSED, sentence, lines_between(old, new))]
    return [_number(name, was, shall) for name, (was, shall) in numbers.items() if was != shall]


def _plain(spec: ClusterSpec) -> dict[str, Any]:
    """Without what says nothing about a cluster of this machine."""
    left_out = {"place", "image", "replicas", "namespace", "expose", "lifetime", "min_ready"}
    return spec.model_dump(mode="json", exclude=left_out)


def _number(name: str, was: int, shall: int) -> Change:
    effect = Effect.ADDED if shall > was else Effect.DRAINED
    return Change(effect, f"The group {name!r} changes from {was} to {shall} workers.")


def text(name: str, changes: Sequence[Change]) -> str:
    if not changes:
        return f"{name} is as described."
    return "\n".join([f"{name}:", *(line for change in changes for line in _lines(change))])


def _lines(change: Change) -> list[str]:
    effect = click.style(f"{change.effect}:", fg=PAINT.get(change.effect, "green"))
    return [f"  {effect} {change.message}", *(f"      {line}" for line in change.lines)]


def check(name: str, changes: Sequence[Change]) -> None:
    refused = [change for change in changes if change.effect is Effect.REFUSED]
    if refused:
        details = tuple(line for change in refused for line in change.lines)
        hint = f"Stop it with `oars down {name}` and start it anew, or give the new one another name."
        raise SpecError(refused[0].message, hint, details)
