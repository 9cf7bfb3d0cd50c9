"""Options become a spec and a location; which arguments belong to a script."""

from __future__ import annotations

import asyncio
import io
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import click
import pytest

from oars.base.errors import NotFound, SpecError, UsageError
from oars.cli import errors
from oars.cli.access import execute
from oars.cli.main import call
from oars.cli.options import ClusterOptions, location_options
from oars.cli.run import run
from oars.client.cluster import AsyncCluster
from oars.service import Location, Service
from oars.service.scripts import FrontDoor, ScriptRun, module_directory, own_modules
from oars.service.specs import generate_name

NOT_GIVEN: dict[str, Any] = dict.fromkeys(["engine", "workers", "cpu", "memory", "image", "packages"])
FILE = """
apiVersion: oars.dev/v1alpha1
kind: ComputeCluster
metadata: {name: from-file}
spec:
  engine: ray
  workers: [{name: a, replicas: 2, cpu: 1}, {name: b, replicas: 1}]
"""


def options(
    file: str | None = None, name: str | None = None, location: Location | None = None, sets: Any = (), **overrides: Any
) -> ClusterOptions:
    return ClusterOptions(file, sets, {**NOT_GIVEN, **overrides}, name, location or Location())


def test_spec_from_options() -> None:
    spec = options(engine="dask", workers=3, cpu="500m", memory="1Gi", packages=("pandas",)).manifest.spec
    assert (spec.engine, spec.place) == ("dask", "local")
    assert [(g.replicas, g.cpu, g.memory) for g in spec.workers] == [(3, 0.5, 2**30)]
    assert spec.environment.packages == ("pandas",)


def test_options_override_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    manifest = options(file=str(path), workers=5, memory="2Gi", sets=("workers.b.replicas=4", "head.cpu=2")).manifest
    assert manifest.name == "from-file"
    assert [(g.replicas, g.memory) for g in manifest.spec.workers] == [(5, 2**31), (4, 2**31)]
    assert manifest.spec.head.cpu == 2


def test_file_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(FILE))
    assert options(file="-", engine="dask").manifest.spec.engine == "dask"


def test_engine_can_be_set_by_path() -> None:
    assert options(sets=("engine=mars",)).manifest.spec.engine == "mars"


def test_name_on_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    assert options(file=str(path)).resolve(None, generate_name)[0] == "from-file"
    assert options(file=str(path), name="b").resolve(None, generate_name)[0] == "b"
    assert options(file=str(path)).resolve("c")[0] == "c"
    assert options(engine="dask").resolve(None, generate_name)[0].startswith("dask-")
    with pytest.raises(UsageError, match="Two names"):
        options(engine="dask", name="b").resolve("c")
    with pytest.raises(SpecError, match="'B_' is"):
        Service({}).new("B_", options(engine="dask").manifest.spec, timeout=1)


@pytest.mark.parametrize(
    ("args", "engine", "workers", "script"),
    [
        (["-q", "s.py", "--engine", "ray", "--workers", "2"], "ray", 2, []),
        (["--engine", "ray", "s.py", "--workers", "8", "--epochs", "3"], "ray", 8, ["--epochs", "3"]),
        (["--engine", "ray", "s.py", "--", "--workers", "8", "-f", "x"], "ray", None, ["--workers", "8", "-f", "x"]),
        (["--engine", "ray", "--", "s.py", "--workers", "8"], "ray", None, ["--workers", "8"]),
        (["--set", "a=1", "s.py", "--set", "b=2", "--engine", "ray"], "ray", None, []),
        (["--engine=ray", "--workers", "2", "s.py"], "ray", 2, []),
        (["--engine=ray", "s.py", "--", "--", "-x"], "ray", None, ["--", "-x"]),
        (["s.py", "--engine", "ray", "--workers", "4"], "ray", 4, []),
        (["s.py", "a", "--engine", "ray", "--lr=1", "-v", "b"], "ray", None, ["a", "--lr=1", "-v", "b"]),
        (["s.py", "--engine", "ray", "--", "--workers", "8"], "ray", None, ["--workers", "8"]),
    ],
)
def test_arguments_of_the_script(args: list[str], engine: str, workers: int | None, script: list[str]) -> None:
    with run.make_context("run", list(args)) as context:
        assert context.params["script"] == ("s.py", *script)
        assert context.params["engine"] == engine
        assert context.params["workers"] == workers


def test_module_instead_of_a_script() -> None:
    words = ["--workers", "2", "-m", "package.train", "--epochs", "3", "--engine", "ray", "--", "--workers", "8"]
    with run.make_context("run", words) as context:
        assert context.params["module"] == "package.train"
        assert context.params["script"] == ("--epochs", "3", "--workers", "8")
        assert (context.params["engine"], context.params["workers"]) == ("ray", 2)


def test_option_on_both_sides_of_the_script_is_refused() -> None:
    """One of them may be the script's own."""
    for words in (["--workers", "2", "s.py", "--workers", "8"], ["s.py", "--workers", "2", "--workers=8"]):
        with pytest.raises(UsageError, match="--workers is given twice") as raised:
            run.make_context("run", words)
        assert raised.value.hint == "If one is for s.py, put `--` before its arguments."


def test_run_needs_a_script_or_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guard(lambda: call(["run", "--engine", "toy"])) == 2
    assert "No script is named." in capsys.readouterr().err


def test_mistyped_option_before_the_script_is_refused() -> None:
    with pytest.raises(click.NoSuchOption, match="enigne"):
        run.make_context("run", ["--enigne", "ray", "s.py"])


def test_module_directory_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    script = tmp_path / "real/s.py"
    script.touch()
    (tmp_path / "link.py").symlink_to(script)
    assert module_directory(str(tmp_path / "link.py")) == module_directory(str(script)) == (tmp_path / "real").resolve()
    with pytest.raises(NotFound, match="There is no script"):
        module_directory(str(tmp_path / "nix.py"))
    with pytest.raises(UsageError, match="is a directory"):
        module_directory(str(tmp_path))
    (tmp_path / "__main__.py").touch()
    assert module_directory(str(tmp_path)) == tmp_path.resolve()


def test_own_modules_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("helper.py", "other.py", "package/__init__.py", "package/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    script = tmp_path / "train.py"
    script.write_text("import os, numpy\nfrom package.train import f\ndef g():\n    import helper.x as y\n")
    assert own_modules([str(script), "--epochs", "3"]) == ["helper", "package"]
    (tmp_path / "package/train.py").write_text("import helper")
    monkeypatch.chdir(tmp_path)
    assert own_modules(["-m", "package.train"]) == ["helper"]
    script.write_text("no python")
    assert own_modules([str(script)]) == []


def test_run_on_kubernetes_warns_of_modules_that_are_not_sent(tmp_path: Path) -> None:
    class Cluster:
        name, place = "demo", "kubernetes"

        async def start(self) -> None:
            raise NotFound("There is no cluster here.")

    (tmp_path / "helper.py").touch()
    (tmp_path / "train.py").write_text("import helper")
    lines: list[str] = []
    caller = FrontDoor(lines.append, lambda: None, nullcontext, lines.append, lambda: False)  # type: ignore[arg-type]
    for place in ("kubernetes", "local"):
        cluster = Cluster()
        cluster.place = place
        with pytest.raises(NotFound):
            asyncio.run(ScriptRun(cast(AsyncCluster, cluster), [str(tmp_path / "train.py")], caller).run())
    (line,) = lines
    assert line.startswith("helper cannot be imported in the pods")


# location


def location(*args: str) -> Location:
    """The location that a command with these arguments gets."""
    found: list[Location] = []

    @click.command()
    @location_options
    def command(service: Service) -> None:
        found.append(service.location)

    command.main(list(args), standalone_mode=False)
    return found[0]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], Location()),
        (["--place", "local"], Location("local")),
        (["-n", "ns"], Location("kubernetes", namespace="ns")),
        (["--context", "c", "--kubeconfig", "k"], Location("kubernetes", "c", kubeconfig="k")),
        (["--place", "kubernetes"], Location("kubernetes")),
    ],
)
def test_kubernetes_option_implies_the_place(args: list[str], expected: Location) -> None:
    assert location(*args) == expected


def test_namespace_contradicts_the_local_place() -> None:
    with pytest.raises(UsageError, match="--namespace applies to Kubernetes only, but --place is 'local'"):
        location("--place", "local", "-n", "ns")


def test_place_and_image_are_part_of_the_spec() -> None:
    spec = options(engine="dask", image="a/b:1", location=Location("kubernetes")).manifest.spec
    assert (spec.place, spec.image) == ("kubernetes", "a/b:1")
    assert options(engine="dask", location=Location()).manifest.spec.place == "local"


def test_namespace_of_file_and_option_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE + "  namespace: {name: a}\n")
    assert options(file=str(path), location=Location("kubernetes", namespace="a")).resolve(None)[0] == "from-file"
    with pytest.raises(UsageError, match="has namespace 'a', but --namespace is 'b'"):
        options(file=str(path), location=Location("kubernetes", namespace="b")).resolve(None)


def test_stdin_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(FILE))
    given = options(file="-")
    assert given.manifest == given.manifest


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
def test_options_around_the_name(args: list[str], command: list[str], namespace: str | None, local: bool) -> None:
    with execute.make_context("exec", list(args)) as context:
        assert context.params["name"] == "demo"
        assert list(context.params["command"]) == command
        assert context.params["namespace"] == namespace
        assert context.params["local"] is local


def test_unknown_option_after_the_name_is_refused() -> None:
    with pytest.raises(click.NoSuchOption, match="lokal"):
        execute.make_context("exec", ["demo", "--lokal", "--", "env"])
