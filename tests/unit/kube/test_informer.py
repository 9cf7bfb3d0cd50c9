"""Informer behaviour, with a client that returns scripted lists and watches."""

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
    """A client whose lists and watches return the given steps in turn. Exceptions are raised. After the last step it
    blocks."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.requests: list[str] = []
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
        self.requests.append("list")
        version, *items = await self.next()
        return Listing(items, str(version))

    async def watch(self, *_: object, resource_version: str, **__: object) -> AsyncIterator[tuple[str, Object]]:
        self.requests.append(resource_version)
        for event in await self.next():
            if isinstance(event, Exception):
                raise event
            yield event


def replay(*steps: Any, **options: Any) -> tuple[Script, Informer, list[tuple[str, str]]]:
    """Run an informer through the script; return the calls of its callback as (name, change)."""
    changes: list[tuple[str, str]] = []

    def on_change(key: Key, old: Object | None, new: Object | None) -> None:
        changes.append((key[1], "new" if old is None else "deleted" if new is None else "changed"))

    async def body() -> tuple[Script, Informer]:
        script = Script(*steps)
        informer = Informer(cast("Client", script), POD, "n", on_change=on_change, **options)
        task = asyncio.create_task(informer.run())
        await asyncio.wait(
            [task, asyncio.create_task(script.done.wait())], return_when=asyncio.FIRST_COMPLETED, timeout=60
        )
        if task.done():
            task.result()
        task.cancel()
        return script, informer

    return *asyncio.run(body()), changes


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "FIRST_DELAY", 0.001)


BROKEN = Unreachable("cut")
OLD = ApiError(410, {})


def test_list_then_watch() -> None:
    events = [("ADDED", pod("b", 2)), ("MODIFIED", pod("a", 3)), ("DELETED", pod("b", 4))]
    script, informer, changes = replay((1, pod("a", 1)), events)
    assert changes == [("a", "new"), ("b", "new"), ("a", "changed"), ("b", "deleted")]
    assert list(informer.objects) == [("n", "a")] and informer.synced.is_set()
    assert script.requests == ["list", "1", "4"], "the next watch starts where the last one ended"


def test_bookmark_updates_only_the_resource_version() -> None:
    script, _, changes = replay((1,), [("BOOKMARK", {"metadata": {"resourceVersion": "9"}}), BROKEN])
    assert (script.requests, changes) == (["list", "1", "9"], [])


def test_relist_after_410_reports_missed_changes() -> None:
    first = (1, pod("a", 1), pod("b", 1), pod("c", 1))
    script, informer, changes = replay(first, [OLD], (9, pod("a", 1), pod("b", 5), pod("d", 6)))
    assert changes[3:] == [("c", "deleted"), ("b", "changed"), ("d", "new")], "unchanged objects are not reported"
    assert script.requests == ["list", "1", "list", "9"]
    assert {key[1] for key in informer.objects} == {"a", "b", "d"}


def test_informer_recovers_from_all_failures() -> None:
    denied = ApiError(403, {})
    script, informer, changes = replay(
        BROKEN, denied, OLD, (1, pod("a", 1)), [BROKEN], denied, [("ADDED", pod("b", 2))]
    )
    assert [name for name, _ in changes] == ["a", "b"]
    assert script.requests[:4] == ["list"] * 4 and script.requests[4:7] == ["1", "1", "1"]
    assert informer.synced.is_set()


def test_repeatedly_rejected_watch_causes_a_relist() -> None:
    rejected = ApiError(400, {})
    script, _, _ = replay((1,), [rejected], [rejected], [rejected], (5,))
    assert script.requests == ["list", "1", "1", "1", "list", "5"]


def test_transform_is_applied_before_caching() -> None:
    _, informer, _ = replay((1, pod("a", 1)), transform=lambda obj: {"metadata": {"name": obj["metadata"]["name"]}})
    assert informer.objects == {("n", "a"): {"metadata": {"name": "a"}}}


def test_error_in_transform_is_raised() -> None:
    def broken(obj: Object) -> Object:
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        replay((1, pod("a", 1)), transform=broken)


def test_backoff_grows_up_to_a_maximum() -> None:
    async def body() -> list[float]:
        informer = Informer(cast("Client", None), POD)
        delays = []
        for failures in (1, 5, 100):
            informer._failures = failures
            delays.append(informer._backoff())
        return delays

    first, later, last = asyncio.run(body())
    assert first < later and last <= informers.MAX_DELAY


# Waiting for the first list


FORBIDDEN = ApiError(403, {"message": 'User "ann" cannot list resource "pods" in API group "" in the namespace "n"'})


def wait_for_lists(*scripts: Script, seconds: float = 5.0) -> list[Informer]:
    """Run one informer per script until all are synced; raise what the waiting caller gets."""

    async def body() -> list[Informer]:
        started = [Informer(cast("Client", script), POD, "n") for script in scripts]
        tasks = [asyncio.create_task(each.run()) for each in started]
        try:
            await asyncio.wait_for(informers.wait_all_synced(started, seconds), 4)
        finally:
            for task in tasks:
                task.cancel()
        return started

    return asyncio.run(body())


def test_error_is_kept_until_the_next_success() -> None:
    _, failing, _ = replay(BROKEN, FORBIDDEN)
    assert failing.error is FORBIDDEN
    _, listed, _ = replay(BROKEN, (1, pod("a", 1)))
    assert listed.error is None
    _, cut, _ = replay((1, pod("a", 1)), [BROKEN])
    assert cut.error is BROKEN
    _, watched, _ = replay((1, pod("a", 1)), [BROKEN], [("ADDED", pod("b", 2))])
    assert watched.error is None


def test_waiting_for_sync_raises_a_denied_request_at_once() -> None:
    with pytest.raises(ApiError) as raised:
        wait_for_lists(Script((1, pod("a", 1))), Script(BROKEN, FORBIDDEN), seconds=60)
    assert raised.value is FORBIDDEN


def test_waiting_for_sync_tolerates_transient_errors() -> None:
    found = wait_for_lists(Script(BROKEN, ApiError(500, {}), (1, pod("a", 1))), Script((1,)))
    assert [len(each.objects) for each in found] == [1, 0]


@pytest.mark.parametrize(("steps", "message"), [([BROKEN], "within 0 s: cut."), ([], "within 0 s.")])
def test_timeout_waiting_for_sync_reports_the_last_error(steps: list[Any], message: str) -> None:
    with pytest.raises(OarsError, match="The API server did not list pods") as late:
        wait_for_lists(Script(*steps), seconds=0.4)
    assert late.value.message.endswith(message)
