"""The commands that reach into a running cluster: logs, programs, files and the dashboard."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from oars.base.errors import Interrupted, NotFound, UsageError
from oars.cli import completions, signals, terminal
from oars.cli.errors import INTERRUPTED, say
from oars.cli.options import Integer, container_option, location_options, name_argument, parse_age, quiet_option
from oars.cli.output import as_yaml, emit, output_option, write
from oars.cli.progress import Progress

if TYPE_CHECKING:
    from oars.service import LogLine, LogRequest, Program, Service

_REMOTE = re.compile(r"(?P<name>[a-z][-a-z0-9]*):(?:(?P<member>[a-z][-a-z0-9]*):)?(?P<path>.+)")
local_option = click.option("--local", is_flag=True, help="Kubernetes: run it on this machine, not in the head's pod.")


@click.command()
@name_argument
@click.argument("member", required=False, shell_complete=completions.members)
@click.option("-f", "--follow", is_flag=True, help="Continue with new lines until the cluster is gone.")
@click.option("--tail", type=Integer(min=0), metavar="N", help="Only the last N lines of each member.")
@click.option(
    "--since", metavar="TIME", callback=parse_age, help="Only lines of the last TIME, such as 10m: see the reference."
)
@click.option("-p", "--previous", is_flag=True, help="Kubernetes: of the container before its last restart.")
@container_option
@location_options
@output_option
def logs(name: str, service: Service, output: str, **request: Any) -> None:
    """Show the log of one MEMBER, or of all with the member's name before each line."""
    from oars.service import LogRequest

    signals.run(_print_logs(name, service, LogRequest(**request), output))


async def _print_logs(name: str, service: Service, request: LogRequest, output: str) -> None:
    if output == "name":
        members = await service.log_members(name, request)
        emit(output, members, members, lambda _: "")
        return
    async for each in service.logs(name, request, on_trouble=say):
        write(_log_text(each, output, prefix=request.member is None))


def _log_text(each: LogLine, output: str, *, prefix: bool) -> str:
    if output == "json":
        return json.dumps(asdict(each), ensure_ascii=False)
    if output == "yaml":
        return as_yaml([asdict(each)])
    return f"{click.style(f'[{each.member}]', fg='cyan')} {each.line}" if prefix else each.line


class UserCommand(click.Command):
    """Options may precede or directly follow NAME; everything from the first other word on is the user's command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, self._options_first(args))

    def _options_first(self, args: Sequence[str]) -> list[str]:
        """Move the options before NAME, where click expects them if it must not look for any after it."""
        takes_value = {o for p in self.params if not getattr(p, "is_flag", False) for o in p.opts}
        options: list[str] = []
        name: list[str] = []
        rest = list(args)
        while rest and rest[0] != "--" and not (name and not rest[0].startswith("-")):
            word = rest.pop(0)
            if not word.startswith("-"):
                name.append(word)
                continue
            options.append(word)
            if word in takes_value and rest:
                options.append(rest.pop(0))
        return [*options, *name, *rest]


@click.command(cls=UserCommand)
@name_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=completions.command)
@local_option
@location_options
def shell(name: str, command: tuple[str, ...], local: bool, service: Service) -> int:
    """Open Python with the engine's client connected.

    \b
    client   the engine's own: a distributed.Client, the ray module or a Mars session
    cluster  the oars.Cluster, for example to scale it; not inside of a pod, nor in an environment that Oars built

    NAME is looked for on this machine, then in the namespace of the current Kubernetes context; `oars ls` lists both.
    On Kubernetes Python runs in the head's pod, or with --local on this machine. If stdin is not a terminal, its
    content is run as a Python program. `oars shell NAME -- COMMAND` runs COMMAND instead.
    """
    return _run(name, command, service, local=local)


@click.command("exec", cls=UserCommand)
@name_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=completions.command)
@local_option
@click.option("--member", metavar="MEMBER", help="Kubernetes: run it in the pod of this member. Default: the head.")
@container_option
@location_options
def execute(name: str, command: tuple[str, ...], service: Service, **target: Any) -> int:
    """Run COMMAND with the environment that it needs to connect to the cluster.

    On Kubernetes it runs in the head's pod or that of --member, or with --local on this machine.

    \b
    oars exec demo -- python train.py
    oars exec demo --member demo-worker-5d9c-x2x -- nvidia-smi
    """
    return _run(name, command, service, **target)


def _run(name: str, command: tuple[str, ...], service: Service, **target: Any) -> int:
    code, program = signals.run(_execute(name, command[command[:1] == ("--",) :], service, target))
    if program is not None:  # become the program, so that it owns terminal, signals and exit code
        path = _find(program)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(path, program.argv, dict(program.env))
    return code


async def _execute(
    name: str, command: tuple[str, ...], service: Service, target: dict[str, Any]
) -> tuple[int, Program | None]:
    """The exit code; or a program that can replace this process."""
    tty = terminal.is_terminal()
    async with service.exec(name, command, interactive=os.isatty(0), tty=tty, **target) as execution:
        if execution.session is not None:
            return await terminal.connect(execution.session, raw=tty), None
        program = execution.program
        if program is None or not program.needs_connection:
            return 0, program
        process = await asyncio.create_subprocess_exec(_find(program), *program.argv[1:], env=program.env)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        return code if code >= 0 else 128 - code, None


def _find(program: Program) -> str:
    found = shutil.which(program.argv[0], path=program.env.get("PATH"))
    if found is None:
        hint = "Check the name; PATH starts with the directory of the cluster's Python."
        raise NotFound(f"There is no program {program.argv[0]!r}.", hint)
    return found


class RemotePath(NamedTuple):
    name: str
    member: str
    path: str


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@container_option
@location_options
@quiet_option
def cp(source: str, target: str, container: str | None, service: Service, quiet: bool) -> None:
    """Copy a file or directory to or from a member of a cluster on Kubernetes. One of the paths is NAME[:MEMBER]:PATH.

    \b
    oars cp train.py demo:/tmp/train.py           to the head
    oars cp demo:worker-5d9-x2x:/tmp/out ./out    from a worker
    """
    remote_source, remote_target = parse_remote(source), parse_remote(target)
    if bool(remote_source) == bool(remote_target):
        hint = "Example: `oars cp data.csv demo:/tmp/data.csv`. Write a local name with a colon as ./a:b."
        raise UsageError("One path must be NAME:PATH of a cluster, and the other one local.", hint)
    with Progress(quiet=quiet) as progress:
        if remote_source:
            name, member, path = remote_source
            copying = service.copy_from(name, path, Path(target), member=member, container=container, progress=progress)
        elif remote_target:
            name, member, path = remote_target
            copying = service.copy_to(name, Path(source), path, member=member, container=container, progress=progress)
        signals.run(copying)


def parse_remote(path: str) -> RemotePath | None:
    """None: the path is local."""
    found = _REMOTE.fullmatch(path)
    return RemotePath(found["name"], found["member"] or "head", found["path"]) if found else None


@click.command()
@name_argument
@click.option("--open/--no-open", "browse", default=True, help="Open a browser; --no-open only prints the URL.")
@click.option(
    "--port", type=Integer(1, 65535), metavar="PORT", help="The local port to serve it at. Default: a free one."
)
@location_options
def dashboard(name: str, browse: bool, port: int | None, service: Service) -> int:
    """Open the engine's dashboard. If it is on Kubernetes or requires the cluster's token, it is served at a port of
    this machine until Ctrl-C; the URL is a secret."""
    try:
        signals.run(_open_dashboard(name, service, port, browse=browse))
    except Interrupted as end:
        if end.exit_code != INTERRUPTED:
            raise
    return 0


async def _open_dashboard(name: str, service: Service, port: int | None, *, browse: bool) -> None:
    async with service.forward_dashboard(name, port) as found:
        write(found.url)
        if browse:
            import webbrowser

            if not webbrowser.open(found.browser_url):
                say("No browser could be opened; open the URL yourself.")
        if found.forwarded:
            say("Press Ctrl-C to stop forwarding.")
            await asyncio.Event().wait()
