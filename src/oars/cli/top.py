"""`oars top`: what the worker groups of a cluster need, have and use."""

from __future__ import annotations

import json
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from oars.cli import signals
from oars.cli.options import location_options, name_argument, parse_duration
from oars.cli.output import Column, emit, output_option, table, write
from oars.spec.resources import show_memory

if TYPE_CHECKING:
    from oars.service import GroupLoad, Sample, Service

Row = tuple[str, "GroupLoad"]

COLUMNS = (
    Column[Row]("TIME", lambda row: row[0]),
    Column[Row]("GROUP", lambda row: row[1].group.name),
    Column[Row]("MIN", lambda row: _shown(row[1].group.min)),
    Column[Row]("MAX", lambda row: _shown(row[1].group.max)),
    Column[Row]("NEEDED", lambda row: _shown(row[1].group.needed)),
    Column[Row]("WANTED", lambda row: row[1].group.wanted),
    Column[Row]("READY", lambda row: row[1].group.ready),
    Column[Row]("CPU", lambda row: _shown(row[1].cpu)),
    Column[Row]("MEMORY", lambda row: "-" if row[1].memory is None else show_memory(row[1].memory)),
    Column[Row]("TASKS", lambda row: _shown(row[1].tasks)),
    Column[Row]("REASON", lambda row: row[1].group.reason),
)


@click.command()
@name_argument
@click.option("-w", "--watch", is_flag=True, help="Continue until interrupted; JSON: one line per sample.")
@click.option(
    "--interval", default="2s", metavar="TIME", callback=parse_duration, help="Between two samples. Default: 2s."
)
@location_options
@output_option
def top(name: str, watch: bool, interval: float, service: Service, output: str) -> None:
    """Show what the worker groups need, have and use: demand, workers, processors, memory and tasks.

    NEEDED is the number of workers that the demand needs now, WANTED what autoscaling or the spec asks for. CPU is the
    number of processors in use, TASKS that of the tasks which the workers run or have in their queues, if the engine
    reports it. On Kubernetes, CPU and MEMORY are those of the metrics API, where it is served.
    """
    signals.run(_show(name, watch, max(interval, 0.1), service, output))


async def _show(name: str, watch: bool, interval: float, service: Service, output: str) -> None:
    is_first = True
    async with aclosing(service.top(name, interval)) as found:
        async for sample in found:
            _print(sample, output, watch, with_header=is_first)
            is_first = False
            if not watch:
                return


def _print(sample: Sample, output: str, watch: bool, *, with_header: bool) -> None:
    rows = [(time.strftime("%H:%M:%S", time.localtime(sample.at)), each) for each in sample.groups]
    if watch and output == "json":
        write(json.dumps(sample.to_dict(), ensure_ascii=False))
        return

    def text(wide: bool) -> str:
        # All columns stay in all samples of a watch.
        header, *lines = table(rows, COLUMNS, wide or watch).splitlines()
        return "\n".join([header, *lines] if with_header else lines)

    emit(output, sample.to_dict(), [each.group.name for each in sample.groups], text)


def _shown(value: float | None) -> object:
    return "-" if value is None else value
