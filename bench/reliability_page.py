"""docs/reliability.md, from the results of bench/reliability.py and bench/kube_scale.py. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

HEAD = """
# Reliability in figures

`python -m bench.reliability` measures each part; `bench/results/reliability.json` and `kube_scale.json` have the
figures."""
SIMULATION = """
## Simulated histories

{histories:,} histories of users and faults (`tests/simulation`, {when}): the real operator, direct clients and loops
of local clusters on a virtual clock, against a Kubernetes in memory. Violated invariants: **{violations}**.
{kills:,} times an operator, a client or a keeper was killed, most of them right after a write. `make test` runs
1,000 seeds, `make test-all` 10,000.

After the faults of a history stop, the desired state is reached, no acknowledged result was lost except by force or
by the head's death, nothing is orphaned, nothing is written at rest. At no time do two heads serve or two leaders
write, a Deployment grows beyond what is desired and retires, all Deployments of a group beyond twice as many, or a
wait has no reason in the status. A failing seed prints its history and replays exactly. Faults that are reintroduced
on purpose are caught (`tests/simulation/test_reintroduced.py`).

Not counted as lost: results of the first {late_seconds:.0f} s of a worker that joined the next head at the moment in
which it was replaced, and of a worker that failed its probe at the moment in which Kubernetes chose whom to remove.
Of local clusters the loop is simulated, with a place in memory; their processes are tested for real
(`tests/live/test_faults.py`).

| what users did, and faults | times |
|---|---|"""
KILLS = """
## Kills after every single write

On a real control plane (`tests/api/test_killed_after_writes.py`, {when}) each process makes one change and is
killed; the next one continues. All life cycles converge, no result is lost, nothing is orphaned, and nothing is
written at rest. Kills after a write:

| phase | operator | direct client |
|---|---|---|"""
JOBS = """
## Jobs while operators are killed

{jobs} jobs are submitted at once to a real control plane (`tests/api/test_jobs.py`, {when}), each with a driver and a
cluster of its own; the drivers are simulated. The first attempt of {retried} jobs exits with 1 and is retried. The
operator is killed {kills} times meanwhile. All jobs succeed within {seconds} s; of {drivers} attempts **{twice}** had
more than one driver."""
DRAINS = """
## Drains with data under load

On real pods, {when}. A driver computes chains of tasks whose results stay on the workers and calls actors, while
workers leave and others start (`bench/scale_down_loads.py`).

| engine | workers drained | calls of the user | failed | results lost |
|---|---|---|---|---|"""
FUZZ = """
## Bad inputs

{inputs:,} damaged inputs ({when}): each was accepted, or refused with an error for people; no traceback. Whatever is
accepted can be rendered whole, so that nothing is half-made (`tests/unit/test_fuzz.py`). `make test-all` tries
100,000.

| kind | tried | refused |
|---|---|---|"""
FAIRNESS = """
## Tenants

Seconds until the operator reacts to a change of one of 20 healthy clusters, and until the cluster is ready, while
another tenant has trouble; the slowest of 20, on the virtual clock (`tests/simulation/test_fairness.py`, {when}).
The CPU time of a pass over 1,000 workers is limited by `tests/unit/places/test_pass_speed.py`.

| trouble of the other tenant | reaction | ready |
|---|---|---|"""
LOAD = """
## Load held

One operator, simulated pods ({when}); see [benchmarks](benchmarks.md).

| clusters | workers each | seconds until all are ready | CPU seconds | memory, MB | writes at rest |
|---|---|---|---|---|---|"""
NOT_MEASURED = "Not measured yet: {names}."


def page(note: str, found: Mapping[str, Any], growth: Mapping[str, Any]) -> str:
    """What was simulated, killed, drained and fuzzed, and what came of it. A part that was not measured is named."""
    parts: dict[str, tuple[str, Callable[[Mapping[str, Any]], Iterable[str]]]] = {
        "simulation": (SIMULATION, simulation_rows),
        "kills": (KILLS, kill_rows),
        "jobs": (JOBS, lambda part: ()),
        "drains": (DRAINS, lambda part: (drain_row(row) for row in part["rows"])),
        "fuzz": (FUZZ, lambda part: (f"| {k} | {v['tried']:,} | {v['refused']:,} |" for k, v in part["kinds"].items())),
        "fairness": (FAIRNESS, lambda part: (fairness_row(row) for row in part["rows"])),
    }
    lines = [note.rstrip(), HEAD.rstrip()]
    for name, (head, rows) in parts.items():
        if name in found:
            lines += [head.format(**found[name]), *rows(found[name])]
    lines += [LOAD.format(when=growth["when"]), *map(load_row, growth["result"])]
    if missing := [name for name in parts if name not in found]:
        lines += ["", NOT_MEASURED.format(names=", ".join(missing))]
    return "\n".join([*lines, ""])


def simulation_rows(part: Mapping[str, Any]) -> Iterator[str]:
    for name, count in part["acts"].items():
        yield f"| {name.replace('_', ' ')} | {count} |"


def kill_rows(part: Mapping[str, Any]) -> Iterator[str]:
    operator, direct = part["modes"]["OperatorMode"], part["modes"]["DirectMode"]
    for phase in operator:
        yield f"| {phase} | {sum(operator[phase].values())} | {sum(direct[phase].values())} |"
    totals = [sum(sum(writes.values()) for writes in mode.values()) for mode in (operator, direct)]
    yield f"| all | {totals[0]} | {totals[1]} |"


def drain_row(row: Mapping[str, Any]) -> str:
    note = f" ({row['problem']})" if row["problem"] else ""
    return f"| {row['engine']} | {row['left']}{note} | {row['calls']:,} | {row['failed']} | {row['lost']} |"


def fairness_row(row: Mapping[str, Any]) -> str:
    return f"| {row['trouble']} | {row['reaction']:.2f} s | {row['start']:.2f} s |"


def load_row(row: Mapping[str, Any]) -> str:
    cells = (row["clusters"], row["workers"], f"{row['seconds']:.0f}", f"{row['cpu']:.0f}", f"{row['megabytes']:.0f}")
    return f"| {' | '.join(map(str, cells))} | {row['writes_at_rest']:.0f} |"
