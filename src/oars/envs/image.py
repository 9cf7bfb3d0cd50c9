"""Container build contexts: a Containerfile and its files, for an image with an engine and packages. Pure but for the
check whether a local package exists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oars.base.errors import UsageError
from oars.envs import scan
from oars.model import Needs

CONTAINERFILE = "Containerfile"
REGISTRY = "docker.io/library"
ENV = "/opt/env"
_REFERENCE = re.compile(r"[a-z0-9]([\w.:/-]*[\w-])?(@sha256:[0-9a-f]{64})?", re.ASCII)


@dataclass(frozen=True)
class Context:
    """A build context. texts: content of the files to write. copies: local files to copy, by name."""

    tag: str
    python: str
    texts: dict[str, str] = field(default_factory=dict)
    copies: dict[str, Path] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Raises UsageError if the folder has other files: they would become part of the build."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} exists already and is not an empty directory.", "Choose another one.")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.texts.items():
            (folder / name).write_text(text)
        for name, source in self.copies.items():
            (folder / name).write_bytes(source.read_bytes())


@dataclass(frozen=True)
class ImageRequest:
    """What an image is made of. base: instead of Python's own image; it must have python3 with venv. python: '3.11'."""

    engine: str
    needs: Needs
    packages: Sequence[str] = ()
    python: str = "3.11"
    base: str = ""
    tag: str = ""


def make_context(request: ImageRequest) -> Context:
    """Raises UsageError for names that no image can have, and for local packages that are no files."""
    for name, value in (("base", request.base), ("tag", request.tag)):
        if value and not _REFERENCE.fullmatch(value):
            raise UsageError(f"{value!r} is not the name of an image.", f"Use a {name} such as registry/name:1.0.")
    needs, _ = scan.overridden(request.needs, request.packages)
    copies = {path.name: path for path in map(_local, request.packages) if path is not None}
    named = [package.strip() for package in request.packages if _local(package) is None]
    requirements = [*needs.requirements, *named, *(f"/tmp/context/{name}" for name in copies)]
    texts = {"requirements.txt": _lines(requirements)}
    if needs.build_requirements:
        texts["build-requirements.txt"] = _lines(needs.build_requirements)
    files = sorted([*texts, *copies])
    texts[CONTAINERFILE] = _containerfile(request, files)
    return Context(request.tag or _default_tag(request.engine, needs), request.python, texts, copies)


def _local(package: str) -> Path | None:
    text = package.strip()
    if not text.startswith((".", "/")):
        return None
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"{text} is not a file.", "Build a wheel of it: `uv build --wheel DIRECTORY`.")
    return path


def _lines(words: Sequence[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def _default_tag(engine: str, needs: Needs) -> str:
    """Such as oars-mars:0.8.2."""
    pins = (re.fullmatch(rf"{re.escape(needs.distribution)}(?:\[.*\])?==([\w.]+)", text) for text in needs.requirements)
    return f"oars-{engine}:{next((pin[1] for pin in pins if pin), 'latest')}"


def _containerfile(request: ImageRequest, files: Sequence[str]) -> str:
    """If something must be compiled, that is done in a stage of its own: the image has no compilers."""
    final = request.base or f"{REGISTRY}/python:{request.python}-slim"
    install = f"RUN python3 -m venv {ENV}"
    pip = f" && {ENV}/bin/pip install --no-cache-dir --disable-pip-version-check"
    if request.needs.build_requirements:
        install += f"{pip} -r /tmp/context/build-requirements.txt"
        pip += " --no-build-isolation"
    install += f"{pip} -r /tmp/context/requirements.txt"
    copy = f"COPY {' '.join(files)} /tmp/context/"
    first = [f"FROM {final}", copy, install]
    if request.needs.build_requirements:
        compiler = request.base or f"{REGISTRY}/python:{request.python}"
        first = [f"FROM {compiler} AS build", copy, install, f"FROM {final}", f"COPY --from=build {ENV} {ENV}"]
    return _lines(
        [
            f"# Made by `oars image build --engine {request.engine}`.",
            *first,
            "RUN getent passwd 1000 || useradd --create-home --uid 1000 --user-group oars",
            f"ENV PATH={ENV}/bin:$PATH LANG=C.UTF-8",
            f"LABEL dev.oars.engine={request.engine}",
            "USER 1000:1000",
            "WORKDIR /tmp",
            'CMD ["python3"]',
        ]
    )
