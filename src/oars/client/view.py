"""The view of a cluster in a notebook that updates itself and has controls. It needs ipywidgets, which nothing here
imports before a notebook shows a cluster. Without it, card.py's HTML is all that is shown."""

from __future__ import annotations

import asyncio
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from oars.base.errors import OarsError
from oars.client import card
from oars.client.backend import Progress, ignore

if TYPE_CHECKING:
    from oars.client.cluster import AsyncCluster
    from oars.spec.cluster import WorkerGroup
    from oars.spec.status import Status

SECONDS = 2.0  # between two looks
TICK = 0.5  # while a cluster starts
REPORT_SECONDS = 10.0
LOG_LINES = 100
WIDGET = "application/vnd.jupyter.widget-view+json"
CLOSED = "This program has closed the cluster; the view does not update itself any more."


class Task(Protocol):
    """An asyncio.Task, or the future of a coroutine that runs in another thread's loop."""

    def cancel(self) -> Any: ...

    def add_done_callback(self, fn: Callable[[Any], Any], /) -> None: ...


Submit = Callable[[Coroutine[Any, Any, None]], Task]  # starts a coroutine in the event loop of the cluster


def is_notebook() -> bool:
    """True in a Jupyter kernel."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


def has_widgets() -> bool:
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True


# while a cluster starts


@asynccontextmanager
async def starting(cluster: AsyncCluster) -> AsyncIterator[Progress]:
    """In a notebook, show a cluster while the body starts it. Yields what to call with the progress."""
    if not is_notebook():
        yield ignore
        return
    from IPython.display import HTML, display

    begun, note = time.monotonic(), ""

    def progress(line: str) -> None:
        nonlocal note
        note = line.removeprefix(f"{cluster.name}: ")

    def shown(text: str) -> Any:
        made = cluster._card(text)
        return HTML(card.frame(card.head(made) + card.members(made)))

    def elapsed() -> str:
        return f"{time.monotonic() - begun:.0f} s"

    async def refresh() -> None:
        while True:
            await asyncio.sleep(TICK)
            place.update(shown(f"{elapsed()} · {note or 'starting'}"))

    place = display(shown("starting"), display_id=True)
    refreshing = asyncio.create_task(refresh())
    try:
        yield progress
    except BaseException as error:
        message = error.message if isinstance(error, OarsError) else type(error).__name__
        place.update(HTML(card.frame(card.head(cluster._card(f"It did not start: {message}")))))
        raise
    else:
        place.update(HTML(card.frame(card.head(cluster._card(f"Ready after {elapsed()}.")))))
    finally:
        refreshing.cancel()


# while it runs


class View:
    """A widget with the state of a cluster, kept up to date, and controls for it. The view does not keep the cluster
    alive."""

    def __init__(self, cluster: AsyncCluster, submit: Submit) -> None:
        self._cluster = weakref.ref(cluster)
        self._start_task = submit
        self._tasks: set[Task] = set()  # an event loop does not keep its tasks alive
        self._task: Task | None = None
        self._filled: dict[Any, int] = {}  # control → the number in it, unless the user has edited that
        self._make_widgets(cluster)
        self.show()

    def _make_widgets(self, cluster: AsyncCluster) -> None:
        from ipywidgets import HTML, Dropdown, HBox, Layout, ToggleButton, VBox

        groups = cluster._spec.workers
        self._controls = self._make_controls(groups) if groups else []
        self._state, self._log, self._note = HTML(), HTML(), HTML()
        self._with_members = ToggleButton(value=True, description="Members", layout=Layout(width="auto"))
        self._member = Dropdown(options=["no log"], layout=Layout(width="260px"))
        self._with_members.observe(lambda _: self.show(), "value")
        self._member.observe(lambda _: self._read_log(), "value")
        wrap = Layout(flex_flow="row wrap")
        rows = [HBox(self._controls, layout=wrap), HBox([self._with_members, self._member], layout=wrap)]
        self.widget = VBox([self._state, *rows, self._note, self._log])

    def _make_controls(self, groups: Sequence[WorkerGroup]) -> list[Any]:
        """What scales a group."""
        from ipywidgets import Button, Dropdown, IntText, Layout

        def number(description: str, value: int) -> Any:
            control = IntText(value=value, description=description, layout=Layout(width="150px"))
            self._filled[control] = value
            return control

        def button(description: str, tooltip: str, act: Callable[[], None]) -> Any:
            made = Button(description=description, tooltip=tooltip, layout=Layout(width="auto"))
            made.on_click(lambda _: act())
            return made

        names, first = [group.name for group in groups], groups[0]
        self._group = Dropdown(options=names, description="Group", layout=Layout(width="220px"))
        self._group.layout.display = "" if len(names) > 1 else "none"
        self._group.observe(lambda _: self._choose_group(), "value")
        self._workers = number("Workers", first.replicas)
        self._minimum, self._maximum = number("Minimum", first.min or 0), number("Maximum", first.max or first.replicas)
        return [
            self._group,
            self._workers,
            button("Scale", "Set the number of workers; ends autoscaling of the group", self._scale),
            self._minimum,
            self._maximum,
            button("Adapt", "Let the number of workers follow the load", self._adapt),
            button("Stop adapting", "End autoscaling and keep the present number", self._stop_adapting),
        ]

    # state

    def start(self) -> None:
        """Keep the view up to date, until the cluster ends or is closed."""
        if self._task is None:
            self._task = self._submit(self._refresh())

    def stop(self) -> None:
        """Show the present state for the last time, without controls."""
        if self._task is not None:
            self._task.cancel()
        self.show(CLOSED)
        self._disable()

    def _submit(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        task = self._start_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _refresh(self) -> None:
        while (cluster := self._cluster()) is not None:
            await cluster._refresh(REPORT_SECONDS, measure=True)
            self.show()
            if cluster._shown() is None:
                self._disable()
                return
            await self._update_log(cluster)
            del cluster  # or the pause would keep it alive
            await asyncio.sleep(SECONDS)
        self._disable()

    def show(self, note: str = "") -> None:
        cluster = self._cluster()
        if cluster is None:
            return
        made = cluster._card(note)
        parts = [card.head(made), card.charts(made), card.groups(made)]
        parts += [card.members(made)] if self._with_members.value else []
        self._state.value = card.frame("".join(parts))
        known = [each.id for each in made.report.status.members] if made.report else []
        options = ("no log", *known)
        if self._member.options != options:
            chosen = self._member.value
            self._member.options = options
            self._member.value = chosen if chosen in options else "no log"
        if made.report and self._controls:
            self._fill(made.report.status)

    def _fill(self, status: Status) -> None:
        """Let the numbers in the controls follow those of the group, except what the user has edited: a click on Scale
        must not bring back an old number."""
        group = next((each for each in status.groups if each.name == self._group.value), None)
        if group is None:
            return
        highest = max(1, group.wanted) if group.max is None else group.max
        numbers = {self._workers: group.wanted, self._minimum: group.min or 0, self._maximum: highest}
        for control, number in numbers.items():
            if control.value in (number, self._filled.get(control, control.value)):
                control.value = self._filled[control] = number

    def _choose_group(self) -> None:
        self._filled.clear()  # edits were for the group before
        self.show()

    def _disable(self) -> None:
        for each in (*self._controls, self._member, self._with_members):
            each.disabled = True

    # controls

    def _scale(self) -> None:
        workers, group = self._workers.value, self._group.value
        done = f"scaled {group} to {workers}"
        self._act(done, lambda cluster: cluster.scale(workers, group=group), {self._workers: workers})

    def _adapt(self) -> None:
        low, high, group = self._minimum.value, self._maximum.value, self._group.value
        done = f"{group} follows the load, {low}–{high} workers"
        given = {self._minimum: low, self._maximum: high}
        self._act(done, lambda cluster: cluster.adapt(low, high, group=group), given)

    def _stop_adapting(self) -> None:
        group = self._group.value
        self._act(f"{group} keeps its number", lambda cluster: cluster.adapt(None, group=group), {})

    def _act(
        self, done: str, action: Callable[[AsyncCluster], Coroutine[Any, Any, None]], given: dict[Any, int]
    ) -> None:
        """`given`: the numbers of the controls that the action uses. They follow the cluster again if it succeeds."""
        cluster = self._cluster()
        if cluster is None:
            return

        async def act() -> None:
            try:
                await action(cluster)
                self._filled.update(given)
                await cluster._refresh(REPORT_SECONDS)
                self._note.value = card.note(done)
            except OarsError as error:
                self._note.value = card.note(f"{error.message} {error.hint}".strip(), is_error=True)
            self.show()

        self._submit(act())

    def _read_log(self) -> None:
        cluster = self._cluster()
        if cluster is not None:
            self._submit(self._update_log(cluster))

    async def _update_log(self, cluster: AsyncCluster) -> None:
        member = self._member.value
        if member == "no log":
            self._log.value = ""
            return
        text = "The log cannot be read."
        with suppress(OarsError):
            text = await cluster.logs(member, tail=LOG_LINES)
        if self._member.value == member:
            self._log.value = card.log(member, text)


def bundle(text: str, html: str, view: View | None) -> dict[str, Any]:
    """What a notebook may show, from the plainest to the richest: pages without widgets show the HTML."""
    found: dict[str, Any] = {"text/plain": text, "text/html": html}
    if view is not None:
        found[WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": view.widget.model_id}
    return found
