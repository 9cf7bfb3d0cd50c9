"""The command line: python -m lab up|down|status|reset|logs|kubectl|kubeconfig|images|image|build|doctor|packages."""

# ruff: noqa: T201 - a command-line program prints

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import apt, build, needs, settings
from lab.cluster import Lab
from lab.errors import LabError


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    ours, theirs = _split(sys.argv[1:] if argv is None else argv)
    words = _parser().parse_args(ours)
    words.words = theirs
    try:
        lab = Lab(settings.load(words.dir), _say)
        return COMMANDS[words.command](lab, words)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments: everything after `kubectl`, options included, belongs to kubectl."""
    end = argv.index("kubectl") + 1 if "kubectl" in argv else len(argv)
    return argv[:end], argv[end:]


def _say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description="A real Kubernetes for tests.")
    parser.add_argument("--dir", help="the lab's directory (default: $OARS_LAB_DIR, or one in your state directory)")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the lab, or repair it")
    up.add_argument("--control-plane", action="store_true", help="without the real node")
    up.add_argument("--kwok", type=int, default=0, metavar="N", help="with N simulated nodes")
    commands.add_parser("down", help="stop the lab and all its processes")
    commands.add_parser("reset", help="stop the lab and delete its files")
    commands.add_parser("status", help="show the components; exit code 0 if all are healthy")
    commands.add_parser("kubeconfig", help="print the path of the kubeconfig")
    commands.add_parser("doctor", help="check whether this machine can run the lab")
    logs = commands.add_parser("logs", help="print the last lines of the components' logs")
    logs.add_argument("component", nargs="?")
    logs.add_argument("-n", "--lines", type=int, default=20)
    commands.add_parser("kubectl", help="run kubectl against this lab")
    commands.add_parser("build", help="build the programs and images that are not cached; start nothing")
    packages = commands.add_parser("packages", help="install Debian packages")
    packages.add_argument("names", nargs="+")
    images = commands.add_parser("images", help="build and import the images; print their references")
    images.add_argument("names", nargs="*")
    image = commands.add_parser("image", help="build one image, as `docker build` does, and import it")
    image.add_argument("verb", choices=["build"])
    image.add_argument("-t", "--tag", required=True)
    image.add_argument("-f", "--file", type=Path, required=True)
    image.add_argument("folder", type=Path)
    return parser


def _up(lab: Lab, words: argparse.Namespace) -> int:
    started = time.monotonic()
    lab.up(with_node=not words.control_plane)
    if words.kwok:
        from lab import kwok

        kwok.up(lab, words.kwok)
    _say(f"up after {time.monotonic() - started:.1f} s")
    print(f"export KUBECONFIG={lab.settings.kubeconfig}")
    return 0


def _down(lab: Lab, _: argparse.Namespace) -> int:
    lab.down()
    return 0


def _reset(lab: Lab, _: argparse.Namespace) -> int:
    lab.reset()
    return 0


def _status(lab: Lab, _: argparse.Namespace) -> int:
    running = lab.running()
    for name in running:
        print(f"{name:26}{'healthy' if lab.healthy(name) else 'not ready'}")
    if not running:
        print("down")
    return 0 if running and all(map(lab.healthy, running)) else 1


def _kubeconfig(lab: Lab, _: argparse.Namespace) -> int:
    print(lab.settings.kubeconfig)
    return 0


def _doctor(lab: Lab, _: argparse.Namespace) -> int:
    found = needs.needs(build.complete(lab.settings.cache))
    for need in found:
        print(f"{need.name:20}{'yes' if need.met else need.remedy}")
    return 0 if all(need.met for need in found) else 1


def _logs(lab: Lab, words: argparse.Namespace) -> int:
    found = sorted(path.stem for path in lab.settings.logs.glob("*.log"))
    for name in [words.component] if words.component else found:
        print(f"==> {name} <==\n{lab.tail(name, words.lines)}")
    return 0


def _kubectl(lab: Lab, words: argparse.Namespace) -> int:
    program = str(lab.binaries["kubectl"])
    os.execve(program, ["kubectl", *words.words], os.environ | {"KUBECONFIG": str(lab.settings.kubeconfig)})


def _build(lab: Lab, _: argparse.Namespace) -> int:
    """Build programs and images in parallel: compiling needs the CPU while images wait for downloads."""
    from lab.images import catalogue

    if lab.settings.foreign_kubeconfig:
        _say("nothing to build: OARS_TEST_KUBECONFIG selects another cluster")
        return 0
    needs.install(build.complete(lab.settings.cache), _say)
    with ThreadPoolExecutor(2) as pool:
        programs = pool.submit(build.programs, lab.settings.cache, _say)
        catalogue.provide(lab, list(catalogue.IMAGES))
        programs.result()
    return 0


def _packages(_: Lab, words: argparse.Namespace) -> int:
    apt.install(words.names)
    return 0


def _images(lab: Lab, words: argparse.Namespace) -> int:
    from lab.images import catalogue

    for reference in catalogue.provide(lab, words.names or list(catalogue.IMAGES)):
        print(reference)
    return 0


def _image(lab: Lab, words: argparse.Namespace) -> int:
    from lab.images import catalogue, containerfile

    tar = containerfile.build(lab.settings.cache, words.folder, words.file, words.tag, _say)
    catalogue.bring(lab, tar, words.tag)
    return 0


COMMANDS: dict[str, Callable[[Lab, argparse.Namespace], int]] = {
    "up": _up,
    "down": _down,
    "reset": _reset,
    "status": _status,
    "kubeconfig": _kubeconfig,
    "doctor": _doctor,
    "logs": _logs,
    "kubectl": _kubectl,
    "image": _image,
    "images": _images,
    "build": _build,
    "packages": _packages,
}

if __name__ == "__main__":
    raise SystemExit(main())
