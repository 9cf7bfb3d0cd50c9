"""From the user's templates to the pods, the Service and the budget of a cluster. Pure, but for the user's name."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oars.base.errors import SpecError
from oars.compat.dask_kubernetes import checks
from oars.compat.dask_kubernetes.common.model import Model, plain
from oars.compat.dask_kubernetes.common.objects import checked_template, clean_pod_template
from oars.compat.dask_kubernetes.scheduler_preload import ORPHANED
from oars.engines.base import script
from oars.engines.dask import live
from oars.engines.dask.shape import HEAD_PLUGIN, LOG_PATTERNS
from oars.model import Desired, Group, LogPattern, Port, Process, Role, Shape
from oars.places.kube import names
from oars.plan.desired import build_from_shape

SCHEDULER_PORT, DASHBOARD_PORT = 8786, 8787
PORTS = (Port("client", SCHEDULER_PORT), Port("dashboard", DASHBOARD_PORT, dashboard=True))
WORKER_NAME = "DASK_WORKER_NAME"
PRELOAD = "DASK_DISTRIBUTED__SCHEDULER__PRELOAD"
SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")

CLUSTER, COMPONENT = "dask.org/cluster-name", "dask.org/component"

# Program names that templates use → the words after `dask` in today's command.
PROGRAMS = {"dask-worker": "worker", "dask-scheduler": "scheduler", "dask-cuda-worker": "cuda worker"}
_CASES = "".join(f' {old}) set -- {words} "$@";;' for old, words in PROGRAMS.items())
# Runs a program by its old name or, in images that no longer have it, as a subcommand of the `dask` beside it or on the
# PATH.
SHIM = (
    'program=$1; shift; if command -v "$program" >/dev/null 2>&1; then exec "$program" "$@"; fi; '
    f'case "${{program##*/}}" in{_CASES} esac; '
    'for dask in "${program%dask-*}dask" dask; do '
    'if command -v "$dask" >/dev/null 2>&1; then exec "$dask" "$@"; fi; done; '
    'echo "This image contains no Dask: neither $program nor dask is on its PATH." >&2; exit 127'
)
SHIM_VARIABLE = "OARS_DASK"  # has the shim, for shell lines
# Programs in a shell line or as a word: with a path, and by old or by today's names.
_OLD = "|".join(PROGRAMS)
_TODAY = "|".join(r"dask\s+" + words.replace(" ", r"\s+") for words in PROGRAMS.values())
_BEGIN, _END = r"(?:^|(?<=[\s;&|(`]))(?:[^\s;&|'\"`]*/)?", r"(?=$|[\s;&|)`])"
_OLD_PROGRAM = re.compile(f"{_BEGIN}(?:{_OLD}){_END}")
_PROGRAM = re.compile(f"{_BEGIN}(?:{_OLD}|{_TODAY}){_END}")
_SCHEDULER = re.compile(r"\bdask[-_\s]+scheduler\b")
_LINE_FOLLOWS = re.compile(r"-\w*c")  # the option of a shell
NO_DASK = LogPattern(
    "This image contains no Dask",
    "the image contains no Dask",
    "Use an image with Dask, such as ghcr.io/dask/dask, in the template.",
    "EngineMissing",
)
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NOT_IN_NAME = re.compile(r"[^a-z0-9-]")
MAX_NAME = 57  # a pod's name is that of the cluster, a dash and five characters, at most 63 in all


@dataclass(frozen=True)
class Settings:
    """What the pods depend on, apart from the templates."""

    name: str
    namespace: str
    user: str
    env: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = "tcp"
    idle_timeout: str | None = None
    affinity: str = "preferred"
    orphaned: float = 0.0  # seconds that the scheduler outlives its client; 0: without a limit
    address: str = ""  # of a scheduler that is not a pod

    @property
    def scheduler_address(self) -> str:
        return self.address or f"{self.protocol}://{self.name}.{self.namespace}:{SCHEDULER_PORT}"


def cluster_name(pattern: str, user: str, uuid: str, environ: Mapping[str, str]) -> str:
    """Fill in {user}, {uuid} and environment variables. Characters that a name cannot have are dropped."""
    name = escape(checks.fill("The name", pattern, {**environ, "user": user, "uuid": uuid}))
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise SpecError(
            f"{name!r} cannot be the name of a cluster.",
            f"Pass a name that begins with a letter and has at most {MAX_NAME} characters.",
        )
    return name


def escape(text: str) -> str:
    """The text as a part of a name or a label."""
    return _NOT_IN_NAME.sub("", text.lower()).strip("-")


def worker_pod(template: Any, settings: Settings) -> Model:
    pod = _filled(clean_pod_template(template, settings.affinity, "worker"), "worker", settings)
    container = pod.spec.containers[0]
    _set_env(container, {"DASK_SCHEDULER_ADDRESS": settings.scheduler_address})
    from_name = {"name": WORKER_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container["env"] = [each for each in container.env if each["name"] != WORKER_NAME] + [from_name]
    if container.get("command") or container.get("args"):
        _add_options(container, ["--name", f"$({WORKER_NAME})"])
    _shim(container)
    return pod


def scheduler_pod(template: Any, worker_template: Any, settings: Settings) -> Model:
    """By default the scheduler has the template of the workers, with another program."""
    base = checked_template(template or worker_template, "scheduler pod template")
    container = base.spec.containers[0]
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not template or not _SCHEDULER.search(" ".join(words)):
        container["args"] = ["dask-scheduler"]
        command = container.get("command") or ["none"]
        if _PROGRAM.search(" ".join(command)) or command[-1] == "dask" or _LINE_FOLLOWS.fullmatch(command[-1]):
            del container["command"]
    options = ["--idle-timeout", str(settings.idle_timeout)] if settings.idle_timeout is not None else []
    options += ["--protocol", settings.protocol] if settings.protocol != "tcp" else []
    _add_options(container, options)
    pod = _filled(clean_pod_template(base, settings.affinity, "scheduler"), "scheduler", settings)
    pod.spec["restartPolicy"] = "Never"  # one that ends by itself, because it is idle, ends the cluster
    container = pod.spec.containers[0]
    own = [each["value"] for each in container.env if each["name"] == PRELOAD and "value" in each]
    preload = preload_text() if not own else json.dumps([*_listed(own[-1]), preload_text()])
    _set_env(container, {PRELOAD: _unexpanded(preload), ORPHANED: f"{settings.orphaned:g}"})
    _shim(container)
    return pod


def preload_text() -> str:
    """The module that the scheduler loads: see scheduler_preload.py."""
    sources = {"PLUGIN": HEAD_PLUGIN, "HELPER": live.HEAD_HELPER}
    return script(__file__, "scheduler_preload.py") + "".join(f"\n{key} = {text!r}\n" for key, text in sources.items())


def _listed(preload: str) -> list[str]:
    """A user's preloads in the environment: a JSON list or one name."""
    try:
        found = json.loads(preload)
    except ValueError:
        return [preload]
    return [str(each) for each in found] if isinstance(found, list) else [preload]


def _unexpanded(text: str) -> str:
    """Kubernetes expands $(NAME) in values; $$( stands for $(."""
    return text.replace("$(", "$$(")


def _filled(pod: Model, component: str, settings: Settings) -> Model:
    """With the labels of the cluster, which a template cannot override, and the variables that are given for all."""
    own = {CLUSTER: settings.name, COMPONENT: component, "user": settings.user, "app": "dask"}
    metadata = pod.metadata
    metadata["labels"] = Model({**(metadata.labels or {}), **own})
    metadata["namespace"] = settings.namespace
    metadata["generateName"] = f"{settings.name}-"
    metadata.pop("name", None)  # there may be many
    pod["apiVersion"], pod["kind"] = "v1", "Pod"
    _set_env(pod.spec.containers[0], {name: str(value) for name, value in settings.env.items()})
    return pod


def _set_env(container: Model, values: Mapping[str, str]) -> None:
    kept = [each for each in container.get("env") or () if each["name"] not in values]
    container["env"] = [*kept, *({"name": name, "value": text} for name, text in values.items())]


def _shell_line(container: Model) -> tuple[str, int] | None:
    """Where the TEXT of `sh -c TEXT` is, if it runs a program of Dask."""
    before = ""
    for key in ("command", "args"):
        for number, word in enumerate(container.get(key) or ()):
            if _LINE_FOLLOWS.fullmatch(before) and _PROGRAM.search(word):
                return key, number
            before = word
    return None


def _add_options(container: Model, options: Sequence[str]) -> None:
    """To the program: behind its name in a shell line, unless that runs several, else at the end."""
    if (at := _shell_line(container)) is None:
        container["args"] = [*(container.get("args") or ()), *options]
        return
    key, number = at
    line = container[key][number]
    if options and len(_PROGRAM.findall(line)) == 1:
        container[key][number] = _PROGRAM.sub(lambda found: f"{found[0]} {shlex.join(options)}", line)


def _shim(container: Model) -> None:
    """Run the shim in place of the first program that has an old name. Its words may be a command, arguments, or both;
    an image's own entry point runs before arguments only, so they stay arguments."""
    if (at := _shell_line(container)) is not None:
        key, number = at
        run = f'sh -c "${SHIM_VARIABLE}" oars'
        container[key][number] = _OLD_PROGRAM.sub(lambda found: f"{run} {found[0]}", container[key][number])
        _set_env(container, {SHIM_VARIABLE: SHIM})
        return
    for key in ("command", "args"):
        words = list(container.get(key) or ())
        found = next((number for number, word in enumerate(words) if _OLD_PROGRAM.fullmatch(word)), None)
        if found is not None:
            container[key] = [*words[:found], "sh", "-c", SHIM, "oars", *words[found:]]
            return


def service(template: Mapping[str, Any], service_type: str, settings: Settings, instance: str) -> dict[str, Any]:
    """The Service of the scheduler, from the configured template."""
    obj = _owned(template, "scheduler-service-template", settings, instance)
    spec = obj["spec"]
    spec["selector"] = {**(spec.get("selector") or {}), **_selector(settings, instance)}
    spec.setdefault("type", service_type)
    if spec["type"] not in SERVICE_TYPES:
        matching = next((each for each in SERVICE_TYPES if each.lower() == str(spec["type"]).lower()), None)
        if matching is None:
            raise SpecError(
                f"kubernetes.scheduler-service-type: there is no type {spec['type']!r}.",
                f"Use one of {', '.join(SERVICE_TYPES)}.",
            )
        spec["type"] = matching
    return obj


def disruption_budget(template: Mapping[str, Any], settings: Settings, instance: str) -> dict[str, Any]:
    """The PodDisruptionBudget of the scheduler, from the configured template."""
    obj = _owned(template, "scheduler-pdb-template", settings, instance)
    selector = obj["spec"].setdefault("selector", {})
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), **_selector(settings, instance)}
    return obj


def _selector(settings: Settings, instance: str) -> dict[str, str]:
    return {CLUSTER: settings.name, COMPONENT: "scheduler", names.INSTANCE: instance}


def _owned(template: Mapping[str, Any], key: str, settings: Settings, instance: str) -> dict[str, Any]:
    obj: dict[str, Any] = plain(copy.deepcopy(template), f"kubernetes.{key}")
    if not isinstance(obj, dict) or not isinstance(obj.get("spec"), dict):
        raise SpecError(f"kubernetes.{key}: it has no `spec`.", "Copy the default, and change what you need.")
    labels = {CLUSTER: settings.name, "user": settings.user, "app": "dask"}
    metadata = obj.setdefault("metadata", {})
    oars = {names.CLUSTER: settings.name, names.INSTANCE: instance}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels, **oars}
    metadata["name"], metadata["namespace"] = settings.name, settings.namespace
    return obj


def desired(settings: Settings, scheduler: Model | None, worker: Model, workers: int, ports: Sequence[Port]) -> Desired:
    """`scheduler`: None if it is not a pod."""
    head = Group("head", Role.HEAD, 1, Process(argv=(), ports=tuple(ports)), pod=scheduler or {})
    group = Group(
        "default", Role.WORKER, workers, Process(argv=(), ports=(Port("any", 0, on_service=False),)), pod=worker
    )
    shape = Shape(
        head=head,
        workers=(group,),
        endpoints={
            "client": f"{settings.protocol}://$(head.host):$(head.client)",
            "dashboard": "http://$(head.host):$(head.dashboard)/status",
        },
        log_patterns=(NO_DASK, *LOG_PATTERNS),
    )
    return build_from_shape(settings.name, "dask", "kubernetes", shape, namespace=settings.namespace)
