"""Pod templates of other projects: the main container's sizes and variables become fields, the rest an overlay."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from oars.convert.fields import Fields
from oars.convert.tables import KEPT_OF_CONTAINER, KEPT_OF_POD, NODE_PORT, PROBE, PROBES, SERVICE_PORT
from oars.spec import resources

GPU = "nvidia.com/gpu"
NAMES = ("head", "worker", "driver", "oars")  # of containers of Oars
_HEALTH = re.compile(r"gcs_healthz|raylet_healthz|ray health-check")  # in the commands of KubeRay's probes
_RESERVED_VOLUMES = ("tmp", "shm", "work")  # and those that begin with spill- and oars-


@dataclass
class Pod:
    """A pod template. container: what is left of its main one; own: fields for Oars' container of the overlay."""

    name: str
    container: Fields
    image: str | None
    env: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    others: list[dict[str, Any]] = field(default_factory=list)

    def overlay(self, cluster_image: str | None) -> dict[str, Any]:
        """The PodTemplateSpec that Oars merges over its own."""
        image = {"image": self.image} if self.image not in (None, cluster_image) else {}
        own = {**image, **self.own}
        containers = [*([{"name": self.name, **own}] if own else []), *self.others]
        spec = {**self.spec, **({"containers": containers} if containers else {})}
        parts = {"metadata": self.metadata, "spec": _without_reserved_volumes(spec)}
        return {name: part for name, part in parts.items() if part}


@dataclass(frozen=True)
class Engine:
    """What an engine has in every pod: ports, and variables that Oars sets. main: name of the container that runs it;
    default: the first one. on_service: the ports of the head's Service. without_effect: variables, and the reason."""

    ports: Collection[int]
    variables: re.Pattern[str]
    main: str = ""
    on_service: Collection[int] = ()
    without_effect: Mapping[str, str] = field(default_factory=dict)


def read_pod(template: Fields, name: str, engine: Engine) -> Pod:
    """Read a template {metadata, spec}. name: of Oars' container. Command, arguments and resources are left to the
    caller."""
    spec = template.block("spec")
    containers = spec.blocks("containers")
    if not containers:
        spec.fail("containers", "is missing", "A pod has at least one container.")
    names = [each.text("name") or "" for each in containers]
    index = names.index(engine.main) if engine.main and engine.main in names else 0
    container = containers[index]
    others = []
    for number, each in enumerate(containers):
        if number != index:
            if names[number] in NAMES:
                each.fail("name", f"is {names[number]!r}, which is the name of a container of Oars", "Rename it.")
            others.append({"name": names[number], **each.take_all()})
    pod = Pod(name, container, container.text("image"), others=others)
    metadata = template.block("metadata")
    pod.metadata = {key: value for key in ("labels", "annotations") if (value := metadata.pairs(key))}
    pod.spec = spec.take_all(KEPT_OF_POD)
    # A driver starts in the job's working directory.
    pod.own = container.take_all([each for each in KEPT_OF_CONTAINER if (name, each) != ("driver", "workingDir")])
    _read_variables(pod, engine)
    listed = [each.take_all() for each in container.blocks("ports")]
    if more := [each for each in listed if each.get("containerPort") not in engine.ports]:
        pod.own["ports"] = more
    named = {each["name"]: each.get("containerPort") for each in listed if isinstance(each.get("name"), str)}
    for kind in PROBES:
        if (probe := container.take(kind)) and not _is_of_engine(probe, named, engine):
            container.unmet(kind, PROBE)
    return pod


def _is_of_engine(probe: Any, named: Mapping[str, Any], engine: Engine) -> bool:
    """Whether a probe asks the engine, as Oars' own does."""
    if not isinstance(probe, dict):
        return False
    request, run = probe.get("httpGet") or probe.get("tcpSocket"), probe.get("exec")
    if isinstance(request, dict):
        port = request.get("port")
        return (named.get(port, port) if isinstance(port, str) else port) in engine.ports
    command = run.get("command") if isinstance(run, dict) else None
    return isinstance(command, list) and bool(_HEALTH.search(" ".join(map(str, command))))


def read_service_ports(service: Fields, engine: Engine) -> None:
    """Report the ports that Oars' Service of the head does not have, and numbers of node ports."""
    for port in service.blocks("ports"):
        number, target = port.take("port"), port.take("targetPort")
        if number not in engine.on_service or (isinstance(target, int) and target != number):
            port.source.report(port.loc, SERVICE_PORT)
        elif "nodePort" in port:
            port.unmet("nodePort", NODE_PORT)
        port.take_all()


def _read_variables(pod: Pod, engine: Engine) -> None:
    """Plain values become fields. References, and values that Kubernetes completes, stay in the pod."""
    kept = []
    for each in pod.container.blocks("env"):
        name = each.text("name")
        if name is None:
            each.fail("name", "is missing")
        reference, value = each.take("valueFrom"), each.text("value")
        if engine.variables.fullmatch(name):
            each.unmet("name", f"Oars sets {name} itself")
        elif name in engine.without_effect:
            each.unmet("name", engine.without_effect[name])
        elif reference is not None:
            kept.append({"name": name, "valueFrom": reference})
        elif "$(" in (value or ""):
            kept.append({"name": name, "value": value})
        else:
            pod.env[name] = value or ""
    if kept:
        pod.own["env"] = kept


def read_sizes(pod: Pod) -> dict[str, Any]:
    """cpu, memory, gpu and burst of the main container. Other amounts stay in the pod."""
    block = pod.container.block("resources")
    limits, requests = block.block("limits"), block.block("requests")
    found: dict[str, Any] = {"burst": True} if "cpu" not in limits else {}
    for name, parse in (("cpu", resources.cpu), ("memory", resources.memory)):
        limit, request = limits.take(name), requests.take(name)
        chosen = limits if limit is not None else requests
        value = limit if limit is not None else request
        if value in (None, 0, "0"):
            continue
        amount = _parse(chosen, name, value, parse)
        found[name] = value
        if limit is not None and request is not None and _parse(requests, name, request, parse) != amount:
            requests.unmet(name, f"Oars requests as much as the limit; {name} is the limit")
    if pod.name == "worker":
        gpus = [each for block in (limits, requests) if (each := block.parsed(GPU, _count)) is not None]
        if gpus and gpus[0]:
            found["gpu"] = gpus[0]
    rest = {"limits": limits.take_all(), "requests": requests.take_all(), **block.take_all()}
    if rest := {name: value for name, value in rest.items() if value}:
        pod.own["resources"] = rest
    return found


def _parse(block: Fields, name: str, value: Any, parse: Any) -> Any:
    try:
        return parse(value)
    except (ValueError, ArithmeticError) as error:
        block.fail(name, str(error))


def _count(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or len(text) > 6:
        raise ValueError(f"{value!r} is not a number of GPUs")
    return int(text)


def _without_reserved_volumes(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec with other names for volumes whose names Oars uses."""

    def renamed(entry: Any) -> Any:
        name = entry.get("name") if isinstance(entry, dict) else None
        is_reserved = isinstance(name, str) and (name in _RESERVED_VOLUMES or name.startswith(("spill-", "oars-")))
        return {**entry, "name": f"own-{name}"} if is_reserved else entry

    def below(container: Any) -> Any:
        if not isinstance(container, dict) or not isinstance(container.get("volumeMounts"), list):
            return container
        return {**container, "volumeMounts": [renamed(each) for each in container["volumeMounts"]]}

    result = dict(spec)
    if isinstance(spec.get("volumes"), list):
        result["volumes"] = [renamed(each) for each in spec["volumes"]]
    for key in ("containers", "initContainers"):
        if isinstance(spec.get(key), list):
            result[key] = [below(each) for each in spec[key]]
    return result
