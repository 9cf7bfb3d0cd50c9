"""The representation of a cluster: a line in a terminal, a card in a notebook. Pure."""

from __future__ import annotations

from html import escape

from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.resources import show_memory
from oars.spec.status import Phase

_COLOURS = {
    Phase.READY: "#1a7f37",
    Phase.STARTING: "#9a6700",
    Phase.PENDING: "#9a6700",
    Phase.DEGRADED: "#bc4c00",
    Phase.FAILED: "#cf222e",
}
_GREY = "#57606a"


def text(kind: str, name: str, spec: ClusterSpec, report: Report | None) -> str:
    phase, workers = _phase(report), _workers(spec, report)
    return f"<{kind} {name}: {spec.engine} on {spec.place}, {phase}, workers {workers}, memory {_memory(spec)}>"


def html(name: str, spec: ClusterSpec, report: Report | None) -> str:
    """A self-contained card without scripts."""
    phase = _phase(report)
    colour = _COLOURS.get(phase, _GREY)
    link = report.status.endpoints.dashboard if report else ""
    shown = f'<a href="{escape(link)}" target="_blank">{escape(link)}</a>' if link else "–"
    rows = {"Place": spec.place, "Workers": _workers(spec, report), "Memory": _memory(spec)}
    cells = "".join(f"<tr><th style='text-align:left'>{k}</th><td>{escape(v)}</td></tr>" for k, v in rows.items())
    message = report.status.message if report and phase is not Phase.READY else ""
    note = f"<div style='color:{_GREY};margin-top:4px'>{escape(message)}</div>" if message else ""
    return (
        f"<div style='border:1px solid #d0d7de;border-left:4px solid {colour};border-radius:6px;padding:8px 12px;"
        f"display:inline-block;min-width:22em;font-family:sans-serif'>"
        f"<b>{escape(name)}</b> <span style='color:{_GREY}'>{escape(spec.engine)}</span>"
        f"<span style='float:right;color:{colour}'>● {phase}</span>"
        f"<table style='margin-top:6px'>{cells}<tr><th style='text-align:left'>Dashboard</th><td>{shown}</td></tr>"
        f"</table>{note}</div>"
    )


def _phase(report: Report | None) -> Phase:
    return report.status.phase if report else Phase.STOPPED


def _workers(spec: ClusterSpec, report: Report | None) -> str:
    if report is None:
        return f"0/{sum(group.replicas for group in spec.workers)}"
    return f"{report.status.ready}/{report.status.wanted}"


def _memory(spec: ClusterSpec) -> str:
    amounts = [(group.memory or 0) * group.replicas for group in spec.workers]
    return show_memory(sum(amounts)) if sum(amounts) else "shared"
