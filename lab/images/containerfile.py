"""Build an image from a Containerfile, without a registry and a container engine.

Knows what `oars image build` writes: one or two stages, FROM, COPY of files or from the first stage, RUN, ENV, LABEL,
USER, WORKDIR, CMD. The bases are Python's own images, with compilers or slim, for which a Debian with the same Python
stands in. Layers are cached by their content.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab import cache
from lab.errors import LabError
from lab.images import archive, layers
from lab.run import run

Say = Callable[[str], None]
_FROM = re.compile(r"docker\.io/library/python:3\.11(-slim)?(?: AS (\w+))?")
_COPY_FROM = re.compile(r"--from=(\w+) (\S+) (\S+)")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Recipe:
    """What one stage of a Containerfile says. system: what stands in for its base (see layers.system). steps: lines of
    a shell script that runs in it. stages: those whose files it copies."""

    system: str = "python"
    name: str = ""
    stages: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    runtime: archive.Runtime = field(default_factory=archive.Runtime)

    def read(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "COPY" if found := _COPY_FROM.fullmatch(rest):
                stage, source, target = found.groups()
                self.stages.append(stage)
                self.steps.append(f"(mkdir -p {target} && cp -a /mnt/share/stages/{stage}{source}/. {target})")
            case "COPY" if not rest.startswith("--"):
                *sources, target = rest.split()
                self.files += sources
                self.steps.append(f"(mkdir -p {target} && cd /mnt/share/context && cp {' '.join(sources)} {target})")
            case "RUN":
                self.steps.append(f"({rest})")
            case "ENV":
                for name, value in (each.split("=", 1) for each in shlex.split(rest)):
                    self.env[name] = re.sub(r"\$(\w+)", lambda found: self.env.get(found[1], ""), value)
                    self.steps.append(f"export {name}={shlex.quote(self.env[name])}")
            case "LABEL":
                labels = dict(each.split("=", 1) for each in shlex.split(rest))
                self.runtime = replace(self.runtime, labels={**self.runtime.labels, **labels})
            case "USER":
                self.runtime = replace(self.runtime, user=rest)
            case "WORKDIR":
                self.runtime = replace(self.runtime, folder=rest)
            case "CMD":
                self.runtime = replace(self.runtime, command=json.loads(rest))
            case _:
                raise LabError(f"The lab's image tool does not know this line of a Containerfile: {line}")


def parse(text: str) -> list[Recipe]:
    """Read a Containerfile: its stages, the image last."""
    stages: list[Recipe] = []
    for line in filter(None, (each.strip() for each in text.splitlines())):
        if line.startswith("#"):
            continue
        if found := _FROM.fullmatch(line.removeprefix("FROM ")):
            stages.append(Recipe("python" if found[1] else "compiler", found[2] or ""))
        elif not stages:
            raise LabError(f"The lab's image tool does not know this line of a Containerfile: {line}")
        else:
            stages[-1].read(line)
    for recipe in stages:
        env = tuple(f"{name}={value}" for name, value in recipe.env.items())
        recipe.runtime = replace(recipe.runtime, env=env)
    return stages


def build(store: Path, folder: Path, file: Path, tag: str, say: Say) -> Path:
    """Build the image of a folder; return its tar."""
    *others, recipe = parse(file.read_text())
    built: dict[str, Path] = {}
    for stage in others:
        built[stage.name] = _run(store, folder, stage, built, f"{tag}, stage {stage.name}", say)
    layer = _run(store, folder, recipe, built, tag, say)
    stack = [layers.system(store, recipe.system, say) / "layer.tar", layer / "layer.tar"]

    def write(target: Path) -> None:
        archive.write(target / "image.tar", tag, stack, recipe.runtime)

    whole = cache.digest([layer.name.encode(), tag.encode(), repr(recipe.runtime).encode()])
    return cache.kept(store, "built-image", whole, write) / "image.tar"


def _run(store: Path, folder: Path, recipe: Recipe, built: dict[str, Path], what: str, say: Say) -> Path:
    """Run the steps of a stage. Returns a folder with what they changed: as files if it is a stage that others copy
    from, as a layer if it is the image."""
    base = layers.system(store, recipe.system, say)
    script = "set -eu\n" + "".join(
        f"({step})\n" if not step.startswith("export") else f"{step}\n" for step in recipe.steps
    )
    contents = [(folder / name).read_bytes() for name in recipe.files]
    copied = {name: built[name] for name in recipe.stages}
    keys = [base.name, script, *(stage.name for stage in copied.values())]
    key = cache.digest([*(part.encode() for part in keys), *contents])

    def make(target: Path) -> None:
        say(f"building {what}")
        share = layers.share_folder(store, target, b"")
        shutil.copytree(folder, share / "context")
        for name, stage in copied.items():
            (share / "stages").mkdir(exist_ok=True)
            run(["cp", "-al", stage / "changes", share / "stages" / name], 600)
        (target / "script.sh").write_text(script)
        layers.in_chroot(base, target / "changes", share, target / "script.sh")
        shutil.rmtree(share)
        if not recipe.name:
            layers.tar(target / "changes", target / "layer.tar")
            shutil.rmtree(target / "changes", ignore_errors=True)

    return cache.kept(store, "built", key, make)
