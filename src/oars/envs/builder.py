"""Builds an image from a context, with a program that has Docker's `build` command."""

from __future__ import annotations

import os
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from oars.base.errors import EnvironmentFailed, UsageError
from oars.envs import program
from oars.envs.image import CONTAINERFILE
from oars.envs.program import Watch

BUILDERS = ("docker", "podman", "nerdctl", "buildah")
LAST_LINES = 12


def find_builder(wanted: str | None) -> list[str]:
    """The command of the builder that is given, or of the first one that is installed."""
    for command in [shlex.split(wanted)] if wanted else [[name] for name in BUILDERS]:
        path = shutil.which(command[0]) if command else None
        if path:
            return [path, *command[1:]]
    if wanted:
        raise UsageError(
            f"There is no program {wanted!r}.", f"Use {', '.join(BUILDERS)} or another with their options."
        )
    raise EnvironmentFailed(
        f"No program that builds images is installed: {', '.join(BUILDERS)}.",
        "Install one, or add `--output-dir context` to only write the build context.",
    )


def build(builder: Sequence[str], folder: Path, tag: str, progress: Callable[[str], None], timeout: float) -> None:
    """Raises EnvironmentFailed with the last lines of the builder's output."""
    watch = Watch(f"the image {tag}", time.monotonic() + timeout, progress, threading.Event())
    command = [*builder, "build", "-t", tag, "-f", str(folder / CONTAINERFILE), str(folder)]
    progress(f"{watch.what}: building with {Path(builder[0]).name}")
    try:
        with open(os.devnull) as nothing:
            program.run(command, Path.cwd(), nothing.fileno(), watch, "building")
    except program.Failed as failure:
        lines = tuple(line for line in failure.lines if line.strip())[-LAST_LINES:]
        hint = "Below is the end of the builder's output. `--builder podman`, for example, chooses another builder."
        raise EnvironmentFailed(f"The image {tag} could not be built.", hint, lines) from None
    progress(f"{watch.what}: ready after {watch.elapsed():.0f} s")
