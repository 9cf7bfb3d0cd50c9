"""Container images with an engine and packages."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oars import engines
from oars.client.backend import Progress
from oars.envs import builder as builders
from oars.envs.build import supported_python
from oars.envs.image import ImageRequest, make_context

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec


@dataclass(frozen=True)
class ImageOptions:
    """tag, base, python, builder: empty for the default. folder: only write the build context there."""

    tag: str = ""
    base: str = ""
    python: str = ""
    builder: str = ""
    folder: Path | None = None
    timeout: float = 1800.0


@dataclass(frozen=True)
class BuiltImage:
    """builder: empty if only the context was written; context: empty if it was removed after the build."""

    tag: str
    python: str
    builder: str = ""
    context: str = ""


def build_image(spec: ClusterSpec, options: ImageOptions, progress: Progress) -> BuiltImage:
    """Build an image with the engine and the packages of a spec, or only write its build context."""
    needs = engines.get(spec.engine).needs(spec)
    python = supported_python(needs.python, options.python)
    context = make_context(
        ImageRequest(spec.engine, needs, spec.environment.packages, python, options.base, options.tag)
    )
    if options.folder is not None:
        context.write(options.folder)
        return BuiltImage(context.tag, python, context=str(options.folder))
    builder = builders.find_builder(options.builder or None)
    with tempfile.TemporaryDirectory(prefix="oars-image-") as folder:
        context.write(Path(folder))
        builders.build(builder, Path(folder), context.tag, progress, options.timeout)
    return BuiltImage(context.tag, python, builder=Path(builder[0]).name)
