"""`oars logs`: show or follow the logs of members."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from oars.cli import completions, signals
from oars.cli.errors import say
from oars.cli.options import container_option, location_options, name_argument
from oars.cli.output import as_yaml, emit, output_option, write

if TYPE_CHECKING:
    from oars.service import LogRequest, Service


@click.command()
@name_argument
@click.argument("member", required=False, shell_complete=completions.members)
@click.option("-f", "--follow", is_flag=True, help="Continue with new lines until the cluster is gone.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each member.")
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
    print_line = _printer(output, prefix=request.member is None)
    async for each in service.logs(name, request, on_trouble=say):
        print_line(each.member, each.line)


def _printer(output: str, *, prefix: bool) -> Callable[[str, str], None]:
    if output == "json":
        return lambda member, line: write(json.dumps({"member": member, "line": line}, ensure_ascii=False))
    if output == "yaml":
        return lambda member, line: write(as_yaml([{"member": member, "line": line}]))
    if prefix:
        return lambda member, line: write(f"{click.style(f'[{member}]', fg='cyan')} {line}")
    return lambda member, line: write(line)
