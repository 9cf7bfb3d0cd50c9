"""The commands that run a part of a cluster over several machines in the foreground, and the unit that starts them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oars.base.errors import OarsError, UsageError
from oars.cli import completions, signals
from oars.cli.errors import say
from oars.cli.options import Integer
from oars.cli.output import write
from oars.cli.progress import Progress
from oars.spec.status import Phase, Status

if TYPE_CHECKING:
    from oars.service import Report
    from oars.service.hosts import HostService

TOKEN_VARIABLE = "OARS_JOIN_TOKEN"
UNIT = """[Unit]
Description=Oars {role}: {name}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
Restart=always
RestartSec=2
KillMode=mixed
TimeoutStopSec=90
User={user}

[Install]
WantedBy=multi-user.target
"""

_PORTS = click.option(
    "--port", "ports", multiple=True, metavar="NAME=NUMBER", help="Fix a port of the engine: client=8786. Repeatable."
)
_DAEMON = click.option("--daemon", is_flag=True, help="Run in the background, until `oars down`.")


@click.command()
@click.option("--engine", metavar="ENGINE", shell_complete=completions.engines, help="dask, ray, mars or a plug-in.")
@click.option("-f", "--file", metavar="FILE", help="A cluster.yaml. Its workers are ignored.")
@click.option(
    "--set", "sets", multiple=True, metavar="PATH=VALUE", help="Set any field of the spec: head.cpu=2. Repeatable."
)
@click.option("--package", "packages", multiple=True, metavar="PACKAGE", help="Install it on all machines. Repeatable.")
@click.option(
    "--listen", required=True, metavar="HOST:PORT", help="This machine's address and the port that workers join."
)
@click.option("--name", metavar="NAME", help="The name of the cluster. Default: the engine.")
@_PORTS
@_DAEMON
def head(  # noqa: PLR0913 (one parameter per option)
    engine: str | None,
    file: str | None,
    sets: tuple[str, ...],
    packages: tuple[str, ...],
    listen: str,
    name: str | None,
    ports: tuple[str, ...],
    daemon: bool,
) -> None:
    """Run the head of a cluster over several machines, until Ctrl-C.

    Prints the file with the join token. Copy it to the other machines and run `oars worker` there, before or after.
    """
    from oars.service import specs
    from oars.service.hosts import HostOptions, HostService

    overrides = {"engine": engine, "packages": list(packages) or None}
    if file is None and engine is None:
        raise UsageError("No engine is given.", "Use --engine dask (or ray, mars), or -f cluster.yaml.")
    manifest = specs.from_file(Path(file), sets, overrides) if file else specs.from_data({}, sets, overrides)
    chosen = name or manifest.name or manifest.spec.engine
    hosts = HostService(os.environ)
    token = hosts.token_file(chosen)
    if daemon:
        _run_in_background(hosts, "head", chosen)
        say(f"On the other machines: oars worker --head {listen} --token-file {token.name}")
        write(str(token))
        return
    followed = _Followed(chosen, lambda: _announce_token(token, listen))
    with Progress() as progress:
        options = HostOptions(_numbers(ports), progress=progress, modules=os.getcwd())
        work = hosts.run_head(chosen, manifest.spec, listen, options, followed)
        signals.run(work, lambda _: progress(f"{chosen}: stopping"))


def _announce_token(token: Path, listen: str) -> None:
    say(f"On the other machines: oars worker --head {listen} --token-file {token.name}")
    say(f"Join token, to be copied there: {token}")
    if sys.stdout.isatty():
        write(token.read_text().strip())


@click.command()
@click.option("--head", "address", required=True, metavar="HOST:PORT", help="What `oars head --listen` was given.")
@click.option("--token-file", metavar="FILE", help=f"The join token. Default: the variable {TOKEN_VARIABLE}.")
@click.option("--name", metavar="NAME", help="Unique name of these workers. Default: the name of this machine.")
@click.option(
    "--host",
    default="",
    show_default=False,
    metavar="ADDRESS",
    help="This machine's address. Default: by the route to the head.",
)
@click.option("--workers", default=1, type=Integer(1, 200), metavar="N", help="Number of worker processes.")
@click.option("--cpu", metavar="CPU", help="CPUs of each worker. Default: an equal share of the machine.")
@click.option("--memory", metavar="SIZE", help="Memory of each worker, such as 4Gi. Default: an equal share.")
@_PORTS
@_DAEMON
def worker(  # noqa: PLR0913 (one parameter per option)
    address: str,
    token_file: str | None,
    name: str | None,
    host: str,
    workers: int,
    cpu: str | None,
    memory: str | None,
    ports: tuple[str, ...],
    daemon: bool,
) -> None:
    """Run workers on this machine for a head on another, until Ctrl-C.

    It waits for the token's file and the head, restarts workers that die, and joins the head again whenever that
    comes back.
    """
    from oars.service.hosts import HostOptions, HostService, Joining, WorkerSize

    hosts = HostService(os.environ)
    chosen = name or hosts.host_name()
    token = _token(token_file)
    if daemon:
        _run_in_background(hosts, "worker", chosen)
        write(chosen)
        return
    joining = Joining(address, token, chosen, host, WorkerSize(workers, cpu, memory))
    with Progress() as progress:
        options = HostOptions(_numbers(ports), progress=progress, modules=os.getcwd())
        work = hosts.run_worker(joining, options, _Followed(chosen))
        signals.run(work, lambda _: progress(f"{chosen}: stopping"))


def _token(path: str | None) -> str | Path:
    """The token, or its file, which may be written later."""
    if path is not None:
        return Path(path)
    if token := os.environ.get(TOKEN_VARIABLE):
        return token
    hint = f"Use --token-file FILE, or set {TOKEN_VARIABLE}. `oars head` names the file."
    raise UsageError("No join token is given.", hint)


def _numbers(ports: tuple[str, ...]) -> Mapping[str, int]:
    found = {}
    for text in ports:
        name, _, number = text.partition("=")
        if not number.isdigit() or not 0 < int(number) < 65536:
            raise UsageError(f"--port {text!r} is not NAME=NUMBER.", "Example: --port client=8786.")
        found[name] = int(number)
    return found


class _Followed:
    """Prints a line on stderr whenever the status has changed."""

    def __init__(self, name: str, on_first: Callable[[], None] | None = None) -> None:
        self._name = name
        self._on_first = on_first
        self._last = ""

    def __call__(self, report: Report) -> None:
        if self._on_first is not None:
            self._on_first()
            self._on_first = None
        line = _line(report.status)
        if line != self._last and report.status.phase is not Phase.STOPPED:
            self._last = line
            say(f"{time.strftime('%H:%M:%S')} {self._name}: {line}")


def _line(status: Status) -> str:
    text = f"{status.phase}, {status.ready} of {status.wanted} workers ready"
    if status.message:
        return f"{text}. {status.message}"
    return f"{text}, clients: {status.endpoints.client}" if status.phase is Phase.READY else text


# in the background


def _run_in_background(hosts: HostService, role: str, name: str) -> None:
    """Start this command again without --daemon."""
    argv = [_program(), *(word for word in sys.argv[1:] if word != "--daemon")]
    daemon = hosts.start_in_background(role, name, argv)
    waiting = f"; while it waits for its head: kill {daemon.pid}" if role == "worker" else ""
    state = "runs" if daemon.is_ready else "is still being started"
    say(
        f"{name} {state} in the background, pid {daemon.pid}. Log: {daemon.log}. "
        f"Stop it with: oars down {name}{waiting}"
    )


def _program() -> str:
    """The `oars` program of this Python."""
    beside = Path(sys.executable).with_name("oars")
    found = str(beside) if beside.exists() else shutil.which("oars")
    if found is None:
        raise OarsError(
            "The program `oars` is not installed beside this Python.", "Install it with `pip install oars`."
        )
    return found


# systemd


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("role", type=click.Choice(["head", "worker"]))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF oars head OR oars worker]...")
def service(role: str, arguments: tuple[str, ...]) -> None:
    """Print a systemd unit that runs `oars head` or `oars worker` with these options.

    \b
    oars service head --engine dask --listen 10.0.0.1:8700 > /etc/systemd/system/oars-head.service
    """
    command = {"head": head, "worker": worker}[role]
    words = [word for word in arguments if word != "--daemon"]
    root = click.get_current_context().find_root()
    with command.make_context(f"service {role}", list(words), root) as parsed:  # refuses wrong options now, not at boot
        name = parsed.params["name"] or parsed.params.get("engine") or role
    line = " ".join(map(_systemd_word, [_program(), role, *words]))
    write(UNIT.format(role=role, name=name, command=line, user=os.environ.get("USER") or "root").rstrip())


def _systemd_word(word: str) -> str:
    """A word of ExecStart, which expands % and $ also between quotes, and has escapes of its own."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@%+=:,./-]+", word) else f'"{escaped}"'
