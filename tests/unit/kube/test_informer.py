"""The informer's own thinking, with a client that plays lists and watches from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from oars.base.errors import OarsError
from oars.kube import informer as informers
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError, Unreachable
from oars.kube.informer import Informer, Key
from oars.kube.kinds import POD, Object


def pod(name: str, version: int) -> Object:
    return {"metadata": {"namespace": "n", "name": name, "resourceVersion": str(version), "uid": "u"}}


class Script:
    """Lists and watches in turn; what is an exception is raised. At the end it waits for ever."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.asked: list[str] = []
        self.done = asyncio.Event()

    async def next(self) -> Any:
        if not self.steps:
            self.done.set()
            await asyncio.Event().wait()
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    async def list(self, *_: object, **__: object) -> Listing:
        self.asked.append("list")
        version, *items = await self.next()
        return Listing(items, str(version))

    async def watch(self, *_: object, resource_version: str, **__: object) -> AsyncIterator[tuple[str, Object]]:
        self.asked.append(resource_version)
        for event in await self.next():
            if isinstance(event, Exception):
                raise event
            yield event


def play(*steps: Any, **options: Any) -> tuple[Script, Informer, list[tuple[str, str]]]:
    """Run an informer through the script; returns what it was told in the words of its callback."""
    told: list[tuple[str, str]] = []

    def changed(key: Key, old: Object | None, new: Object | None) -> None:
        told.append((key[1], "new" if old is None else "gone" if new is None else "changed"))

    async def body() -> tuple[Script, Informer]:
        script = Script(*steps)
        informer = Informer(cast("Client", script), POD, "n", changed=changed, **options)
        task = asyncio.create_task(informer.run())
        await asyncio.wait(
            [task, asyncio.create_task(script.done.wait())], return_when=asyncio.FIRST_COMPLETED, timeout=5
        )
        if task.done():
            task.result()
        task.cancel()
        return script, informer

    return *asyncio.run(body()), told


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "FIRST_WAIT", 0.001)


BROKEN = Unreachable("cut")
OLD = ApiError(410, {})


def test_list_then_watch() -> None:
    events = [("ADDED", pod("b", 2)), ("MODIFIED", pod("a", 3)), ("DELETED", pod("b", 4))]
    script, informer, told = play((1, pod("a", 1)), events)
    assert told == [("a", "new"), ("b", "new"), ("a", "changed"), ("b", "gone")]
    assert list(informer.objects) == [("n", "a")] and informer.synced.is_set()
    assert script.asked == ["list", "1", "4"], "an ended watch goes on where it was"


def test_bookmarks_move_the_version_only() -> None:
    script, _, told = play((1,), [("BOOKMARK", {"metadata": {"resourceVersion": "9"}}), BROKEN])
    assert (script.asked, told) == (["list", "1", "9"], [])


def test_after_410_what_went_meanwhile_is_told() -> None:
    first = (1, pod("a", 1), pod("b", 1), pod("c", 1))
    script, informer, told = play(first, [OLD], (9, pod("a", 1), pod("b", 5), pod("d", 6)))
    assert told[3:] == [("c", "gone"), ("b", "changed"), ("d", "new")], "and what did not change is not"
    assert script.asked == ["list", "1", "list", "9"]
    assert {key[1] for key in informer.objects} == {"a", "b", "d"}


def test_failures_of_any_kind_are_survived() -> None:
    refused = ApiError(403, {})
    script, informer, told = play(BROKEN, refused, OLD, (1, pod("a", 1)), [BROKEN], refused, [("ADDED", pod("b", 2))])
    assert [name for name, _ in told] == ["a", "b"]
    assert script.asked[:4] == ["list"] * 4 and script.asked[4:7] == ["1", "1", "1"]
    assert informer.synced.is_set()


def test_a_watch_that_is_refused_again_and_again_leads_to_a_list() -> None:
    wrong = ApiError(400, {})
    script, _, _ = play((1,), [wrong], [wrong], [wrong], (5,))
    assert script.asked == ["list", "1", "1", "1", "list", "5"]


def test_keep_trims() -> None:
    _, informer, _ = play((1, pod("a", 1)), keep=lambda obj: {"metadata": {"name": obj["metadata"]["name"]}})
    assert informer.objects == {("n", "a"): {"metadata": {"name": "a"}}}


def test_a_fault_of_the_callback_is_not_hidden() -> None:
    def broken(obj: Object) -> Object:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        play((1, pod("a", 1)), keep=broken)


def test_the_wait_grows_and_is_capped() -> None:
    async def body() -> list[float]:
        informer = Informer(cast("Client", None), POD)
        waits = []
        for failures in (1, 5, 100):
            informer._failures = failures
            waits.append(informer._wait())
        return waits

    first, later, last = asyncio.run(body())
    assert first < later and last <= informers.LONGEST_WAIT


# those who wait for the first list


FORBIDDEN = ApiError(403, {"message": 'User "ann" cannot list resource "pods" in API group "" in the namespace "n"'})


def wait_for_lists(*scripts: Script, seconds: float = 5.0) -> list[Informer]:
    """Run an informer per script until all have listed, or raise what whoever waits is told."""

    async def body() -> list[Informer]:
        started = [Informer(cast("Client", script), POD, "n") for script in scripts]
        tasks = [asyncio.create_task(each.run()) for each in started]
        try:
            await asyncio.wait_for(informers.await_synced(started, seconds), 4)
        finally:
            for task in tasks:
                task.cancel()
        return started

    return asyncio.run(body())


def test_the_last_error_is_kept_until_something_goes_right() -> None:
    _, failing, _ = play(BROKEN, FORBIDDEN)
    assert failing.error is FORBIDDEN
    _, listed, _ = play(BROKEN, (1, pod("a", 1)))
    assert listed.error is None
    _, cut, _ = play((1, pod("a", 1)), [BROKEN])
    assert cut.error is BROKEN
    _, watched, _ = play((1, pod("a", 1)), [BROKEN], [("ADDED", pod("b", 2))])
    assert watched.error is None


def test_whoever_waits_for_lists_hears_of_a_missing_right_at_once() -> None:
    with pytest.raises(ApiError) as told:
        wait_for_lists(Script((1, pod("a", 1))), Script(BROKEN, FORBIDDEN), seconds=60)
    assert told.value is FORBIDDEN


def test_whoever_waits_for_lists_outlasts_other_trouble() -> None:
    found = wait_for_lists(Script(BROKEN, ApiError(500, {}), (1, pod("a", 1))), Script((1,)))
    assert [len(each.objects) for each in found] == [1, 0]


@pytest.mark.parametrize(("steps", "told"), [([BROKEN], "within 0 s: cut."), ([], "within 0 s.")])
def test_a_wait_for_lists_that_is_too_long_tells_the_last_error(steps: list[Any], told: str) -> None:
    with pytest.raises(OarsError, match="The API server did not list pods") as late:
        wait_for_lists(Script(*steps), seconds=0.1)
    assert late.value.message.endswith(told)
