"""The arguments of new_cluster, of Mars 0.3 to 0.10, as a ClusterSpec."""

from __future__ import annotations

import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oars import engines
from oars.base.errors import SpecError, UsageError
from oars.base.text import suggest
from oars.engines.mars.shape import IMAGE_PYTHONS, IMAGES
from oars.spec import load, resources
from oars.spec.cluster import ClusterSpec, check_namespace

ROLES = ("scheduler", "worker", "web")
SERVICE_TYPES = ("NodePort", "LoadBalancer", "ClusterIP")
START_SECONDS = 3600.0  # without a timeout; Mars waited for ever
_PER_ROLE = ("mem_limit_ratio", "extra_modules", "extra_env", "extra_labels", "service_port")
_OWN_PORTS = "the endpoint tells the port, which Oars and Kubernetes choose"
_LIMIT = "the limit is what is requested"
# What has no effect any more, and why.
NO_EFFECT = {
    "worker_min_cache_mem": "Mars has had no such setting since 0.7",
    "service_name": "the Service has the name of the cluster",
    "web_port": _OWN_PORTS,
    "service_port": _OWN_PORTS,
    **{f"{role}_service_port": _OWN_PORTS for role in ROLES},
    **{f"{role}_mem_limit_ratio": _LIMIT for role in ROLES},
}
# Keyword arguments besides those of the signature. `supervisor_*` is today's name of `scheduler_*`.
FURTHER = (
    "namespace", "extra_volumes", "extra_modules", "extra_env", "extra_labels", "pre_stop_command", "log_when_fail",
    "cluster_cls", "worker_min_cache_mem", "service_port", "service_name", "web_port",
    *(f"{role}_{name}" for role in ROLES for name in _PER_ROLE),
    *(f"supervisor_{name}" for name in ("num", "cpu", "mem", *_PER_ROLE)),
    "distribution", "create_namespace",
)  # fmt: skip
# Names of the first version, or of other tools, that are not close to today's.
RENAMED = {"n_workers": "worker_num", "num_workers": "worker_num", "workers": "worker_num", "head_mem": "scheduler_mem"}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([bkmgt]?)i?b?\s*", re.IGNORECASE)
_UNITS = {unit: 1024**power for power, unit in enumerate(("b", "k", "m", "g", "t"))} | {"": 1}
# Both distributions, as each has its own command line and its own home of sessions.
ONE_SUPERVISOR = (
    "several supervisors of {distribution} find each other only through Mars' own pods, which need rights on the API "
    "server, and each loses its sessions with its pod; Oars restarts the one that there is"
)
ONE_WEB = "the supervisor of {distribution} serves the web interface itself, as in every Mars since 0.7"


@dataclass(frozen=True)
class Arguments:
    """Complete and checked. `namespace` None: that of the ApiClient or the context."""

    name: str
    spec: ClusterSpec
    distribution: str
    namespace: str | None
    timeout: float
    log_when_fail: bool

    @property
    def has_own_namespace(self) -> bool:
        return self.spec.namespace.create


class _Given(dict[str, Any]):
    """All arguments by their names in 0.6."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._written: dict[str, str] = {}

    def take(self, name: str, older: str, value: Any) -> None:
        """`name`: today's, which the caller used."""
        self[older] = value
        self._written[older] = name

    def written(self, name: str) -> str:
        """The name that the caller used."""
        return self._written.get(name, name)


def resolve(
    given: Mapping[str, Any], more: Mapping[str, Any], find_distribution: Callable[[str | None], str]
) -> Arguments:
    """`given`: the arguments of the signature; `more`: other keyword arguments. `find_distribution` returns the one
    that is given or that this Python has."""
    args = _with_further(given, more)
    if args["cluster_cls"] is not None:
        raise UsageError("cluster_cls is not supported: Oars has one class for clusters.", "Omit it.")
    for name, reason in NO_EFFECT.items():
        if args[name] is not None:
            warnings.warn(f"new_cluster: {args.written(name)} has no effect: {reason}.", UserWarning, stacklevel=3)
    distribution = find_distribution(args["distribution"])
    _check_one(args, "scheduler_num", ONE_SUPERVISOR.format(distribution=distribution))
    _check_one(args, "web_num", ONE_WEB.format(distribution=distribution))
    workers = count("worker_num", args["worker_num"])
    ready = workers if args["min_worker_num"] is None else count("min_worker_num", args["min_worker_num"])
    if ready > workers:
        raise SpecError(
            f"min_worker_num is {ready}, but worker_num is {workers}.", f"Set min_worker_num to at most {workers}."
        )
    suffix = secrets.token_hex(4)
    namespace = _namespace(args, f"mars-ns-{suffix}")
    data = {
        "engine": "mars",
        "place": "kubernetes",
        "image": args["image"],
        "env": _texts(args, "extra_env"),
        "head": _head(args),
        "workers": [{"replicas": workers, **_worker(args)}],
        "minReady": ready,
        "namespace": {"name": namespace, "create": bool(args["create_namespace"])},
        "expose": {"type": _service_type(args["service_type"])},
        "mars": {"distribution": distribution, **_modules(args)},
    }
    return Arguments(
        name=f"mars-{suffix}",
        spec=load.build(data, option_model=engines.option_model).spec,
        distribution=distribution,
        namespace=namespace,
        timeout=START_SECONDS if args["timeout"] is None else seconds("timeout", args["timeout"]),
        log_when_fail=bool(args["log_when_fail"]),
    )


def warn_of_default_image(distribution: str, python: str) -> None:
    """`python`: the version of the program, such as 3.11. Mars refuses the session if that of the pods is another."""
    there = IMAGE_PYTHONS[distribution]
    if there != python:
        warnings.warn(
            f"new_cluster: the default image {IMAGES[distribution]} has Python {there}, but this program has {python}, "
            f"so it cannot use the cluster. Build an image with `oars image build --engine mars --distribution "
            f"{distribution} --python {python} -t REGISTRY/mars:1`, push it, and pass its name as image.",
            UserWarning,
            stacklevel=3,
        )


def _with_further(given: Mapping[str, Any], more: Mapping[str, Any]) -> _Given:
    args = _Given({**dict.fromkeys(FURTHER), "create_namespace": True, **given})
    # Today's names last: they are compared with the older ones.
    for name in sorted(more, key=lambda each: each.startswith("supervisor_")):
        value = more[name]
        if name not in FURTHER:
            known = [*given, *FURTHER]
            meant = f" Did you mean {RENAMED[name]!r}?" if name in RENAMED else suggest(name, known)
            raise TypeError(f"new_cluster() got an unexpected keyword argument {name!r}.{meant}")
        older = name.replace("supervisor_", "scheduler_")
        if older != name:
            if value is None:
                continue
            default = 1 if older == "scheduler_num" else None
            if args[older] not in (default, value):
                raise UsageError(f"{name} and {older} are the same argument, with two values.", f"Omit {older}.")
        args.take(name, older, value)
    return args


def _check_one(args: _Given, name: str, reason: str) -> None:
    written = args.written(name)
    if count(written, args[name]) != 1:
        message = f"{written} is {args[name]}, but a cluster has exactly one: {reason}."
        raise SpecError(message, f"Set {written} to 1.")


def count(name: str, value: Any) -> int:
    """A number of pods. Raises SpecError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SpecError(f"{name}: {value!r} is not a number of pods.", "Use a whole number, 0 or more.")
    return value


def seconds(name: str, value: Any) -> float:
    try:
        return resources.duration(value)
    except ValueError as error:
        raise SpecError(f"{name}: {error}.") from error


def _namespace(args: _Given, generated: str) -> str | None:
    if args["namespace"] is None:
        return generated if args["create_namespace"] else None
    try:
        return check_namespace(str(args["namespace"]))
    except ValueError as error:
        raise SpecError(f"{error}.", "Omit namespace for a generated one.") from error


def _service_type(value: Any) -> str:
    kind = value or SERVICE_TYPES[0]
    by_lower = {known.lower(): known for known in SERVICE_TYPES}
    if str(kind).lower() not in by_lower:
        raise SpecError(
            f"There is no service_type {kind!r}.{suggest(str(kind), SERVICE_TYPES)}", f"Use {', '.join(SERVICE_TYPES)}."
        )
    return by_lower[str(kind).lower()]


# Pods.


def _head(args: _Given) -> dict[str, Any]:
    """The scheduler's pod. It has the web service, too, so it gets what both are given."""
    cpus = [_cpu(args.written(name), args[name]) for name in ("scheduler_cpu", "web_cpu") if args[name] is not None]
    sizes = [size(args.written(name), args[name]) for name in ("scheduler_mem", "web_mem") if args[name] is not None]
    env = {
        **_texts(args, "web_extra_env"),
        **_texts(args, "scheduler_extra_env"),
    }
    found: dict[str, Any] = {"burst": True, "env": env, "pod": _pod(args, "head", ("web", "scheduler"))}
    if cpus:
        found["cpu"] = sum(cpus)
    if sizes:
        found["memory"] = sum(sizes)
    return found


def _worker(args: _Given) -> dict[str, Any]:
    """Processors are limited only together with the memory, as in the original."""
    found: dict[str, Any] = {"burst": args["worker_mem"] is None}
    if args["worker_cpu"] is not None:
        found["cpu"] = _cpu("worker_cpu", args["worker_cpu"])
    if args["worker_mem"] is not None:
        found["memory"] = size("worker_mem", args["worker_mem"])
    env = _texts(args, "worker_extra_env")
    return {**found, **_memory_tuning(args), "env": env, "pod": _pod(args, "worker", ("worker",))}


def _memory_tuning(args: _Given) -> dict[str, Any]:
    """Where workers spill, and how much shared memory they have."""
    paths, fields = _listed("worker_spill_paths", args["worker_spill_paths"]), dict[str, Any]()
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/"):
            raise SpecError(f"worker_spill_paths: {path!r} is not an absolute path.", "Use paths such as /data/spill.")
    if paths:
        fields["spill"] = {"paths": paths}
    if args["worker_cache_mem"] is not None:
        fields["cache"] = size_or_share("worker_cache_mem", args["worker_cache_mem"])
    return fields


def _pod(args: _Given, container: str, roles: Iterable[str]) -> dict[str, Any]:
    """What Oars merges over its own pod template."""
    labels = _texts(args, "extra_labels")
    for role in roles:
        labels |= _texts(args, f"{role}_extra_labels")
    spec: dict[str, Any] = {}
    if args["create_namespace"]:
        spec["automountServiceAccountToken"] = True  # the role of the namespace lets members read its pods
    parts = [_volume(each) for each in _listed("extra_volumes", args["extra_volumes"])]
    own: dict[str, Any] = {"name": container}
    if parts:
        spec["volumes"] = [volume for volume, _ in parts]
        own["volumeMounts"] = [mount for _, mount in parts]
    if command := args["pre_stop_command"]:
        listed = _listed("pre_stop_command", command)
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in listed]
        own["lifecycle"] = {"preStop": {"exec": {"command": words}}}
    if len(own) > 1:
        spec["containers"] = [own]
    return {**({"metadata": {"labels": labels}} if labels else {}), **({"spec": spec} if spec else {})}


def _volume(given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The volume and its mount, from one of Mars' VolumeConfig objects or from a mapping with a mountPath."""
    if hasattr(given, "build") and hasattr(given, "build_mount"):
        return given.build(), given.build_mount()
    if isinstance(given, Mapping) and {"name", "mountPath"} <= set(given):
        volume = {key: value for key, value in given.items() if key not in ("mountPath", "readOnly")}
        return volume, {key: given[key] for key in ("name", "mountPath", "readOnly") if key in given}
    raise SpecError(
        f"extra_volumes: {given!r} is not a volume.",
        "Use one of Mars' VolumeConfig objects, or a Kubernetes volume as a dict with a mountPath.",
    )


def _modules(args: _Given) -> dict[str, Any]:
    """Modules that members import when they start."""
    common = _words(args, "extra_modules")
    of_role = {role: _words(args, f"{role}_extra_modules") for role in ROLES}
    head = dict.fromkeys([*common, *of_role["scheduler"], *of_role["web"]])
    worker = dict.fromkeys([*common, *of_role["worker"]])
    if not head and not worker:
        return {}
    return {"config": {"third_party_modules": {"supervisor": list(head), "worker": list(worker)}}}


def _words(args: _Given, name: str) -> list[str]:
    value, name = args[name], args.written(name)
    words = value.split(",") if isinstance(value, str) else _listed(name, value)
    if not all(isinstance(word, str) for word in words):
        raise SpecError(f"{name}: {value!r} is not a list of modules.", "Use names such as ['my_package'].")
    return [word.strip() for word in words]


def _listed(name: str, value: Any) -> list[Any]:
    """Of a list, or of one text."""
    if not isinstance(value, str | list | tuple | None):
        raise SpecError(f"{name}: {value!r} is not a list.", "Use a list, such as ['one', 'two'].")
    return [value] if isinstance(value, str) else list(value or ())


def _texts(args: _Given, name: str) -> dict[str, str]:
    value = args[name]
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{args.written(name)}: {value!r} is not a dict.", "Use names and values such as {'A': '1'}.")
    return {str(key): str(text) for key, text in value.items()}


# Quantities. Mars' units are powers of 1024: 1g is 1Gi.


def _cpu(name: str, value: Any) -> float:
    try:
        return resources.cpu(value)
    except ValueError as error:
        raise SpecError(f"{name}: {error}.") from error


def size(name: str, value: Any) -> int:
    """Bytes. Raises SpecError."""
    is_known = isinstance(value, int | float | str) and not isinstance(value, bool)
    match = _SIZE.fullmatch(str(value)) if is_known else None
    if match is None:
        raise SpecError(f"{name}: {value!r} is not a size.", "Write it in bytes, or with a unit such as 512m or 16g.")
    try:
        return resources.memory(int(float(match[1]) * _UNITS[match[2].lower()]))
    except ValueError as error:
        message = f"{name}: {value!r} is not between 1 MiB and 1024 TiB."
        raise SpecError(message, "Write it in bytes, or with a unit such as 512m or 16g.") from error


def size_or_share(name: str, value: Any) -> int | str:
    """Bytes, or a percentage such as 40%. A number below 1 is a share, too."""
    text = str(value).strip()
    number = float(text) if re.fullmatch(r"0?\.\d+", text) and not isinstance(value, bool) else None
    if number is None and not text.endswith("%"):
        return size(name, value)
    try:
        share = 100 * number if number is not None else float(text[:-1])
    except ValueError:
        share = 0.0
    if not 0 < share <= 100:
        raise SpecError(f"{name}: {value!r} is not a share of the memory.", "Use for example '40%', 0.4 or '4g'.")
    return f"{share:g}%"
