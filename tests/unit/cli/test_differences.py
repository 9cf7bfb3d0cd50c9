"""`oars diff` and `oars apply`: what is looked at where, and what a cluster of this machine can follow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oars.base.errors import SpecError
from oars.cli import differences, failures, lookup
from oars.cli.cp import Far, far
from oars.cli.in_cluster import CONNECT, driver_env, python, with_env
from oars.cli.main import _call
from oars.cli.options import kept
from oars.client.backends import Where
from oars.client.kubernetes import KubeBackend
from oars.places.kube.render.changes import Change, Effect
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Phase, Status
from tests.unit.cli.test_look import intent
from tests.unit.places.test_kube_changes import cluster


def spec(**fields: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"engine": "dask", **fields})


def here(before: ClusterSpec, after: ClusterSpec) -> list[Effect]:
    return [change.effect for change in differences.on_this_machine(before, after)]


def test_on_this_machine_only_numbers_can_change() -> None:
    made = spec(workers=[{"replicas": 2, "memory": "1Gi"}, {"name": "b"}], head={"memory": "2Gi"})
    assert here(made, spec(workers=[{"replicas": 2}, {"name": "b"}])) == []
    assert here(made, spec(workers=[{"replicas": 1}, {"name": "b", "replicas": 4}])) == [Effect.DRAINED, Effect.ADDED]
    assert here(made, spec(workers=[{"replicas": 2}])) == [Effect.REFUSED]
    assert here(made, spec(workers=[{"replicas": 2, "memory": "2Gi"}, {"name": "b"}])) == [Effect.REFUSED]
    assert here(made, spec(workers=[{"replicas": 2}, {"name": "b"}], image="x", place="kubernetes")) == []


@pytest.mark.parametrize(
    ("fields", "where", "expected"),
    [
        ({}, Where(), Where()),
        ({"place": "kubernetes"}, Where(), Where("kubernetes")),
        ({"place": "kubernetes"}, Where("local"), Where("local")),
        ({"namespace": {"name": "x"}}, Where(), Where("kubernetes", namespace="x")),
        ({"namespace": {"create": True}}, Where(mode="direct"), Where("kubernetes", namespace="demo", mode="direct")),
        ({}, Where("kubernetes", namespace="n"), Where("kubernetes", namespace="n")),
        ({"namespace": {"create": True}}, Where(namespace="n"), Where("kubernetes", namespace="n")),
    ],
)
def test_where_it_is_looked_for(fields: dict[str, Any], where: Where, expected: Where) -> None:
    assert differences.whereabouts("demo", spec(**fields), where) == expected


def test_what_is_refused_is_an_error() -> None:
    differences.check("demo", [Change(Effect.HEAD, "It goes.")])
    with pytest.raises(SpecError, match="engine cannot change") as raised:
        differences.check("demo", [Change(Effect.REFUSED, "engine cannot change: so.", ("engine: a → b",))])
    assert raised.value.details == ("engine: a → b",)


def oars(*args: str) -> int:
    return failures.guard(lambda: _call(args))


def test_diff_as_commands(capsys: pytest.CaptureFixture[str]) -> None:
    kept().store.create(intent("demo", spec={"engine": "toy", "workers": [{"replicas": 2}]}, boot="another"), {})
    assert oars("diff", "demo", "--engine", "toy", "--workers", "2") == 0
    assert capsys.readouterr().out == "demo is as described.\n"
    assert oars("diff", "demo", "--engine", "toy", "--workers", "3") == 1
    assert "added: The group 'default' changes from 2 to 3 workers." in capsys.readouterr().out
    assert oars("diff", "new", "--engine", "toy", "-o", "name") == 1
    assert capsys.readouterr().out == "added\n"
    assert oars("apply", "demo", "--engine", "toy", "--cpu", "4", "--workers", "2") == 2
    assert "only the numbers of workers can change" in capsys.readouterr().err


# in a pod


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("demo:/tmp/x", Far("demo", "head", "/tmp/x")),
        ("demo:data.csv", Far("demo", "head", "data.csv")),
        ("demo:worker-5d9-x2x:/a:b", Far("demo", "worker-5d9-x2x", "/a:b")),
        ("./a:b", None),
        ("/a:b", None),
        ("data.csv", None),
        ("demo:", None),
    ],
)
def test_which_end_is_far(word: str, expected: Far | None) -> None:
    assert far(word) == expected


def test_a_program_in_the_head_pod_finds_the_cluster() -> None:
    env = driver_env(cluster())
    assert env["DASK_SCHEDULER_ADDRESS"] == env["OARS_ADDRESS"] == "tls://demo-head:8786"
    assert env["DASK_DISTRIBUTED__COMM__TLS__CA_FILE"] == "/etc/oars/secrets/ca.pem"
    assert driver_env(cluster(engine="ray"))["RAY_ADDRESS"] == "demo-head:6379"
    assert not any("$(" in value for engine in CONNECT for value in driver_env(cluster(engine=engine)).values())
    assert with_env({"A": "1 2"}, ["x", "y"]) == ["env", "A=1 2", "x", "y"]


@pytest.mark.parametrize("engine", CONNECT)
def test_the_words_of_a_shell_in_a_pod_compile(engine: str) -> None:
    env = {"OARS_ENGINE": engine, "OARS_NAME": "demo", "OARS_ADDRESS": "a:1"}
    for interactive in (True, False):
        compile(python(env, interactive=interactive)[-1], "shell", "exec")


# reports


class Silent(KubeBackend):
    """Of a cluster whose operator is away: the last change is never acted upon."""

    def __init__(self) -> None:
        self.told = Report(Status("demo", "dask", "kubernetes", Phase.READY, message="Fine.", generation=1))

    async def generation(self, name: str) -> int:
        return 2

    async def watch(self, name: str) -> Any:
        yield self.told
        await asyncio.Event().wait()


def test_an_operator_that_is_away_is_not_waited_for() -> None:
    status = asyncio.run(lookup.report_of(Silent(), "demo", 0.1)).status
    assert status.phase is Phase.READY
    assert status.message.startswith("Fine. Nobody has acted on the last change yet")
