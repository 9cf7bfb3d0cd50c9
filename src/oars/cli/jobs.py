"""`oars submit` and `oars jobs`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import Interrupted, NotFound, UsageError
from oars.cli import completions, signals
from oars.cli.convert import read_file, take_foreign
from oars.cli.errors import raise_worst, say
from oars.cli.options import ClusterOptions, Integer, job_options, location_options, quiet_option, timeout_option
from oars.cli.output import Column, as_yaml, emit, output_option, paint_phase, show_span, table, write
from oars.cli.progress import Progress
from oars.spec.job_status import Attempt, JobState, JobStatus, ScheduleStatus

if TYPE_CHECKING:
    from oars.service import Service
    from oars.service.jobs import JobInfo, JobManifest, JobService

job_argument = click.argument("name", metavar="NAME", shell_complete=completions.jobs)
no_wait_option = click.option("--no-wait", is_flag=True, help="Return at once.")


CANCEL_SECONDS = 60.0


class CommandLast(click.Command):
    """Everything from the first word that is not an option is the user's command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)


@click.command(cls=CommandLast)
@job_options
@click.option("--cluster", metavar="NAME", shell_complete=completions.clusters, help="Run on this existing cluster.")
@click.option("-d", "--detach", is_flag=True, help="Return when the job is submitted.")
@click.option(
    "--working-dir", metavar="DIR", default=".", help="Directory that the job gets a copy of; empty text: none."
)
@click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="Variable of the driver. Repeatable.")
@click.option("--retries", type=Integer(0), metavar="N", help="Further attempts after a bad exit.")
@click.option("--deadline", metavar="TIME", help="The job fails after this time, such as 8h.")
@output_option
@quiet_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=completions.command)
def submit(  # noqa: PLR0913 (all are keywords)
    options: ClusterOptions,
    cluster: str | None,
    detach: bool,
    working_dir: str,
    variables: tuple[str, ...],
    retries: int | None,
    deadline: str | None,
    output: str,
    quiet: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND as a job: on a cluster of its own, or on an existing one with --cluster.

    The job runs from a copy of the working directory and continues without this command, which shows its output and
    ends with its exit code. -f is a job.yaml, a cluster.yaml with the job's cluster, or a RayJob or
    DaskJob.

    \b
    oars submit --engine ray --workers 4 -- python train.py --epochs 3
    oars submit --cluster demo --detach -- python train.py
    oars submit -f job.yaml
    """
    fields: dict[str, Any] = {"env": _variables(variables), "retries": retries, "deadline": deadline}
    if command:
        from oars.service.jobs import command_of

        fields["entrypoint"] = command_of(command[0] if len(command) == 1 else command)
    if cluster is not None:
        fields["cluster"] = {"name": cluster}
    manifest = _manifest(options, fields)
    service = _service(options.location).at(manifest)
    with Progress(quiet=quiet) as progress:
        name = options.option_name or manifest.name
        returns = detach or output != "table" or manifest.spec.schedule is not None
        submission = service.submit(
            name, manifest.spec, working_dir or None, progress.note, manifest.metadata, stays=not returns
        )
        name = signals.run(submission)
        reference = service.reference(name)
        if returns:
            progress.close()
            emit_job(signals.run(service.get(name)), output)
            if manifest.spec.schedule is None:
                progress.say(f"Follow it with `oars jobs logs -f {reference}`.")
            return 0
        progress.note(f"Job {name} is submitted.")
        follower = _Follower(service, name, progress)
        try:
            return signals.run(follower.run())
        except Interrupted as error:
            progress.close()
            return _ask(service, name, error)


def _manifest(options: ClusterOptions, fields: dict[str, Any]) -> JobManifest:
    from oars.service import jobs

    overrides = {**options.overrides, "place": options.location.place}
    if options.file is None:
        if "entrypoint" not in fields:
            raise UsageError("No command is given.", "Example: oars submit --engine dask -- python train.py.")
        if "cluster" not in fields and overrides["engine"] is None:
            raise UsageError(
                "No cluster is given.", "Use --engine dask (or ray, mars), --cluster NAME, or -f job.yaml."
            )
        return jobs.from_fields(fields, options.sets, overrides)
    content, source = read_file(options.file)
    converted = take_foreign(content, source, "ComputeJob", "ComputeCluster", strict=options.strict)
    if converted is not None:
        return jobs.from_fields(fields, options.sets, overrides, manifest=converted)
    return jobs.from_text(content, source, fields, options.sets, overrides)


def _variables(given: Sequence[str]) -> dict[str, str] | None:
    """NAME=VALUE, or NAME with the value that this process has."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals and name not in os.environ:
            raise UsageError(f"--env {name}: there is no such variable.", f"Write --env {name}=VALUE.")
        found[name] = value if equals else os.environ[name]
    return found or None


def _service(location: Any) -> JobService:
    from oars.service.jobs import JobService

    return JobService(os.environ, location)


class _Follower:
    """Shows a job to its end: progress until the driver runs, then its output, and a line for each further attempt."""

    def __init__(self, service: JobService, name: str, progress: Progress) -> None:
        self._service = service
        self._name = name
        self._progress = progress
        self._status: JobStatus | None = None

    async def run(self) -> int:
        from oars.service.jobs import exit_code_of

        watching = asyncio.create_task(self._watch())
        try:
            async for each in self._service.logs(self._name, None, follow=True):
                self._progress.close()
                write(each.line)
            await watching
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        status = self._status
        if status is None or not status.state.is_final:
            raise NotFound(f"Job {self._name!r} was removed before it ended.")
        if status.state is not JobState.SUCCEEDED:
            self._progress.say(f"Job {self._name}: {status.state}. {status.message}")
        return exit_code_of(status)

    async def _watch(self) -> None:
        from oars.service.jobs import news

        async for info in self._service.watch(self._name):
            status, before = info.status, self._status or info.status
            self._status = status
            detail = f": {status.message}" if status.message else ""
            self._progress(f"{self._name}: {status.state}{detail}")
            if text := news(before, status):
                self._progress.say(f"Job {self._name}: {text}")


def _ask(service: JobService, name: str, error: Interrupted) -> int:
    """Leave the job running, which is the default, or cancel it."""
    if service.is_attached(name):
        say(f"Job {name} cannot continue without this command: cancelling it.")
        say(f"Job {name}: {signals.run(service.cancel(name, CANCEL_SECONDS)).state}.")
        raise error
    reference = service.reference(name)
    hint = f"It continues. Follow it with `oars jobs logs -f {reference}`; stop it with `oars jobs cancel {reference}`."
    if not sys.stdin.isatty():
        error.hint = f"Job {name}: {hint}"
        raise error
    try:
        answer = click.prompt(f"\nJob {name} is running. (l)eave it running or (c)ancel it?", default="l", err=True)
    except click.Abort:
        answer = "l"
    if not answer.lower().startswith("c"):
        say(f"Job {name}: {hint}")
        return error.exit_code
    status = signals.run(service.cancel(name, CANCEL_SECONDS))
    say(f"Job {name}: {status.state}.")
    return error.exit_code


# oars jobs


@click.group()
def jobs() -> None:
    """List, follow, cancel and remove jobs."""


def _schedule(job: JobInfo) -> str:
    return f"run of {job.run_of}, {_clock(job.due)}" if job.run_of else job.schedule or "-"


SCHEDULE = Column["JobInfo"]("SCHEDULE", _schedule, wide=True)
COLUMNS = (
    Column["JobInfo"]("NAME", lambda j: j.name),
    Column["JobInfo"]("NAMESPACE", lambda j: j.namespace),
    Column["JobInfo"]("STATE", lambda j: j.status.state, paint=paint_phase),
    Column["JobInfo"]("AGE", lambda j: show_span(time.time() - j.created)),
    Column["JobInfo"]("TTL-AFTER-FINISHED", lambda j: show_span(j.ttl), wide=True),
    Column["JobInfo"]("MAX-LIFETIME", lambda j: show_span(j.deadline), wide=True),
    SCHEDULE,
    Column["JobInfo"]("ENGINE", lambda j: j.status.engine),
    Column["JobInfo"]("CLUSTER", lambda j: j.status.cluster),
    Column["JobInfo"]("ATTEMPT", lambda j: j.status.attempt or "-"),
    Column["JobInfo"]("EXIT", lambda j: "-" if j.status.exit_code is None else j.status.exit_code),
    Column["JobInfo"]("MESSAGE", lambda j: j.status.message),
)
ATTEMPTS = (
    Column[Attempt]("ATTEMPT", lambda a: a.n),
    Column[Attempt]("CLUSTER", lambda a: a.cluster),
    Column[Attempt]("OUTCOME", lambda a: a.outcome or "-"),
    Column[Attempt]("EXIT", lambda a: "-" if a.exit_code is None else a.exit_code),
    Column[Attempt]("SECONDS", lambda a: "-" if a.ended is None else f"{a.ended - (a.started or a.ended):.1f}"),
    Column[Attempt]("REASON", lambda a: a.reason),
)


RUNS = (
    Column[ScheduleStatus]("LAST-RUN", lambda s: _clock(s.last)),
    Column[ScheduleStatus]("NEXT-RUN", lambda s: _clock(s.next)),
    Column[ScheduleStatus]("MISSED", lambda s: s.missed),
    Column[ScheduleStatus]("ACTIVE", lambda s: ", ".join(s.active) or "-"),
)


def _columns(rows: Sequence[JobInfo]) -> Sequence[Column[JobInfo]]:
    """With the schedules, if there are any."""
    has_schedules = any(each.schedule or each.run_of for each in rows)
    return [replace(each, wide=False) if each is SCHEDULE and has_schedules else each for each in COLUMNS]


def _clock(seconds: float | None) -> str:
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(seconds))


def emit_job(info: JobInfo, output: str) -> None:
    def text(wide: bool) -> str:
        lines = [table([info], _columns([info]), wide)]
        if info.status.attempts:
            lines += ["", table(info.status.attempts, ATTEMPTS, wide)]
        if (schedule := info.status.schedule) is not None:
            lines += ["", table([schedule], RUNS, wide)]
        if info.directory:
            lines += ["", f"working directory: {info.directory}"]
        return "\n".join(lines)

    emit(output, info.to_dict(), [info.name], text)


@jobs.command("ls")
@click.option("-A", "--all-namespaces", is_flag=True, help="Kubernetes: of all namespaces.")
@location_options
@output_option
def ls(service: Service, all_namespaces: bool, output: str) -> None:
    """List jobs."""
    found = signals.run(_service(service.location).list(all_namespaces=all_namespaces))
    for place, problem in found.problems.items():
        say(f"warning: {place}: {problem}")
    rows = sorted(found.jobs, key=lambda each: each.created)
    data = [each.to_dict() for each in rows]
    emit(output, data, [each.name for each in rows], lambda wide: table(rows, _columns(rows), wide) if rows else "")
    if not rows and output == "table":
        say("There are no jobs.")


@jobs.command("status")
@job_argument
@location_options
@output_option
def status(name: str, service: Service, output: str) -> None:
    """Show one job and its attempts."""
    emit_job(signals.run(_service(service.location).get(name)), output)


@jobs.command("logs")
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Continue with new lines until the job has ended.")
@click.option("--attempt", type=Integer(1), metavar="N", help="Of this attempt. Default: the last one.")
@click.option("--tail", type=Integer(min=0), metavar="N", help="Only the last N lines, and those that follow.")
@location_options
@output_option
def logs(name: str, follow: bool, attempt: int | None, tail: int | None, service: Service, output: str) -> int:
    """Show the output of a job's driver."""

    async def show() -> None:
        async for each in _service(service.location).logs(name, attempt, follow=follow, tail=tail):
            if output == "json":
                write(json.dumps(asdict(each), ensure_ascii=False))
            else:
                write(as_yaml([asdict(each)]) if output == "yaml" else each.line)

    try:
        signals.run(show())
    except Interrupted as error:
        jobs_service = _service(service.location)
        if not follow or signals.run(jobs_service.get(name)).status.state.is_final:
            raise
        return _ask(jobs_service, name, error)
    return 0


@jobs.command("wait")
@job_argument
@timeout_option("1h")
@location_options
@output_option
def wait(name: str, timeout: float, service: Service, output: str) -> int:
    """Wait until a job has ended. The exit code is the driver's."""
    from oars.service.jobs import exit_code_of

    found = signals.run(_service(service.location).wait(name, timeout))
    emit_job(signals.run(_service(service.location).get(name)), output)
    return exit_code_of(found)


@jobs.command("cancel")
@job_argument
@no_wait_option
@timeout_option("1m")
@location_options
@output_option
def cancel(name: str, no_wait: bool, timeout: float, service: Service, output: str) -> None:
    """Stop a job. Its status and its output stay."""
    found = signals.run(_service(service.location).cancel(name, None if no_wait else timeout))
    if found.state.is_final and found.state is not JobState.CANCELLED:
        say(f"Job {name} has ended before: {found.state}.")
    emit_job(signals.run(_service(service.location).get(name)), output)


@jobs.command("suspend")
@job_argument
@no_wait_option
@timeout_option("1m")
@location_options
@output_option
def suspend(name: str, no_wait: bool, timeout: float, service: Service, output: str) -> None:
    """Stop a job's driver and its cluster until `oars jobs resume`."""
    _suspend(service, name, None if no_wait else timeout, output, suspended=True)


@jobs.command("resume")
@job_argument
@no_wait_option
@timeout_option("1m")
@location_options
@output_option
def resume(name: str, no_wait: bool, timeout: float, service: Service, output: str) -> None:
    """Continue a suspended job with a new attempt."""
    _suspend(service, name, None if no_wait else timeout, output, suspended=False)


def _suspend(service: Service, name: str, timeout: float | None, output: str, *, suspended: bool) -> None:
    emit_job(signals.run(_service(service.location).suspend(name, timeout, suspended=suspended)), output)


@jobs.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=completions.jobs)
@timeout_option("90s")
@location_options
@quiet_option
def rm(names: tuple[str, ...], timeout: float, service: Service, quiet: bool) -> None:
    """Cancel jobs and remove everything that belongs to them, with their output."""
    results = signals.run(_service(service.location).remove(names, timeout))
    for name, error in results.items():
        if error is None and not quiet:
            say(f"{name}: removed")
    raise_worst(results.values())


@jobs.command("why")
@job_argument
@location_options
@output_option
def why(name: str, service: Service, output: str) -> None:
    """Explain the state of a job: what it waits for, and how its attempts ended."""
    causes = signals.run(_service(service.location).why(name))

    def text(_: bool) -> str:
        lines = []
        for cause in causes:
            lines += [f"{cause.reason}: {cause.message}", *(f"    {line}" for line in cause.lines)]
            lines += [f"  {cause.hint}"] if cause.hint else []
        return "\n".join(lines) or f"{name}: nothing is wrong."

    emit(output, [asdict(cause) for cause in causes], [cause.reason for cause in causes], text)
