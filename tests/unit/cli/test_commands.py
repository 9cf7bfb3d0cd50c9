"""Commands that only read: ls, status, why, diff, doctor, config, env, completion."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from oars.base.errors import UsageError
from oars.base.settings import Settings
from oars.cli import errors
from oars.cli.clusters import _report_text, emit_status
from oars.cli.machine import settings
from oars.cli.main import call, cli
from oars.client.local import LocalBackend
from oars.envs import Environments
from oars.envs.cache import EnvInfo
from oars.model import Cause
from oars.places.report import Report
from oars.service import clusters, diagnostics
from oars.spec.status import Endpoints, GroupStatus, MemberStatus, Phase, Status
from tests.unit.local_clusters import record, store

STATUS = Status("demo", "toy", "local", Phase.READY, groups=(GroupStatus("default", 2, 2),))


def oars(*args: str) -> int:
    return errors.guard(lambda: call(args))


def test_ls_survives_broken_and_rebooted_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    store().create(record("old", boot="another"), {})
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


def test_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("ls") == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "No clusters. Create one with `oars up demo --engine dask`.\n")
    assert oars("ls", "-o", "json") == 0
    assert capsys.readouterr().out == "[]\n"
    assert oars("ls", "-o", "name") == 0
    assert oars("down", "--all", "-q") == 0
    assert capsys.readouterr().out == ""


def test_unusable_kubeconfig_does_not_hide_local_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store().create(record("old", boot="another"), {})
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
    store().create(record("demo", boot="another"), {})
    assert oars(*args) == UsageError.exit_code
    assert "error: Cluster 'demo' runs as local processes: " in capsys.readouterr().err


def test_local_and_container_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("exec", "demo", "--local", "-c", "x", "--", "ls") == UsageError.exit_code
    assert "A command cannot run on this machine and in a container." in capsys.readouterr().err


def test_diff_and_apply_of_a_local_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    store().create(record("demo", spec={"engine": "toy", "workers": [{"replicas": 2}]}, boot="another"), {})
    assert oars("diff", "demo", "--engine", "toy", "--workers", "2") == 0
    assert capsys.readouterr().out == "demo matches the spec.\n"
    assert oars("diff", "demo", "--engine", "toy", "--workers", "3") == 1
    assert "added: The group 'default' changes from 2 to 3 workers." in capsys.readouterr().out
    assert oars("diff", "new", "--engine", "toy", "-o", "name") == 1
    assert capsys.readouterr().out == "added\n"
    assert oars("apply", "demo", "--engine", "toy", "--cpu", "4", "--workers", "2") == 2
    assert "only the numbers of workers can change" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "why", "logs", "down", "shell", "exec", "scale", "dashboard"])
def test_unknown_cluster_gets_a_suggestion(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    store().create(record("demo-1", boot="another"), {})
    more = {"scale": ["3"], "exec": ["--", "true"]}.get(command, [])
    assert oars(command, "demo1", *more) == 3
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-2:] == ["error: There is no cluster 'demo1'.", "Did you mean 'demo-1'?"]
    assert shown.out == ""


def test_status_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    groups = (GroupStatus("default", 2, 1), GroupStatus("gpu", 1, 0))
    members = (MemberStatus("worker-0", "worker", "default", Phase.FAILED, "h:1", 7, "was killed"),)
    ends = Endpoints("tls://h:1", "http://h:2")
    ill = Status("demo", "dask", "local", Phase.DEGRADED, "WorkerLost", "It is lost.", ends, groups, members)
    emit_status(ill, "table")
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
    assert "fail" not in found.values()


def test_doctor_where_the_state_directory_is_a_file(own_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_state.touch()
    assert oars("doctor") == 1
    shown = capsys.readouterr().out
    assert f"fail  state directory  {own_state} cannot be written" in shown
    assert "OARS_STATE_DIR" in shown


def test_doctor_finds_unhealthy_clusters_and_leftovers() -> None:
    store().create(record("old", boot="another"), {})
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("completion", shell) == 0
    assert "_OARS_COMPLETE" in capsys.readouterr().out
