"""Signatures of the Python API: suggestions for unknown keyword arguments, and parameters shared by two methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from oars.base.text import suggest

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

# What other tools call a parameter. Similar spellings need no entry.
ALIASES = {
    "workers": "n_workers num_workers nworkers worker_num n_worker min_workers n replicas count num_nodes size",
    "cpu": "threads_per_worker num_cpus ncores cores nthreads n_cpu cpus worker_cpu worker_cores num_cores",
    "memory": "memory_limit mem worker_memory worker_mem mem_bytes ram",
    "cache": "worker_cache_mem worker_cache_percentage worker_cache_size object_store_memory",
    "spill": "worker_spill_paths spill_dirs spill_paths local_directory object_spilling_directory",
    "head_cpu": "scheduler_cpu scheduler_cores head_cores head_cpus",
    "head_memory": "scheduler_memory scheduler_mem head_mem",
    "name": "cluster_name cluster",
    "packages": "pip pip_packages requirements dependencies extra_pip_packages",
    "image": "container_image docker_image worker_image",
    "lifetime": "idle_timeout ttl shutdown_on_idle max_lifetime autostop no_client_timeout",
    "place": "platform backend where target provider",
    "namespace": "ns k8s_namespace",
    "context": "kube_context kubernetes_context",
    "kubeconfig": "kube_config config_file config",
    "timeout": "wait_timeout start_timeout timeout_seconds startup_timeout",
    "progress": "callback on_progress verbose",
    "modules": "working_dir py_modules",
    "tail": "tail_lines lines",
}
_PARAMETER_OF = {alias: name for name, aliases in ALIASES.items() for alias in aliases.split()}


def suggest_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make a method raise a TypeError that names the method as its user knows it, and the parameter which an unknown
    keyword most likely means."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters)
    label = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters:
                alias = _PARAMETER_OF.get(name)
                meant = f" Did you mean {alias!r}?" if alias in parameters else suggest(name, parameters[1:])
                raise TypeError(f"{label}() got an unexpected keyword argument {name!r}.{meant}")
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{label}(): {error}.") from None
        return function(*args, **kwargs)

    return checked


def same_parameters(
    source: Callable[P, object],
) -> Callable[[Callable[Concatenate[S, ...], R]], Callable[Concatenate[S, P], R]]:
    """Give a method the parameters of `source`, for help(), editors and type checkers. Its docstring gets all but the
    first paragraph of that of `source`."""
    documented = inspect.getdoc(vars(source).get("__init__", source)) or ""  # of a class: of its constructor
    _, _, details = documented.partition("\n\n")

    def decorate(method: Callable[Concatenate[S, ...], R]) -> Callable[Concatenate[S, P], R]:
        first = next(iter(inspect.signature(method).parameters.values()))  # self or cls
        described: Any = method
        described.__signature__ = inspect.Signature([first, *inspect.signature(source).parameters.values()])
        described.__doc__ = f"{method.__doc__}\n\n{details}"
        return suggest_keywords(described)

    return decorate
