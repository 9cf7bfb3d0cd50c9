"""The arguments of `adapt`: limits in workers, cores or memory, and options of Dask's Adaptive. Pure."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from distributed import Scheduler
from distributed.deploy.adaptive import Adaptive

from oars.base.errors import UsageError
from oars.base.text import suggest
from oars.compat.dask_kubernetes import checks
from oars.compat.dask_kubernetes.common.model import Model

LIMITS = ("minimum_cores", "maximum_cores", "minimum_memory", "maximum_memory")
# Options of Dask's Adaptive. It passes those that it does not know on to Scheduler.workers_to_close.
OPTIONS = {
    name
    for function in (Adaptive.__init__, Scheduler.workers_to_close)
    for name, each in inspect.signature(function).parameters.items()
    if each.kind is not each.VAR_KEYWORD and name not in ("self", "cluster")
}
_CHECKS = {"interval": checks.seconds, "target_duration": checks.seconds, "wait_count": checks.count}


def limits(template: Model, minimum: Any, maximum: Any, others: Mapping[str, Any]) -> tuple[int, int | float]:
    """The least and the largest number of workers; `others`: limits in cores and memory, see LIMITS."""
    least = checks.count("minimum", 0 if minimum is None else minimum, "a number of workers")
    most = checks.limit("maximum", math.inf if maximum is None else maximum)
    cores = {name: checks.amount(name, others[name]) for name in LIMITS[:2] if others[name] is not None}
    memory = {name: checks.size(name, others[name]) for name in LIMITS[2:] if others[name] is not None}
    workers = {name: value / threads_per_worker(template) for name, value in cores.items()}
    workers |= {name: value / memory_per_worker(template) for name, value in memory.items()}
    for name, number in workers.items():
        if name.startswith("minimum"):
            least = max(least, math.ceil(number))
        else:
            most = min(most, math.floor(number))
    if least > most:
        raise UsageError(
            f"adapt: at least {least} workers, but at most {most}.", "Use a minimum that is not above the maximum."
        )
    return least, most


def check_options(kind: type[Adaptive], options: Mapping[str, Any]) -> None:
    """`kind`: the class that gets them. One of the user's own may have further options."""
    for name, value in options.items():
        if name not in OPTIONS and kind.__init__ is Adaptive.__init__:
            meant = suggest(name, [*OPTIONS, *LIMITS])
            raise TypeError(f"adapt() got an unexpected keyword argument {name!r}.{meant}")
        if name in _CHECKS and value is not None:
            _CHECKS[name](name, value)


def option_of(template: Model, option: str) -> str | None:
    """The value of a command-line option in a worker's template."""
    container = template.spec.containers[0]
    words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    for number, word in enumerate(words):
        if word == option:
            return words[number + 1] if number + 1 < len(words) else None
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def threads_per_worker(template: Model) -> int:
    threads = option_of(template, "--nthreads") or ""
    if not threads.isdecimal() or not int(threads):
        raise _uncountable("--nthreads", threads, "cores")
    return int(threads)


def memory_per_worker(template: Model) -> int:
    limit = option_of(template, "--memory-limit") or ""
    try:
        size = checks.size("--memory-limit", limit)
    except UsageError:  # a share of the memory, or "auto"
        size = 0
    if not size:
        raise _uncountable("--memory-limit", limit, "memory")
    return size


def _uncountable(option: str, value: str, what: str) -> UsageError:
    found = f"has {option} {value}" if value else f"has no {option}"
    return UsageError(f"The template {found}, so {what} cannot be counted.", "Pass numbers of workers.")
