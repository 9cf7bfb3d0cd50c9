"""From options to a description, and which words are the script's."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import pytest

from oars.base.errors import NotFound, SpecError, UsageError
from oars.cli.lookup import where_words
from oars.cli.options import ClusterOptions, where_options
from oars.cli.run import _home, run
from oars.cli.shell import execute
from oars.client.backends import Where

EMPTY: dict[str, Any] = dict.fromkeys(["file", "engine", "workers", "cpu", "memory", "image", "option_name"])
FILE = """
apiVersion: oars.dev/v1alpha1
kind: ComputeCluster
metadata: {name: from-file}
spec:
  engine: ray
  workers: [{name: a, replicas: 2, cpu: 1}, {name: b, replicas: 1}]
"""


def options(**given: Any) -> ClusterOptions:
    return ClusterOptions(**{**EMPTY, "sets": (), "packages": (), **given})


def test_options_alone() -> None:
    spec = options(engine="dask", workers=3, cpu="500m", memory="1Gi", packages=("pandas",)).manifest().spec
    assert (spec.engine, spec.place) == ("dask", "local")
    assert [(g.replicas, g.cpu, g.memory) for g in spec.workers] == [(3, 0.5, 2**30)]
    assert spec.environment.packages == ("pandas",)


def test_options_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    manifest = options(file=str(path), workers=5, memory="2Gi", sets=("workers.b.replicas=4", "head.cpu=2")).manifest()
    assert manifest.name == "from-file"
    assert [(g.replicas, g.memory) for g in manifest.spec.workers] == [(5, 2**31), (4, 2**31)]
    assert manifest.spec.head.cpu == 2


def test_a_file_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(FILE))
    assert options(file="-", engine="dask").manifest().spec.engine == "dask"


def test_the_engine_may_be_set_by_path() -> None:
    assert options(sets=("engine=mars",)).manifest().spec.engine == "mars"


def test_which_name_wins(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    assert options(file=str(path)).cluster().name == "from-file"
    assert options(file=str(path), option_name="b").cluster().name == "b"
    assert options(file=str(path)).cluster("c").name == "c"
    assert options(engine="dask").cluster().name.startswith("dask-")
    with pytest.raises(UsageError, match="Two names"):
        options(engine="dask", option_name="b").cluster("c")
    with pytest.raises(SpecError, match="'B_' is no valid name"):
        options(engine="dask").cluster("B_")


@pytest.mark.parametrize(
    ("args", "engine", "workers", "script"),
    [
        (["--engine", "ray", "s.py", "--workers", "8", "-f", "x"], "ray", None, ["--workers", "8", "-f", "x"]),
        (["--engine=ray", "--workers", "2", "s.py"], "ray", 2, []),
        (["--engine=ray", "s.py", "--", "-x"], "ray", None, ["--", "-x"]),
        (["s.py", "--engine", "ray", "--workers", "4"], "ray", 4, []),
        (["s.py", "a", "--engine", "ray", "--lr=1", "-v", "b"], "ray", None, ["a", "--lr=1", "-v", "b"]),
        (["s.py", "--engine", "ray", "--", "--workers", "8"], "ray", None, ["--workers", "8"]),
    ],
)
def test_whose_words(args: list[str], engine: str, workers: int | None, script: list[str]) -> None:
    with run.make_context("run", list(args)) as context:
        assert context.params["script"] == "s.py"
        assert context.params["engine"] == engine
        assert context.params["workers"] == workers
        assert list(context.params["args"]) == script


def test_a_mistyped_option_before_the_script_is_refused() -> None:
    with pytest.raises(click.NoSuchOption, match="enigne"):
        run.make_context("run", ["--enigne", "ray", "s.py"])


def test_the_script_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    script = tmp_path / "real/s.py"
    script.touch()
    (tmp_path / "link.py").symlink_to(script)
    assert _home(str(tmp_path / "link.py")) == _home(str(script)) == (tmp_path / "real").resolve()
    with pytest.raises(NotFound, match="There is no script"):
        _home(str(tmp_path / "nix.py"))
    with pytest.raises(UsageError, match="is a directory"):
        _home(str(tmp_path))
    (tmp_path / "__main__.py").touch()
    assert _home(str(tmp_path)) == tmp_path.resolve()


# where


def where(*args: str) -> Where:
    """What a command that finds clusters is told."""
    found: list[Where] = []

    @click.command()
    @where_options
    def command(where: Where) -> None:
        found.append(where)

    command.main(list(args), standalone_mode=False)
    return found[0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], Where()),
        (["--place", "local"], Where("local")),
        (["-n", "ns"], Where("kubernetes", namespace="ns")),
        (["--context", "c", "--kubeconfig", "k"], Where("kubernetes", "c", kubeconfig="k")),
        (["--place", "kubernetes"], Where("kubernetes")),
    ],
)
def test_who_speaks_of_kubernetes_means_kubernetes(args: list[str], said: Where) -> None:
    assert where(*args) == said


def test_local_and_a_namespace_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="--namespace is about Kubernetes, and --place says local"):
        where("--place", "local", "-n", "ns")


def test_the_place_and_the_image_are_part_of_the_description() -> None:
    spec = options(engine="dask", image="a/b:1", where=Where("kubernetes")).manifest().spec
    assert (spec.place, spec.image) == ("kubernetes", "a/b:1")
    assert options(engine="dask", where=Where()).manifest().spec.place == "local"


def test_the_file_and_the_option_agree_on_the_namespace(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE + "  namespace: {name: a}\n")
    assert options(file=str(path), where=Where("kubernetes", namespace="a")).named(None)[0] == "from-file"
    with pytest.raises(UsageError, match="says namespace 'a', and --namespace says 'b'"):
        options(file=str(path), where=Where("kubernetes", namespace="b")).named(None)


def test_stdin_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(FILE))
    given = options(file="-")
    assert given.manifest() == given.manifest()


def test_what_the_next_command_needs() -> None:
    assert where_words(Where("kubernetes"), "ns") == " -n ns"
    assert where_words(Where("kubernetes", "c", "n", "k")) == " --kubeconfig k --context c -n n"
    assert where_words(None) == ""
    assert where_words(Where("kubernetes", namespace="said"), "lives-here") == " -n lives-here"


@pytest.mark.parametrize(
    ("args", "command", "namespace", "local"),
    [
        (["demo", "--", "env"], ["--", "env"], None, False),
        (["demo", "python", "-n", "x"], ["python", "-n", "x"], None, False),
        (["demo", "-n", "ns", "--", "ls", "-n"], ["--", "ls", "-n"], "ns", False),
        (["-n", "ns", "demo", "ls"], ["ls"], "ns", False),
        (["demo", "--local", "--namespace=ns", "--", "--local"], ["--", "--local"], "ns", True),
    ],
)
def test_whose_options(args: list[str], command: list[str], namespace: str | None, local: bool) -> None:
    with execute.make_context("exec", list(args)) as context:
        assert context.params["name"] == "demo"
        assert list(context.params["command"]) == command
        assert context.params["namespace"] == namespace
        assert context.params["local"] is local


def test_an_option_that_is_nobodys() -> None:
    with pytest.raises(click.NoSuchOption, match="lokal"):
        execute.make_context("exec", ["demo", "--lokal", "--", "env"])
