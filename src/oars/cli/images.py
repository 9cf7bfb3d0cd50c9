"""The command that builds container images."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from oars.cli.options import ClusterOptions, image_options, quiet_option, timeout_option
from oars.cli.output import emit, output_option
from oars.cli.progress import Progress


@click.group()
def image() -> None:
    """Build container images for clusters on Kubernetes."""


@image.command("build")
@image_options
@click.option("--distribution", metavar="NAME", help="For engines that have several, such as mars: xorbits or pymars.")
@click.option(
    "-t",
    "--tag",
    default="",
    show_default=False,
    metavar="TAG",
    help="Name of the image. Default: such as oars-mars:0.8.2.",
)
@click.option(
    "--base",
    default="",
    show_default=False,
    metavar="IMAGE",
    help="An image that has python3 with venv. Default: Python's own.",
)
@click.option(
    "--python", default="", show_default=False, metavar="X.Y", help="Version of Python. Default: that of this Python."
)
@click.option(
    "--builder",
    default="",
    show_default=False,
    metavar="COMMAND",
    help="Default: docker, podman, nerdctl or buildah. Any command with their options of `build`.",
)
@click.option("--output-dir", "folder", metavar="DIR", type=click.Path(), help="Only write the build context.")
@timeout_option("30m")
@quiet_option
@output_option
def build_image(
    options: ClusterOptions, distribution: str | None, folder: str | None, quiet: bool, output: str, **given: str
) -> None:
    """Build an image with an engine and packages. Prints its name.

    It takes the options of `oars up`; those that do not affect the image have no effect.

    \b
    oars image build --engine mars --distribution pymars -t registry/mars:1
    oars image build --engine dask --package s3fs --output-dir image
    """
    from oars.service import images

    if distribution is not None:
        engine = options.overrides["engine"] or options.manifest.spec.engine
        options = replace(options, sets=[*options.sets, f"{engine}.distribution={distribution}"])
    wanted = images.ImageOptions(
        given["tag"],
        given["base"],
        given["python"],
        given["builder"],
        Path(folder) if folder else None,
        options.timeout,
    )
    with Progress(quiet=quiet) as progress:
        built = images.build_image(options.manifest.spec, wanted, progress)
    shown = built.context if folder else built.tag
    emit(output, asdict(built), [shown], lambda _: shown)
