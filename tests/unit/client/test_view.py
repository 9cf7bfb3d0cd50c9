"""The view of a cluster in a notebook: its controls act on the cluster, and it keeps no cluster alive."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from oars import AsyncCluster
from oars.base.errors import NotFound
from oars.client.view import WIDGET, View, bundle
from oars.engines.base import Access
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.status import GroupStatus, MemberStatus, Phase, Status

SPEC = ClusterSpec.model_validate({"engine": "toy", "workers": [{"replicas": 2}, {"name": "big", "replicas": 0}]})
MEMBERS = tuple(MemberStatus(name, name.split("-")[0], "default", Phase.READY) for name in ("head", "worker-0"))


class Handle:
    """A cluster in memory."""

    name, namespace, host = "demo", "", ""

    def __init__(self, spec: ClusterSpec = SPEC) -> None:
        self.current: ClusterSpec | None = spec
        self.number = 1

    async def spec(self) -> ClusterSpec:
        assert self.current is not None
        return self.current

    def sized(self, spec: ClusterSpec) -> ClusterSpec:
        return spec

    async def generation(self) -> int:
        return self.number

    async def report(self, timeout: float | None = None) -> Report:  # noqa: ASYNC109 (as ClusterHandle)
        if self.current is None:
            raise NotFound("There is no cluster 'demo'.")
        groups = tuple(GroupStatus(g.name, g.replicas, g.replicas, g.min, g.max) for g in self.current.workers)
        status = Status("demo", "toy", "local", Phase.READY, groups=groups, members=MEMBERS, generation=self.number)
        return Report(status)

    def last_report(self) -> None:
        return None

    async def change(self, change: Any, *, force: bool = False) -> None:
        assert self.current is not None
        self.current, self.number = change(self.current), self.number + 1

    def access(self) -> Access:
        return Access("demo", "toy", "tcp://h:1", "http://h:2/status", {})

    async def members(self) -> list[str]:
        return [member.id for member in MEMBERS]

    async def logs(self, member: str, options: Any) -> Any:
        yield f"<{member}> starts"


class Shown:
    """A view and what its controls start."""

    def __init__(self, spec: ClusterSpec = SPEC) -> None:
        self.handle = Handle(spec)
        self.cluster = AsyncCluster(spec, name="demo")
        self.cluster._handle = self.handle  # type: ignore[assignment]
        self.started: list[Coroutine[Any, Any, None]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.view = View(self.cluster, self.submit)
        self.parts = {each.description: each for each in inside(self.view.widget) if getattr(each, "description", "")}

    def submit(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.append(task)
        return task

    async def finish(self) -> None:
        await asyncio.gather(*self.tasks)
        self.tasks.clear()

    def group(self, index: int = 0) -> Any:
        assert self.handle.current is not None
        return self.handle.current.workers[index]


def inside(widget: Any) -> list[Any]:
    """The widget and all that it contains."""
    return [widget, *(each for child in getattr(widget, "children", ()) for each in inside(child))]


def test_buttons_scale_and_adapt_the_cluster() -> None:
    async def body() -> None:
        shown = Shown()
        await shown.cluster._refresh(1.0)
        shown.parts["Workers"].value = 4
        shown.parts["Scale"].click()
        await shown.finish()
        assert shown.group().replicas == 4 and "4/4 workers ready" in shown.view._state.value

        shown.parts["Minimum"].value, shown.parts["Maximum"].value = 1, 7
        shown.parts["Adapt"].click()
        await shown.finish()
        assert (shown.group().min, shown.group().max) == (1, 7) and "1–7" in shown.view._state.value
        shown.parts["Stop adapting"].click()
        await shown.finish()
        assert (shown.group().max, shown.group().replicas) == (None, 4)

        shown.parts["Group"].value, shown.parts["Workers"].value = "big", 1
        shown.parts["Scale"].click()
        await shown.finish()
        assert (shown.group(0).replicas, shown.group(1).replicas) == (4, 1)

    asyncio.run(body())


def test_controls_follow_the_cluster_but_keep_what_the_user_edits() -> None:
    async def body() -> None:
        shown = Shown()
        parts, names = shown.parts, ("Workers", "Minimum", "Maximum")

        async def numbers(**groups: Mapping[str, int]) -> tuple[int, ...]:
            """Those in the controls, after somebody else has changed the groups."""
            for group, fields in groups.items():
                assert shown.handle.current is not None
                shown.handle.current = shown.handle.current.with_group(group, **fields)
            await shown.cluster._refresh(1.0)
            shown.view.show()
            return tuple(parts[each].value for each in names)

        assert await numbers() == (2, 0, 2)
        assert await numbers(default={"replicas": 5}) == (5, 0, 5), "without bounds, Adapt takes no worker away"
        assert await numbers(default={"replicas": 3, "min": 1, "max": 3}) == (3, 1, 3)

        parts["Workers"].value = 6
        assert await numbers(default={"replicas": 2, "max": 4}) == (6, 1, 4), "edited, and not yet used"
        parts["Scale"].click()
        await shown.finish()
        assert shown.group().replicas == 6
        assert await numbers(default={"replicas": 7}) == (7, 0, 7), "used, so it follows again"

        await numbers(big={"replicas": 9, "min": 2, "max": 9})
        parts["Group"].value = "big"
        assert await numbers() == (9, 2, 9)

    asyncio.run(body())


def test_cluster_without_workers_has_a_view_without_controls_for_them() -> None:
    async def body() -> None:
        empty = SPEC.model_copy(update={"workers": ()})
        shown = Shown(empty)
        await shown.cluster._refresh(1.0)
        shown.view.show()
        assert "demo" in shown.view._state.value
        assert not {"Workers", "Scale", "Adapt"} & shown.parts.keys() and "Members" in shown.parts
        shown.view.stop()
        await shown.finish()

    asyncio.run(body())


def test_refused_change_is_shown() -> None:
    async def body() -> None:
        shown = Shown()
        shown.parts["Workers"].value = -1
        shown.parts["Scale"].click()
        await shown.finish()
        assert (
            "-1 is not a valid number of workers" in shown.view._note.value and 'class="bad"' in shown.view._note.value
        )
        assert shown.group().replicas == 2 and shown.parts["Workers"].value == -1, "to be corrected"

    asyncio.run(body())


def test_log_of_a_member_is_shown_and_escaped() -> None:
    async def body() -> None:
        shown = Shown()
        await shown.cluster._refresh(1.0)
        shown.view.show()
        assert shown.view._member.options == ("no log", "head", "worker-0")
        shown.view._member.value = "worker-0"
        await shown.finish()
        assert "&lt;worker-0&gt; starts" in shown.view._log.value
        shown.view._member.value = "no log"
        await shown.finish()
        assert shown.view._log.value == ""

    asyncio.run(body())


def test_list_of_members_can_be_hidden() -> None:
    async def body() -> None:
        shown = Shown()
        await shown.cluster._refresh(1.0)
        shown.view.show()
        assert "2 members" in shown.view._state.value
        shown.parts["Members"].value = False
        assert "2 members" not in shown.view._state.value

    asyncio.run(body())


def test_view_updates_itself_until_the_cluster_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oars.client.view.SECONDS", 0.01)
    monkeypatch.setattr("oars.client.samples.FIRST_SECONDS", 0.01)

    async def body() -> None:
        shown = Shown()
        shown.view.start()
        shown.handle.current = SPEC.with_group("default", replicas=5)
        async with asyncio.timeout(10):
            while "5/5 workers ready" not in shown.view._state.value:  # noqa: ASYNC110 (a widget cannot be awaited)
                await asyncio.sleep(0.01)
            shown.handle.current = None
            await shown.finish()
        assert "● Stopped" in shown.view._state.value and repr(shown.cluster).count("Stopped")
        assert all(shown.parts[each].disabled for each in ("Scale", "Adapt", "Members"))

    asyncio.run(body())


def test_view_keeps_no_cluster_alive() -> None:
    async def body() -> None:
        shown = Shown()
        view, _ = shown.view, shown.parts
        del shown.cluster
        gc.collect()
        assert view._cluster() is None
        view.show()
        view._scale()

    asyncio.run(body())


def test_pages_without_widgets_get_html() -> None:
    assert bundle("text", "<b>html</b>", None) == {"text/plain": "text", "text/html": "<b>html</b>"}

    async def body() -> None:
        shown = Shown()
        found = bundle("text", "html", shown.view)
        assert found[WIDGET]["model_id"] == shown.view.widget.model_id
        assert WIDGET not in shown.cluster._repr_mimebundle_(), "outside a notebook nothing would show it"

    asyncio.run(body())


def test_import_of_oars_loads_no_notebook() -> None:
    code = "import sys, oars; oars.Cluster; print([m for m in ('IPython', 'ipywidgets') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
