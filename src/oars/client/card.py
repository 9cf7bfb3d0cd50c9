"""The representation of a cluster: a line in a terminal, HTML in a notebook. Pure.

The HTML has no script and no colour of text or background: it takes those of the page, so that it fits any theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from oars.base.text import command
from oars.client.samples import Load, Sample
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.resources import show_memory
from oars.spec.status import GroupStatus, MemberStatus, Phase

MAX_MEMBERS = 50  # rows; `oars status` lists them all
OPEN_MEMBERS = 12  # a longer list is folded
UNKNOWN = "–"
_KINDS = {Phase.READY: "good", Phase.FAILED: "bad", Phase.STOPPED: "none", Phase.SUCCEEDED: "good"}  # others: "wait"

# Notebook pages say which theme they have; other pages follow the browser's.
_LIGHT = "--oars-good:#1a7f37;--oars-wait:#9a6700;--oars-bad:#cf222e;--oars-line:#0969da"
_DARK = "--oars-good:#3fb950;--oars-wait:#d29922;--oars-bad:#ff7b72;--oars-line:#58a6ff"
STYLE = f"""<style>
.oars{{{_LIGHT};--oars-none:#808080;--oars-edge:var(--jp-border-color2,rgba(128,128,128,.35));
color:var(--jp-ui-font-color1,inherit);font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);
border:1px solid var(--oars-edge);border-radius:6px;padding:10px 14px;max-width:60em;box-sizing:border-box}}
@media (prefers-color-scheme:dark){{.oars{{{_DARK}}}}}
[data-jp-theme-light="true"] .oars,.vscode-light .oars{{{_LIGHT}}}
[data-jp-theme-light="false"] .oars,.vscode-dark .oars{{{_DARK}}}
.oars .good{{color:var(--oars-good)}}.oars .wait{{color:var(--oars-wait)}}
.oars .bad{{color:var(--oars-bad)}}.oars .none{{color:var(--oars-none)}}
.oars .top{{display:flex;gap:.6em;align-items:baseline;flex-wrap:wrap}}.oars .top b{{font-size:15px}}
.oars .phase{{margin-left:auto;font-weight:600}}.oars .dim{{opacity:.72}}.oars a{{color:var(--oars-line)}}
.oars .bar{{height:6px;border-radius:3px;background:var(--oars-edge);margin:8px 0;overflow:hidden}}
.oars .bar i{{display:block;height:100%;background:var(--oars-wait);transition:width .4s}}
.oars .charts{{display:flex;gap:18px;flex-wrap:wrap;margin:8px 0}}
.oars svg{{display:block;width:170px;height:34px;border-bottom:1px solid var(--oars-edge);overflow:visible}}
.oars polyline{{fill:none;stroke:var(--oars-line);stroke-width:1.6;vector-effect:non-scaling-stroke}}
.oars polyline.needed{{stroke:var(--oars-wait);stroke-dasharray:4 3}}
.oars table{{border-collapse:collapse;margin:6px 0;width:100%;font-size:inherit;color:inherit}}
.oars th,.oars td{{text-align:left;padding:2px 14px 2px 0;vertical-align:top;border:0;background:none}}
.oars th{{font-weight:600;opacity:.72;white-space:nowrap}}.oars tr{{border-bottom:1px solid var(--oars-edge)}}
.oars td.n{{font-variant-numeric:tabular-nums;white-space:nowrap}}.oars summary{{cursor:pointer}}
.oars pre{{max-height:18em;overflow:auto;margin:6px 0;font:12px/1.4 var(--jp-code-font-family,monospace);color:inherit}}
</style>"""


@dataclass(frozen=True)
class Card:
    """What is shown of a cluster. `report` None: it is stopped or does not exist yet; `link`: the dashboard, as this
    machine reaches it; `samples`: the oldest first; `note`: of the program that shows it, such as its progress."""

    name: str
    spec: ClusterSpec
    report: Report | None
    link: str = ""
    samples: Sequence[Sample] = ()
    note: str = ""


def text(kind: str, name: str, spec: ClusterSpec, report: Report | None) -> str:
    phase, workers, memory = _phase(report), _workers(spec, report), _memory(spec, report)
    return f"<{kind} {name}: {spec.engine} on {spec.place}, {phase}, workers {workers}, memory {memory}>"


def html(card: Card) -> str:
    """The whole card, self-contained."""
    return frame(head(card) + charts(card) + groups(card) + members(card))


def frame(body: str) -> str:
    return f'{STYLE}<div class="oars">{body}</div>'


def head(card: Card) -> str:
    """Name, phase, numbers, the dashboard; and the progress of a cluster that starts."""
    phase = _phase(card.report)
    facts = [
        f"{_workers(card.spec, card.report)} workers ready",
        f"memory {_memory(card.spec, card.report)}",
        _dashboard(card),
    ]
    message = card.report.status.message if card.report and phase is not Phase.READY else ""
    notes = "".join(f"<div>{escape(each)}</div>" for each in dict.fromkeys((message, card.note)) if each)
    return (
        f'<div class="top"><b>{escape(card.name)}</b>'
        f'<span class="dim">{escape(card.spec.engine)} on {escape(card.spec.place)}</span>'
        f'<span class="phase {_kind(phase)}">● {phase}</span></div>'
        f'<div class="dim">{" · ".join(filter(None, facts))}</div>{_bar(card, phase)}{notes}'
    )


def _dashboard(card: Card) -> str:
    """A link, or the command that sends the token which the dashboard requires."""
    if not card.link:
        return ""
    if card.report and card.report.status.has_guarded_dashboard:
        opens = command("dashboard", card.name, namespace=card.report.status.namespace)
        return f"dashboard <code>{escape(opens)}</code>"
    return f'dashboard <a href="{escape(card.link)}" target="_blank" rel="noopener">{escape(card.link)}</a>'


def _bar(card: Card, phase: Phase) -> str:
    """How far a cluster has started; the head counts as one member."""
    if phase not in (Phase.PENDING, Phase.STARTING) or card.report is None:
        return ""
    status = card.report.status
    has_head = any(each.role == "head" and each.phase is Phase.READY for each in status.members)
    share = 100 * (status.ready + has_head) // (status.wanted + 1)
    return f'<div class="bar" role="progressbar" aria-valuenow="{share}"><i style="width:{share}%"></i></div>'


def charts(card: Card) -> str:
    """Lines over the time of the samples: workers and what the demand needs, processors, memory."""
    if len(card.samples) < 2:
        return ""
    times = [each.at for each in card.samples]
    ready = [float(sum(load.group.ready for load in each.groups)) for each in card.samples]
    needed = [_sum(load.group.needed for load in each.groups) for each in card.samples]
    cpu = [_sum(load.cpu for load in each.groups) for each in card.samples]
    memory = [_sum(load.memory for load in each.groups) for each in card.samples]
    asked = f", {needed[-1]:.0f} needed" if needed[-1] is not None else ""
    drawn = [
        _chart(times, f"Workers: {ready[-1]:.0f}{asked}", {"": ready, "needed": needed}, 1.0),
        _chart(times, f"CPU: {_cpu(cpu[-1])}", {"": cpu}, 0.1),
        _chart(times, f"Memory: {_bytes(memory[-1])}", {"": memory}, 2.0**20),
    ]
    seconds = times[-1] - times[0]
    span = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f'<div class="charts" title="the last {span}">{"".join(drawn)}</div>'


def _chart(times: Sequence[float], title: str, lines: dict[str, Sequence[float | None]], least: float) -> str:
    """`least`: the smallest value for the height of the chart."""
    known = [value for line in lines.values() for value in line if value is not None]
    if not known:
        return ""
    top, span = max(least, *known), max(times[-1] - times[0], 1e-9)
    drawn = ""
    for kind, line in lines.items():
        points = " ".join(
            f"{100 * (at - times[0]) / span:.1f},{30 - 28 * value / top:.1f}"
            for at, value in zip(times, line, strict=True)
            if value is not None
        )
        drawn += f'<polyline class="{kind}" points="{points}"/>' if points else ""
    return (
        f'<div><span class="dim">{escape(title)}</span><svg viewBox="0 0 100 30" preserveAspectRatio="none" role="img">'
        f"<title>{escape(title)}</title>{drawn}</svg></div>"
    )


def groups(card: Card) -> str:
    """A row per worker group."""
    if card.report is None:
        return ""
    titles = ["Group", "Workers", "Min–max", "Needed", "CPU", "Memory", "Last decision"]
    loads = {load.group.name: load for load in card.samples[-1].groups} if card.samples else {}
    rows = []
    for group in card.report.status.groups:
        load = loads.get(group.name)
        decision = ": ".join(filter(None, (group.reason, group.message)))
        bounds = UNKNOWN if group.max is None else f"{group.min or 0}–{group.max}"
        rows.append([
            group.name, f"{group.ready}/{group.wanted}", bounds, _needed(group), _cpu(load.cpu if load else None),
            _bytes(load.memory if load else None), decision or UNKNOWN,
        ])  # fmt: skip
    return _table(titles, rows) if rows else ""


def members(card: Card) -> str:
    """A row per member, folded if there are many."""
    found = card.report.status.members if card.report else ()
    if not found:
        return ""
    loads = card.samples[-1].members if card.samples else {}
    rows = [_member(each, loads.get(each.id, Load())) for each in found[:MAX_MEMBERS]]
    titles = ["Member", "Group", "Phase", "Tasks", "CPU", "Memory", "Address", "Reason"]
    more = len(found) - len(rows)
    rest = f'<div class="dim">{more} more: oars status {escape(card.name)}</div>' if more else ""
    opened = " open" if len(found) <= OPEN_MEMBERS else ""
    return f"<details{opened}><summary>{len(found)} members</summary>{_table(titles, rows)}{rest}</details>"


def _member(member: MemberStatus, load: Load) -> list[str]:
    group = member.group if member.role == "worker" else ""
    cpu, memory = _cpu(load.cpu), _bytes(load.memory)
    tasks = UNKNOWN if member.tasks is None else str(member.tasks)
    return [member.id, group, member.phase, tasks, cpu, memory, member.address, member.reason]


def note(line: str, *, is_error: bool = False) -> str:
    return frame(f'<span class="{"bad" if is_error else "dim"}">{escape(line)}</span>')


def log(member: str, lines: str) -> str:
    """The end of a member's log."""
    return frame(f'<div class="dim">Log of {escape(member)}</div><pre>{escape(lines)}</pre>')


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns without any value are left out."""
    shown = [index for index in range(len(titles)) if any(row[index] not in ("", UNKNOWN) for row in rows)]
    top = "".join(f"<th>{titles[index]}</th>" for index in shown)
    lines = "".join("<tr>" + "".join(_cell(row[index]) for index in shown) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(value: str) -> str:
    if value in set(Phase):
        return f'<td class="{_kind(Phase(value))}">{value}</td>'
    number = ' class="n"' if value[:1].isdigit() else ""
    return f"<td{number}>{escape(value) or UNKNOWN}</td>"


def _sum(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None: none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _needed(group: GroupStatus) -> str:
    return UNKNOWN if group.needed is None else str(group.needed)


def _cpu(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _bytes(value: float | None) -> str:
    return UNKNOWN if value is None else show_memory(int(value))


def _kind(phase: Phase) -> str:
    return _KINDS.get(phase, "wait")


def _phase(report: Report | None) -> Phase:
    return report.status.phase if report else Phase.STOPPED


def _workers(spec: ClusterSpec, report: Report | None) -> str:
    if report is None:
        return f"0/{sum(group.replicas for group in spec.workers)}"
    return f"{report.status.ready}/{report.status.wanted}"


def _memory(spec: ClusterSpec, report: Report | None) -> str:
    """Of the ready workers."""
    ready = {group.name: group.ready for group in report.status.groups} if report else {}
    return show_memory(sum((group.memory or 0) * ready.get(group.name, 0) for group in spec.workers))
