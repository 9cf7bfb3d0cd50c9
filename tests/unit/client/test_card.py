"""The representation of a cluster."""

from __future__ import annotations

import re
from dataclasses import replace

from oars.client import card
from oars.client.card import Card
from oars.client.samples import GroupLoad, Load, Sample
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Endpoints, GroupStatus, MemberStatus, Phase, Status

SPEC = ClusterSpec.model_validate({"engine": "dask", "workers": [{"replicas": 3, "memory": "1Gi"}]})
HEAD = MemberStatus("head", "head", "head", Phase.READY, "127.0.0.1:1")
WORKER = MemberStatus("worker-0", "worker", "default", Phase.STARTING, "", None, "pulls its image")
GROUP = GroupStatus("default", 3, 2, 1, 5, "ScaledUp", "7 tasks wait", 4)


def report(phase: Phase, message: str = "", group: GroupStatus | None = None, members: int = 2) -> Report:
    endpoints = Endpoints("tls://127.0.0.1:1", "http://127.0.0.1:2/status")
    groups = (group or GroupStatus("default", 3, 2),)
    workers = tuple(replace(WORKER, id=f"worker-{index}") for index in range(members - 1))
    return Report(Status("demo", "dask", "local", phase, "", message, endpoints, groups, (HEAD, *workers)))


def sample(at: float, cpu: float | None = 1.5) -> Sample:
    memory = None if cpu is None else 2**29
    return Sample(at, (GroupLoad(GROUP, cpu, memory),), {"worker-0": Load(cpu, memory)})


def table(html: str) -> list[list[str]]:
    """The cells of all rows, as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_repr_is_one_line() -> None:
    line = card.text("Cluster", "demo", SPEC, report(Phase.READY))
    assert line == "<Cluster demo: dask on local, Ready, workers 2/3, memory 2Gi>"
    assert "Stopped, workers 0/3, memory 0" in card.text("Cluster", "demo", SPEC, None)


def test_html_card_shows_the_status() -> None:
    html = card.html(Card("demo", SPEC, report(Phase.READY), "http://127.0.0.1:2/status"))
    for part in ("demo", "dask", "local", "2/3", "2Gi", 'href="http://127.0.0.1:2/status"', "● Ready"):
        assert part in html
    assert "<script" not in html and "src=" not in html
    assert "● Stopped" in card.html(Card("demo", SPEC, None))


def test_card_names_the_command_for_a_dashboard_that_requires_the_token() -> None:
    guarded = replace(report(Phase.READY).status, has_guarded_dashboard=True)
    html = card.html(Card("demo", SPEC, Report(guarded), "http://127.0.0.1:2"))
    assert "dashboard <code>oars dashboard demo</code>" in html and "href" not in html


def test_card_has_a_row_per_group_and_per_member() -> None:
    html = card.html(Card("demo", SPEC, report(Phase.READY, group=GROUP), samples=(sample(1), sample(3))))
    rows = table(html)
    assert rows[:2] == [
        ["Group", "Workers", "Min–max", "Needed", "CPU", "Memory", "Last decision"],
        ["default", "2/3", "1–5", "4", "1.50", "512Mi", "ScaledUp: 7 tasks wait"],
    ]
    assert rows[2:] == [
        ["Member", "Group", "Phase", "CPU", "Memory", "Address", "Reason"],
        ["head", "–", "Ready", "–", "–", "127.0.0.1:1", "–"],
        ["worker-0", "default", "Starting", "1.50", "512Mi", "–", "pulls its image"],
    ]


def test_members_show_their_tasks_if_the_engine_reports_them() -> None:
    before = report(Phase.READY)
    busy = replace(WORKER, tasks=7)
    shown = replace(before, status=replace(before.status, members=(HEAD, busy)))
    titles, head, worker = table(card.html(Card("demo", SPEC, shown)))[-3:]
    place = titles.index("Tasks")
    assert (head[place], worker[place]) == ("–", "7")
    assert "Tasks" not in card.html(Card("demo", SPEC, before))


def test_columns_without_values_are_left_out() -> None:
    rows = table(card.html(Card("demo", SPEC, report(Phase.READY), samples=(sample(1, None), sample(3, None)))))
    assert rows[0] == ["Group", "Workers"] and rows[2] == ["Member", "Group", "Phase", "Address", "Reason"]


def test_lines_follow_the_samples() -> None:
    samples = (sample(10, 0.0), sample(15, 1.0), sample(20, 2.0))
    html = card.charts(Card("demo", SPEC, report(Phase.READY), samples=samples))
    titles = re.findall(r"<title>(.*?)</title>", html)
    assert titles == ["Workers: 2, 4 needed", "CPU: 2.00", "Memory: 512Mi"]
    workers, needed, cpu, _ = re.findall(r'points="(.*?)"', html)
    assert workers == "0.0,16.0 50.0,16.0 100.0,16.0" and needed == "0.0,2.0 50.0,2.0 100.0,2.0"
    assert cpu == "0.0,30.0 50.0,16.0 100.0,2.0", "a higher value is drawn higher"
    assert card.charts(Card("demo", SPEC, None, samples=samples[:1])) == "", "one sample is no line"


def test_cluster_that_starts_has_a_bar() -> None:
    html = card.html(Card("demo", SPEC, report(Phase.STARTING, "an image is pulled")))
    assert 'aria-valuenow="75"' in html and "an image is pulled" in html, "the head and 2 of 3 workers"
    assert 'role="progressbar"' not in card.html(Card("demo", SPEC, report(Phase.READY)))


def test_long_list_of_members_is_folded_and_cut() -> None:
    assert "<details open>" in card.html(Card("demo", SPEC, report(Phase.READY, members=5)))
    html = card.html(Card("demo", SPEC, report(Phase.READY, members=100)))
    assert "<details>" in html and "50 more: oars status demo" in html and html.count("worker-") == 49


def test_card_escapes_all_that_others_write() -> None:
    evil = "<img src=x onerror=alert(1)>"
    group = replace(GROUP, name=evil, reason=evil, message=evil)
    found = report(Phase.DEGRADED, evil, group)
    members = tuple(replace(each, id=evil, address=evil, reason=evil) for each in found.status.members)
    found = replace(found, status=replace(found.status, members=members))
    html = card.html(Card(evil, SPEC, found, f'http://h/"{evil}', (sample(1), sample(2)), evil))
    for part in (html, card.log(evil, evil), card.note(evil, is_error=True)):
        assert "<img" not in part and "&lt;img" in part
    assert '"<' not in html.replace(card.STYLE, "").replace('"><', "")


def test_themes_only_differ_in_colours_of_lines_and_phases() -> None:
    assert "prefers-color-scheme:dark" in card.STYLE and 'data-jp-theme-light="false"' in card.STYLE
    assert "background:#" not in card.STYLE and not re.search(r"[;{]color:#", card.STYLE), "the page has these colours"
