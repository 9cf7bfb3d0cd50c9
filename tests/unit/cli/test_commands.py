"""Commands that only read: ls, status, why, diff, doctor, config, env, completion."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.shell_completion import ShellComplete

from oars.base.errors import NotFound, UsageError
from oars.base.settings import Settings
from oars.cli import errors
from oars.cli.clusters import _cluster_columns, _report_text, _watch_list, emit_status
from oars.cli.main import call, cli
from oars.cli.output import table
from oars.client.local import LocalBackend
from oars.envs import Environments, scan
from oars.envs.cache import EnvInfo
from oars.model import Cause
from oars.places.local.endings import write_gone
from oars.places.report import Report
from oars.service import Listing, Location, Service, clusters, diagnostics
from oars.service.diagnostics import settings
from oars.spec.load import build
from oars.spec.status import Endpoints, Expires, Gone, GroupStatus, MemberStatus, Phase, Status
from tests.unit.local_clusters import EARLIER, record, store

STATUS = Status("demo", "toy", "local", Phase.READY, groups=(GroupStatus("default", 2, 2),))


def oars(*args: str) -> int:
    return errors.guard(lambda: call(args))


def test_ls_survives_broken_and_rebooted_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    store().create(record("old", host=EARLIER), {})
    store().create(record("broken"), {}).record_file.write_text("{")
    store().create(record("empty"), {}).record_file.write_text("{}")
    assert oars("ls", "-o", "json") == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert {name: (each["phase"], each["reason"]) for name, each in found.items()} == {
        "old": ("Stopped", "Rebooted"),
        "broken": ("Failed", "Damaged"),
        "empty": ("Failed", "Damaged"),
    }
    assert all("members" not in each for each in found.values())
    assert oars("ls") == 0
    assert "The record of the cluster cannot be read" in capsys.readouterr().out


def test_list_shows_the_age(capsys: pytest.CaptureFixture[str]) -> None:
    store().create(record("old", host=EARLIER, created=time.time() - 7300), {})
    assert oars("ls") == 0
    header, line = capsys.readouterr().out.splitlines()
    assert line.split()[header.split().index("AGE")] == "2h"
    assert oars("ls", "-o", "json") == 0
    assert time.time() - json.loads(capsys.readouterr().out)[0]["created"] == pytest.approx(7300, abs=60)


class Watched:
    """A service whose list changes; the last one ends the watch."""

    location = Location()

    def __init__(self, *lists: list[Status]) -> None:
        self.lists = list(lists)

    async def list(self, *, all_namespaces: bool) -> Listing[Status]:
        if not self.lists:
            raise NotFound("end")
        return Listing(self.lists.pop(0), {"kubernetes": "No answer."})


@pytest.mark.parametrize("output", ["table", "json", "name"])
def test_watched_list_prints_what_changes(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(STATUS, name="other", created=1.0)
    grown = replace(STATUS, groups=(GroupStatus("default", 3, 2),))
    same = replace(STATUS, members=(MemberStatus("head", "head", "head", Phase.READY),))  # no column shows it
    service = Watched([STATUS, other], [same, other], [grown, other], [other], [other])
    with pytest.raises(NotFound):
        asyncio.run(_watch_list(cast(Service, service), False, 0.0, output))
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert shown.err.count("No answer.") == 1
    if output == "table":
        assert lines.pop(0).split()[:5] == ["NAME", "ENGINE", "PLACE", "PHASE", "WORKERS"]
        assert [line.split()[0] for line in lines] == ["demo", "other", "demo", "demo"]
        assert [line.split()[3:5] for line in lines][2:] == [["Ready", "2/3"], ["Stopped", "2/3"]]
    elif output == "json":
        assert [json.loads(line)["phase"] for line in lines] == ["Ready", "Ready", "Ready", "Stopped"]
    else:
        assert lines == ["demo", "other", "demo", "demo"]


def test_gone_clusters_cannot_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("ls", "--gone", "-w") == 2
    assert "--gone and --watch contradict each other" in capsys.readouterr().err


def test_age_of_log_lines_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("logs", "demo", "--since", "yesterday") == 2
    assert "--since: 'yesterday' is not a duration" in capsys.readouterr().err


def test_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("ls") == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        "There are no clusters on this machine. Create one with `oars up demo --engine dask`.\n",
    )
    assert oars("ls", "-o", "json") == 0
    assert capsys.readouterr().out == "[]\n"
    assert oars("ls", "-o", "name") == 0
    assert oars("down", "--all", "-q") == 0
    assert capsys.readouterr().out == ""


class EmptyServer(BaseHTTPRequestHandler):
    """An API server without objects."""

    def do_GET(self) -> None:
        body = b'{"metadata": {"resourceVersion": "1"}, "items": []}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def empty_server(tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig for a server without clusters."""
    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        config = tmp_path / "config"
        config.write_text(kubeconfig(f"http://127.0.0.1:{server.server_port}"))
        yield config
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ([], "on this machine, nor in namespace 'default' of context 'c'"),
        (["-A"], "on this machine, nor in all namespaces of context 'c'"),
        (["-n", "other"], "in namespace 'other' of context 'c'"),
    ],
)
def test_empty_list_says_where_oars_looked(
    options: list[str],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    empty_server: Path,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(empty_server))
    assert oars("ls", *options) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err.partition(". ")[0]) == ("", f"There are no clusters {where}")
    assert oars("ls", *options, "-o", "json") == 0
    assert capsys.readouterr() == ("[]\n", "")


def test_every_job_that_cannot_be_removed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("jobs", "rm", "one", "two", "one") == NotFound.exit_code
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert sorted(errors) == ["error: There is no job 'one'.", "error: There is no job 'two'."]


def test_unusable_kubeconfig_does_not_hide_local_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store().create(record("old", host=EARLIER), {})
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert oars("ls", "-o", "name") == 0
    shown = capsys.readouterr()
    assert shown.out == "old\n"
    assert shown.err.startswith("Kubernetes clusters are not listed: ")
    assert oars("ls", "-o", "name", "--place", "local") == 0
    assert capsys.readouterr().err == ""
    assert oars("ls", "--place", "kubernetes") == 2


def test_silent_api_server_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = tmp_path / "config"
        config.write_text(kubeconfig(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setattr(clusters, "LIST_SECONDS", 0.2)
        begun = time.monotonic()
        assert oars("ls") == 0
        monkeypatch.setattr(clusters, "FIND_SECONDS", 0.2)
        assert oars("status", "demo") == 4
        assert oars("diff", "demo", "--engine", "toy", "--place", "kubernetes") == 4
        assert time.monotonic() - begun < 10
    shown = capsys.readouterr().err
    assert "Kubernetes clusters are not listed: Kubernetes did not answer within 0 s." in shown
    assert "There is no cluster 'demo' on this machine, and Kubernetes did not answer within 0 s." in shown
    assert "Unclosed" not in shown


def kubeconfig(server: str) -> str:
    parts = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "c", **parts})


@pytest.mark.parametrize(
    "args",
    [
        ["cp", "x", "demo:/tmp/x"],
        ["dashboard", "demo", "--port", "8000"],
        ["logs", "demo", "-c", "agent"],
        ["exec", "demo", "-c", "agent", "--", "ls"],
        ["exec", "demo", "--member", "worker-0", "--", "ls"],
    ],
)
def test_options_for_containers_are_refused_for_local_clusters(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    store().create(record("demo", host=EARLIER), {})
    assert oars(*args) == UsageError.exit_code
    assert "error: Cluster 'demo' runs as local processes: " in capsys.readouterr().err


def test_local_and_container_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("exec", "demo", "--local", "-c", "x", "--", "ls") == UsageError.exit_code
    assert "A command cannot run on this machine and in a container." in capsys.readouterr().err


def test_diff_and_apply_of_a_local_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    store().create(record("demo", spec={"engine": "toy", "workers": [{"replicas": 2}]}, host=EARLIER), {})
    assert oars("diff", "demo", "--engine", "toy", "--workers", "2") == 0
    assert capsys.readouterr().out == "demo matches the spec.\n"
    assert oars("diff", "demo", "--engine", "toy", "--workers", "3") == 1
    assert "added: The group 'default' changes from 2 to 3 workers." in capsys.readouterr().out
    assert oars("diff", "new", "--engine", "toy", "-o", "name") == 1
    assert capsys.readouterr().out == "added\n"
    assert oars("apply", "demo", "--engine", "toy", "--cpu", "4", "--workers", "2") == 2
    assert "only the numbers of workers, autoscaling, drain and lifetime can change" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "why", "logs", "down", "shell", "exec", "scale", "dashboard"])
def test_unknown_cluster_gets_a_suggestion(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    store().create(record("demo-1", host=EARLIER), {})
    more = {"scale": ["3"], "exec": ["--", "true"]}.get(command, [])
    assert oars(command, "demo1", *more) == 3
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-2:] == [
        "error: There is no cluster 'demo1' on this machine.",
        "Did you mean 'demo-1'?",
    ]
    assert shown.out == ""


def test_status_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    groups = (GroupStatus("default", 2, 1), GroupStatus("gpu", 1, 0))
    members = (MemberStatus("worker-0", "worker", "default", Phase.FAILED, "h:1", 7, "was killed"),)
    ends = Endpoints("tls://h:1", "http://h:2")
    ill = Status("demo", "dask", "local", Phase.DEGRADED, "WorkerLost", "It is lost.", ends, groups, members)
    emit_status(ill, Service({}), "table")
    assert capsys.readouterr().out.splitlines() == [
        "Name:      demo",
        "Engine:    dask on local",
        "Phase:     Degraded (WorkerLost)",
        "Message:   It is lost.",
        "Workers:   1/3 ready (default 1/2, gpu 0/1)",
        "Client:    tls://h:1",
        "Dashboard: http://h:2",
        "",
        "MEMBER    PHASE   PID  ADDRESS  REASON",
        "worker-0  Failed  7    h:1      was killed",
    ]


def test_dashboard_that_requires_the_token_is_opened_by_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Its address alone would reply 401."""
    ends = Endpoints("h:1", "http://h:2")
    found = Status("rays", "ray", "local", Phase.READY, endpoints=ends, has_guarded_dashboard=True)
    emit_status(found, Service({}), "table", members=False)
    assert capsys.readouterr().out.splitlines()[-1] == "Dashboard: oars dashboard rays"
    emit_status(found, Service({}), "json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["endpoints"]["dashboard"] == "http://h:2" and "has_guarded_dashboard" not in shown


ADAPTED = GroupStatus("default", 0, 0, 0, 4, "Steady", "0 workers are needed.")


@pytest.mark.parametrize(
    ("groups", "workers", "listed"),
    [
        ((ADAPTED,), "0/0 ready (autoscaling 0–4: Steady. 0 workers are needed)", "0/0 (0–4)"),
        (
            (ADAPTED, GroupStatus("gpu", 1, 1)),
            "1/1 ready (default 0/0, autoscaling 0–4: Steady. 0 workers are needed; gpu 1/1)",
            "1/1 (1–5)",
        ),
        ((GroupStatus("default", 2, 1, None, 4),), "1/2 ready (autoscaling 0–4)", "1/2 (0–4)"),
    ],
)
def test_status_and_list_show_autoscaling(
    groups: tuple[GroupStatus, ...], workers: str, listed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Status("demo", "dask", "local", Phase.READY, groups=groups)
    emit_status(found, Service({}), "table")
    assert f"Workers:   {workers}" in capsys.readouterr().out.splitlines()
    assert listed in table([found], _cluster_columns(Service({}), all_namespaces=False), wide=False)


@pytest.mark.parametrize(
    ("words", "mode", "says"),
    [
        (["0", "4"], "direct", True),
        (["--off"], "direct", False),
        (["0", "4"], "operator", False),
        (["0", "4"], "", False),
    ],
)
def test_adapt_says_that_nobody_scales_without_an_operator(
    words: list[str], mode: str, says: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def adapted(*_: object, **__: object) -> Status:
        return replace(STATUS, mode=mode, namespace="team" if mode else "")

    monkeypatch.setattr(Service, "adapt", adapted)
    assert oars("adapt", "demo", *words) == 0
    shown = capsys.readouterr()
    assert "Workers:   2/2 ready" in shown.out
    assert ("follows the load only while an oars command or a Python program uses the cluster." in shown.err) is says
    assert ("`oars top demo -n team --watch`" in shown.err) is says


@pytest.mark.parametrize(
    ("command", "workers", "wanted", "says"),
    [
        (["scale", "demo", "3"], [Phase.READY, Phase.READY], 3, False),
        (["scale", "demo", "1"], [Phase.READY, Phase.STOPPING], 1, True),
        (["scale", "demo", "1"], [Phase.READY, Phase.READY], 1, True),
        (["drain", "demo", "worker-0"], [Phase.READY], 1, True),
    ],
)
def test_without_waiting_only_a_drain_needs_another_command(
    command: list[str], workers: list[Phase], wanted: int, says: bool,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    members = tuple(MemberStatus(f"worker-{n}", "worker", "default", phase) for n, phase in enumerate(workers))

    async def changed(*_: object, **__: object) -> Status:
        return replace(STATUS, mode="direct", groups=(GroupStatus("default", wanted, 1),), members=members)

    monkeypatch.setattr(Service, command[0], changed)
    assert oars(*command, "--no-wait") == 0
    assert ("draining only progresses while" in capsys.readouterr().err) is says


def test_dashboard_on_kubernetes_is_a_command_that_opens_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The address is a name that only pods can resolve."""
    ends = Endpoints("tls://kd-head.team:8786", "http://kd-head.team:8787/status")
    status = Status("kd", "dask", "kubernetes", Phase.READY, endpoints=ends, mode="direct", namespace="team")
    emit_status(status, Service({}, Location("kubernetes", context="lab")), "table")
    assert "Dashboard: oars dashboard kd --context lab -n team" in capsys.readouterr().out
    emit_status(status, Service({}), "json")
    assert json.loads(capsys.readouterr().out)["endpoints"]["dashboard"] == "http://kd-head.team:8787/status"


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (Report(STATUS), ["demo is Ready, 2 of 2 workers ready. Nothing is wrong."]),
        (
            Report(Status("demo", "toy", "local", Phase.STOPPED, "Rebooted", "The machine was restarted.")),
            ["demo is Stopped, 0 of 0 workers ready.", "The machine was restarted."],
        ),
        (
            Report(STATUS, (Cause("CrashLoop", "It dies.", "Read its log: `oars logs demo worker-0`.", ("a", "b")),)),
            [
                "demo is Ready, 2 of 2 workers ready.",
                "",
                "CrashLoop: It dies.",
                "  What to do: Read its log: `oars logs demo worker-0`.",
                "  Last lines of its log:",
                "    a",
                "    b",
            ],
        ),
    ],
)
def test_why_as_text(report: Report, expected: list[str]) -> None:
    assert click.unstyle(_report_text(report)).splitlines() == expected


def test_settings_and_their_sources() -> None:
    found = {s.name: s for s in settings({"HOME": "/h", "OARS_CACHE_DIR": "/c", "XDG_STATE_HOME": "/x"})}
    assert (found["state_dir"].value, found["state_dir"].source) == ("/x/oars", "XDG_STATE_HOME")
    assert (found["cache_dir"].value, found["cache_dir"].source) == ("/c", "OARS_CACHE_DIR")
    assert (found["debug"].value, found["debug"].source) == ("no", "default")
    assert settings({"NO_COLOR": "1"})[-1].value == "yes"


def test_config_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("config", "show", "-o", "yaml") == 0
    assert "source: OARS_STATE_DIR" in capsys.readouterr().out


def environment(path: Path) -> EnvInfo:
    return EnvInfo("dask-1", "dask", "1.2", ("pandas",), "3.11", 2**20, time.time(), time.time() - 7200, path)


def test_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    info = environment(tmp_path)
    monkeypatch.setattr(Environments, "list", lambda self: (info,))
    monkeypatch.setattr(Environments, "remove", lambda self, name: (info,))
    assert oars("env", "ls") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["KEY", "ENGINE", "VERSION", "PYTHON", "SIZE", "USED", "PACKAGES"]
    assert row.split() == ["dask-1", "dask", "1.2", "3.11", "1Mi", "2h", "ago", "pandas"]
    assert oars("env", "rm", "dask", "-o", "name") == 0
    assert capsys.readouterr().out == "dask-1\n"
    store().create(record("user", python=f"{tmp_path}/bin/python"), {})
    assert oars("env", "rm", "--all") == 1
    assert "is in use by cluster 'user'" in capsys.readouterr().err


def levels(findings: Any) -> dict[str, str]:
    return {finding.check: finding.level for finding in findings}


def test_doctor_on_a_good_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("doctor", "-o", "json") == 0
    found = levels(diagnostics.Finding(**each) for each in json.loads(capsys.readouterr().out))
    assert {"python", "uv", "state directory", "shared memory", "memory", "ports", "engine dask"} <= set(found)
    assert "memory limits" in found
    assert "fail" not in found.values()


@pytest.mark.parametrize(
    ("spec", "cgroups", "says"),
    [
        ({"workers": [{"memory": "1Gi"}]}, "off", True),
        ({"workers": [{"memory": "1Gi"}]}, "here", False),
        ({"workers": [{}]}, "off", False),
        ({"workers": [{"memory": "1Gi"}], "place": "kubernetes"}, "off", False),
    ],
)
def test_memory_that_is_not_enforced_is_said_at_the_start(
    spec: dict[str, Any], cgroups: str, says: bool, tmp_path: Path
) -> None:
    (tmp_path / "memory.limit_in_bytes").touch()
    environ = {"OARS_CGROUP": str(tmp_path) if cgroups == "here" else cgroups}
    note = diagnostics.memory_note(build({"engine": "toy", **spec}).spec, environ)
    assert note == ("The memory of its workers is not enforced: OARS_CGROUP is off (`oars doctor`)." if says else "")


def test_doctor_where_the_state_directory_is_a_file(own_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_state.touch()
    assert oars("doctor") == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert f"fail state directory {own_state} cannot be written" in shown
    assert "OARS_STATE_DIR" in shown


def test_doctor_reports_an_engine_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oars changes private parts of the engines, so clusters use the version for which that was written."""
    other = scan.Difference("distributed", "2020.1.0", "2026.8.0")
    monkeypatch.setattr(scan, "differences", lambda needs: (other,) if needs.distribution == "distributed" else ())
    backend = LocalBackend(Settings.from_environ(os.environ), os.environ)
    found = {each.check: each for each in diagnostics.machine(backend)}
    assert found["engine dask"].level == "warn"
    assert "distributed 2020.1.0 instead of 2026.8.0" in found["engine dask"].found
    assert "own environment" in found["engine dask"].found and found["engine ray"].level == "ok"


def test_doctor_finds_unhealthy_clusters_and_leftovers() -> None:
    store().create(record("old", host=EARLIER), {})
    store().create(record("alone"), {})
    store().create(record("broken"), {}).record_file.write_text("{")
    incomplete = store().root / "new-x-1"
    incomplete.mkdir()
    os.utime(incomplete, (0, 0))
    found = levels(diagnostics.clusters(LocalBackend(Settings.from_environ(os.environ), os.environ)))
    assert found["cluster old"] == found["cluster alone"] == found["leftovers"] == "warn"
    assert found["cluster broken"] == "fail"


def test_orphan_is_a_process_whose_cluster_is_gone(tmp_path: Path) -> None:
    (tmp_path / "demo/members/head").mkdir(parents=True)
    environ = {"OARS_MARK": "x", "OARS_CLUSTER_DIR": str(tmp_path / "demo")}
    assert diagnostics.is_orphan(environ)
    (tmp_path / "demo/cluster.json").touch()
    assert not diagnostics.is_orphan(environ)
    assert not diagnostics.is_orphan({"OARS_CLUSTER_DIR": "/nowhere"})


def completed(*words: str) -> list[str]:
    complete = ShellComplete(cli, {}, "oars", "_OARS_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def test_completion_of_commands_options_and_names() -> None:
    directory = store().create(record("demo"), {})
    store().create(record("other"), {})
    directory.log_file("worker-0").touch()
    assert completed("st") == ["status"]
    assert set(completed("")) > {"run", "up", "down"}
    assert "--engine" in completed("up", "--e")
    assert completed("up", "--engine", "d") == ["dask"]
    assert completed("status", "") == ["demo", "other"]
    assert completed("down", "demo", "") == ["other"]
    assert completed("logs", "demo", "w") == ["worker-0"]
    assert completed("env", "") == ["build", "ls", "rm"]


def test_completion_of_files_and_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store().create(record("demo"), {})
    (tmp_path / "work/folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    for name in ("cluster.yaml", "train.py", "notes.txt", ".hidden.yaml", "folder/other.yml"):
        Path(name).touch()
    assert completed("up", "-f", "") == ["cluster.yaml", "folder/"]
    assert completed("up", "-f", "folder/") == ["folder/other.yml"]
    assert completed("run", "--engine", "dask", "") == ["train.py", "folder/"]
    assert completed("run", "train.py", "n") == ["notes.txt"]
    assert "python" in completed("exec", "demo", "--", "pyth")
    assert completed("exec", "demo", "--", "python", "tr") == ["train.py"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("completion", shell) == 0
    assert "_OARS_COMPLETE" in capsys.readouterr().out


def test_ls_shows_when_clusters_end_by_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    service = Service(os.environ, Location("local"))
    soon = replace(STATUS, expires=Expires(time.time() + 900.5, "Idle", "30m without work (lifetime.idle)"))
    columns = _cluster_columns(service, all_namespaces=False)
    assert "EXPIRES" not in table([STATUS], columns, wide=False)
    shown = table([STATUS, replace(soon, name="other")], columns, wide=False).splitlines()
    assert "EXPIRES" in shown[0] and "in 15m (Idle)" in shown[2] and "in" not in shown[1].split()
    emit_status(soon, service, "table")
    assert "Expires:   in 15m (Idle): 30m without work (lifetime.idle)" in capsys.readouterr().out


def test_ls_shows_why_clusters_are_gone(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("ls", "--gone", "--place", "local") == 0
    assert "No cluster ended by itself within the last day on this machine." in capsys.readouterr().err
    store().open()
    gone = Gone("demo", "dask", "local", time.time() - 600, "Idle", "30m without work (lifetime.idle)")
    write_gone(store().root, "0123456789", gone)
    assert oars("ls", "--gone", "--place", "local") == 0
    title, line = capsys.readouterr().out.splitlines()
    assert title.split() == ["NAME", "ENGINE", "PLACE", "ENDED", "REASON", "MESSAGE"]
    assert line.split()[:6] == ["demo", "dask", "local", "10m", "ago", "Idle"]
    assert oars("ls", "--gone", "--place", "local", "-o", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["reason"], found["ended"]) == ("demo", "Idle", gone.ended)


def test_status_says_that_a_cluster_ended_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    store().open()
    for minutes, message in ((90, "8h after its creation (lifetime.max)"), (10, "30m without work (lifetime.idle)")):
        gone = Gone("demo", "dask", "local", time.time() - 60 * minutes, "Idle", message)
        write_gone(store().root, f"{minutes:08}", gone)
    assert oars("status", "demo", "--place", "local") == 3
    ended = "There is no cluster 'demo' on this machine: it ended by itself 10m ago, 30m without work (lifetime.idle)."
    assert ended in capsys.readouterr().err
    assert oars("status", "other", "--place", "local") == 3
    assert "There is no cluster 'other' on this machine." in capsys.readouterr().err
