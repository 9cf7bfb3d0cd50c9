"""Commands that only look: ls on broken records, doctor, config, env, why and status as text, completion."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from oars.cli import config, failures, leftovers, lookup, ls, machine, status, why
from oars.cli.main import _call, cli
from oars.cli.options import kept
from oars.envs import Environments
from oars.envs.cache import EnvInfo
from oars.model import Cause
from oars.places.local.process import boot_id
from oars.places.local.store import Intent
from oars.places.report import Report
from oars.spec.status import Endpoints, GroupStatus, MemberStatus, Phase, Status

STATUS = Status("demo", "toy", "local", Phase.READY, groups=(GroupStatus("default", 2, 2),))


def oars(*args: str) -> int:
    return failures.guard(lambda: _call(args))


def intent(name: str, **changes: Any) -> Intent:
    facts = {
        "spec": {"engine": "toy"},
        "shape": {},
        "python": "/x/python",
        "mark": "m",
        "created": 0.0,
        "boot": boot_id(),
    }
    return Intent(name=name, **{**facts, **changes})


def test_ls_survives_broken_and_rebooted_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    store = kept().store
    store.create(intent("old", boot="another"), {})
    store.create(intent("broken"), {}).intent_file.write_text("{")
    store.create(intent("hole"), {}).intent_file.write_text("{}")
    assert oars("ls", "-o", "json") == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert {name: (each["phase"], each["reason"]) for name, each in found.items()} == {
        "old": ("Stopped", "Rebooted"),
        "broken": ("Failed", "Damaged"),
        "hole": ("Failed", "Damaged"),
    }
    assert all("members" not in each for each in found.values())
    assert oars("ls") == 0
    assert "Its record cannot be read" in capsys.readouterr().out


def test_ls_does_not_wait_for_a_keeper_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = kept()
    for name in ("a", "b"):
        mine.store.create(intent(name), {}).write_report(Report(STATUS))

    async def never(name: str) -> Report:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(mine, "report", never)
    monkeypatch.setattr(ls, "ANSWER_SECONDS", 0.05)
    begun = time.monotonic()
    found = asyncio.run(ls._look(mine))
    assert time.monotonic() - begun < 2
    assert [(each.phase, each.reason, each.ready) for each in found] == [(Phase.DEGRADED, "KeeperSilent", 2)] * 2


def test_nothing_to_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("ls") == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "No clusters. Start one with `oars up NAME --engine dask`.\n")
    assert oars("ls", "-o", "json") == 0
    assert capsys.readouterr().out == "[]\n"
    assert oars("ls", "-o", "name") == 0
    assert oars("down", "--all", "-q") == 0
    assert capsys.readouterr().out == ""


def test_kubernetes_that_does_not_answer_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept().store.create(intent("old", boot="another"), {})
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert oars("ls", "-o", "name") == 0
    shown = capsys.readouterr()
    assert shown.out == "old\n"
    assert shown.err.startswith("Kubernetes is left out: ")
    assert oars("ls", "-o", "name", "--place", "local") == 0
    assert capsys.readouterr().err == ""
    assert oars("ls", "--place", "kubernetes") == 2


def test_kubernetes_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = tmp_path / "config"
        config.write_text(kubeconfig(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setattr(ls, "KUBERNETES_SECONDS", 0.2)
        begun = time.monotonic()
        assert oars("ls") == 0
        monkeypatch.setattr(lookup, "FIND_SECONDS", 0.2)
        assert oars("status", "demo") == 4
        assert oars("diff", "demo", "--engine", "toy", "--place", "kubernetes") == 4
        assert time.monotonic() - begun < 10
    said = capsys.readouterr().err
    assert "Kubernetes is left out: it did not answer" in said
    assert "There is no cluster 'demo' on this machine, and Kubernetes did not answer within 0 s." in said
    assert "Unclosed" not in said


def kubeconfig(server: str) -> str:
    parts = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "c", **parts})


def test_words_for_clusters_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    kept().store.create(intent("demo", boot="another"), {})
    assert oars("cp", "x", "demo:/tmp/x") == 2
    assert "The cluster 'demo' runs on this machine.\nIts files are" in capsys.readouterr().err
    assert oars("dashboard", "demo", "--port", "8000") == 2
    assert "--port is about Kubernetes" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "why", "logs", "down", "shell", "exec", "scale", "dashboard"])
def test_no_such_cluster(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    kept().store.create(intent("demo-1", boot="another"), {})
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
    status.emit_one(ill, "table")
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
    ("report", "said"),
    [
        (Report(STATUS), ["demo is Ready, 2 of 2 workers are ready. Nothing is wrong."]),
        (
            Report(Status("demo", "toy", "local", Phase.STOPPED, "Rebooted", "The machine was restarted.")),
            ["demo is Stopped, 0 of 0 workers are ready.", "The machine was restarted."],
        ),
        (
            Report(STATUS, (Cause("CrashLoop", "It dies.", "Read its log: `oars logs NAME worker-0`.", ("a", "b")),)),
            [
                "demo is Ready, 2 of 2 workers are ready.",
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
def test_why_as_text(report: Report, said: list[str]) -> None:
    assert click.unstyle(why._text(report)).splitlines() == said


def test_settings_and_their_sources() -> None:
    found = {s.name: s for s in config.settings({"HOME": "/h", "OARS_CACHE_DIR": "/c", "XDG_STATE_HOME": "/x"})}
    assert (found["state_dir"].value, found["state_dir"].source) == ("/x/oars", "XDG_STATE_HOME")
    assert (found["cache_dir"].value, found["cache_dir"].source) == ("/c", "OARS_CACHE_DIR")
    assert (found["debug"].value, found["debug"].source) == ("no", "default")
    assert config.settings({"NO_COLOR": "1"})[-1].value == "yes"


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
    kept().store.create(intent("user", python=f"{tmp_path}/bin/python"), {})
    assert oars("env", "rm", "--all") == 1
    assert "is in use by the cluster 'user'" in capsys.readouterr().err


def levels(findings: Any) -> dict[str, str]:
    return {finding.check: finding.level for finding in findings}


def test_doctor_on_a_good_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("doctor", "-o", "json") == 0
    found = levels(machine.Finding(**each) for each in json.loads(capsys.readouterr().out))
    assert {"python", "uv", "state directory", "shared memory", "memory", "ports", "engine dask"} <= set(found)
    assert "fail" not in found.values()


def test_doctor_where_the_state_directory_is_a_file(own_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_state.touch()
    assert oars("doctor") == 1
    shown = capsys.readouterr().out
    assert f"fail  state directory  {own_state} cannot be written" in shown
    assert "OARS_STATE_DIR" in shown


def test_doctor_finds_what_is_ill_or_left() -> None:
    mine = kept()
    mine.store.create(intent("old", boot="another"), {})
    mine.store.create(intent("alone"), {})
    mine.store.create(intent("broken"), {}).intent_file.write_text("{")
    half = mine.store.root / "new-x-1"
    half.mkdir()
    os.utime(half, (0, 0))
    found = levels(leftovers.examine(mine))
    assert found["cluster old"] == found["cluster alone"] == found["leftovers"] == "warn"
    assert found["cluster broken"] == "fail"


def test_an_orphan_is_one_whose_cluster_is_gone(tmp_path: Path) -> None:
    (tmp_path / "demo/members/head").mkdir(parents=True)
    environ = {"OARS_MARK": "x", "OARS_CLUSTER_DIR": str(tmp_path / "demo")}
    assert leftovers._orphaned(environ)
    (tmp_path / "demo/cluster.json").touch()
    assert not leftovers._orphaned(environ)
    assert not leftovers._orphaned({"OARS_CLUSTER_DIR": "/nowhere"})


def completed(*words: str) -> list[str]:
    complete = ShellComplete(cli, {}, "oars", "_OARS_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def test_completion() -> None:
    directory = kept().store.create(intent("demo"), {})
    kept().store.create(intent("other"), {})
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
