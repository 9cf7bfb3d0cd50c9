"""Build contexts of container images, and the program that builds them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from lab.errors import LabError
from lab.images import containerfile

from oars import engines
from oars.base.errors import EnvironmentFailed, OarsError, TimedOut, UsageError
from oars.envs import builder
from oars.envs.image import CONTAINERFILE, Context, ImageRequest, make_context
from oars.service.images import ImageOptions, build_image
from oars.spec.load import build

SPECS: dict[str, dict[str, Any]] = {
    "dask": {"engine": "dask"},
    "ray": {"engine": "ray"},
    "xorbits": {"engine": "mars"},
    "pymars": {"engine": "mars", "mars": {"distribution": "pymars"}},
}


def context(name: str = "xorbits", **more: Any) -> Context:
    spec = build(SPECS[name]).spec
    return make_context(ImageRequest(spec.engine, engines.get(spec.engine).needs(spec), **more))


@pytest.mark.parametrize("name", SPECS)
def test_context_of_every_engine(name: str) -> None:
    made = context(name, packages=["cowsay==6"])
    needs = engines.get(SPECS[name]["engine"]).needs(build(SPECS[name]).spec)
    assert made.texts["requirements.txt"].splitlines() == [*needs.requirements, "cowsay==6"]
    lines = made.texts[CONTAINERFILE].splitlines()
    assert lines[1].startswith("FROM docker.io/library/python:3.11") and "USER 1000:1000" in lines
    copied = next(line for line in lines if line.startswith("COPY")).split()[1:-1]
    assert sorted(copied) == sorted(set(made.texts) - {CONTAINERFILE})


def test_what_is_compiled_has_its_own_stage() -> None:
    text = context("pymars").texts[CONTAINERFILE]
    first, second = text.split("FROM ")[1:]
    assert first.startswith("docker.io/library/python:3.11 AS build") and "--no-build-isolation" in first
    assert second.startswith("docker.io/library/python:3.11-slim") and "COPY --from=build /opt/env /opt/env" in second


@pytest.mark.parametrize(
    ("name", "tag"), [("xorbits", "oars-mars:0.8.2"), ("pymars", "oars-mars:0.10.0"), ("ray", "oars-ray:2.60.0")]
)
def test_default_tag_has_the_version(name: str, tag: str) -> None:
    assert context(name).tag == tag
    assert context(name, tag="registry:5000/team/mars:1").tag == "registry:5000/team/mars:1"


def test_package_replaces_a_pin() -> None:
    lines = context(packages=["xorbits==0.8.1"]).texts["requirements.txt"].splitlines()
    assert "xorbits==0.8.1" in lines and "xorbits==0.8.2" not in lines


def test_wheel_is_copied(tmp_path: Path) -> None:
    wheel = tmp_path / "mine-1-py3-none-any.whl"
    wheel.write_bytes(b"zip")
    made = context(packages=[str(wheel)])
    made.write(tmp_path / "out")
    assert (tmp_path / "out" / wheel.name).read_bytes() == b"zip"
    assert f"/tmp/context/{wheel.name}" in made.texts["requirements.txt"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tag": "A B"}, "'A B' is not the name of an image."),
        ({"base": "$(id)"}, "'$(id)' is not the name of an image."),
        ({"packages": ["./nothing"]}, "./nothing is not a file."),
    ],
)
def test_bad_request_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        context(**given)
    assert refused.value.message == message


def test_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="is not an empty directory"):
        context().write(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_builder_gets_the_context(tmp_path: Path) -> None:
    out = tmp_path / "seen"
    command = program(tmp_path / "docker", f'echo "$@" > {out}; cat "$6" >> {out}; ls "$7" >> {out}')
    spec = build({"engine": "mars"}).spec
    built = build_image(spec, ImageOptions(tag="mine:1", python="3.11", builder=f"{command} --quiet"), lambda _: None)
    assert (built.tag, built.builder, built.context) == ("mine:1", "docker", "")
    lines = out.read_text().splitlines()
    assert lines[0].startswith("--quiet build -t mine:1 -f ") and lines[0].endswith(
        f"/{CONTAINERFILE} {lines[0].split()[-1]}"
    )
    assert not Path(lines[0].split()[-1]).exists(), "the context is removed"


def test_first_builder_that_is_installed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFailed, match="No program that builds images is installed") as missing:
        builder.find_builder(None)
    assert "--output-dir" in missing.value.hint
    program(tmp_path / "buildah", "true")
    assert builder.find_builder(None) == [str(tmp_path / "buildah")]
    program(tmp_path / "podman", "true")
    assert builder.find_builder(None) == [str(tmp_path / "podman")]
    with pytest.raises(UsageError, match="There is no program 'kaniko'"):
        builder.find_builder("kaniko")


def test_failed_build_reports_the_end_of_the_output(tmp_path: Path) -> None:
    command = program(tmp_path / "docker", "echo step 1; echo no such package >&2; exit 3")
    with pytest.raises(EnvironmentFailed, match=r"The image oars-mars:0\.8\.2 could not be built") as failed:
        build_image(build({"engine": "mars"}).spec, ImageOptions(builder=command), lambda _: None)
    assert failed.value.details[-1] == "no such package"


def test_build_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    command = program(tmp_path / "docker", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    with pytest.raises(TimedOut, match="building the image"):
        build_image(build({"engine": "mars"}).spec, ImageOptions(builder=command, timeout=1.0), lambda _: None)
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")


@pytest.mark.parametrize(("python", "fits"), [("3.11", True), ("3.8", False), ("3.13", False), ("three", False)])
def test_python_must_fit_the_engine(python: str, fits: bool, tmp_path: Path) -> None:
    options = ImageOptions(python=python, folder=tmp_path / "out")
    if fits:
        assert build_image(build({"engine": "mars"}).spec, options, lambda _: None).python == python
        return
    with pytest.raises(OarsError, match=f"Python {python} does not fit"):
        build_image(build({"engine": "mars"}).spec, options, lambda _: None)


# The lab's tool


def test_lab_reads_what_oars_writes() -> None:
    (recipe,) = containerfile.parse(context().texts[CONTAINERFILE])
    assert recipe.system == "python" and recipe.files == ["requirements.txt"] and len(recipe.steps) == 5
    assert recipe.env["PATH"].startswith("/opt/env/bin:/usr/local/sbin:")
    assert recipe.runtime.user == "1000:1000" and list(recipe.runtime.command) == ["python3"]
    assert json.dumps(recipe.runtime.labels) == '{"dev.oars.engine": "mars"}'


def test_lab_reads_both_stages_of_a_compiled_engine() -> None:
    compiled, image = containerfile.parse(context("pymars").texts[CONTAINERFILE])
    assert (compiled.system, compiled.name, image.system, image.name) == ("compiler", "build", "python", "")
    assert len(compiled.files) == 2 and not image.files and image.stages == ["build"]
    assert image.steps[0] == "(mkdir -p /opt/env && cp -a /mnt/share/stages/build/opt/env/. /opt/env)"
    assert image.runtime.user == "1000:1000" and compiled.runtime.user == ""


@pytest.mark.parametrize("line", ["FROM docker.io/library/alpine", "RUN x", "COPY --chown=1 /a /b", "ENTRYPOINT x"])
@pytest.mark.parametrize("before", ["", "FROM docker.io/library/python:3.11-slim\n"])
def test_lab_refuses_other_lines(line: str, before: str) -> None:
    if line == "RUN x" and before:
        assert containerfile.parse(before + line)[0].steps == ["(x)"]
        return
    with pytest.raises(LabError, match="does not know this line"):
        containerfile.parse(before + line)
