"""Pod templates: make_pod_spec, make_pod_from_dict, clean_pod_template."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from oars.base.errors import SpecError
from oars.base.text import suggest
from oars.compat.dask_kubernetes import checks
from oars.compat.dask_kubernetes.common.model import Model, model, plain

CONTAINER = "dask-container"
DEDICATED = ("k8s.dask.org/dedicated", "k8s.dask.org_dedicated")  # some clouds allow no slash in a taint
NODE_PURPOSE = "k8s.dask.org/node-purpose"
AFFINITIES = ("none", "preferred", "required")
_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")


def make_pod_spec(  # noqa: PLR0913 (the signature of dask-kubernetes)
    image: str,
    labels: Mapping[str, str] = {},
    threads_per_worker: int = 1,
    env: Mapping[str, Any] = {},
    extra_container_config: Mapping[str, Any] = {},
    extra_pod_config: Mapping[str, Any] = {},
    resources: str | None = None,
    memory_limit: Any = None,
    memory_request: Any = None,
    cpu_limit: Any = None,
    cpu_request: Any = None,
    gpu_limit: Any = None,
    annotations: Mapping[str, str] = {},
) -> Model:
    """Return the template of a worker's pod.

    memory_limit is passed to `dask-worker --memory-limit` and to Kubernetes; with 'auto' Kubernetes has no limit.
    resources are those of Dask, such as "GPU=2 MEM=10e9". extra_container_config and extra_pod_config have the names of
    the Kubernetes API; they are merged into the container and into the pod's spec."""
    for name, value in (("labels", labels), ("env", env), ("annotations", annotations)):
        checks.mapping(name, value)
    args = ["dask-worker", "$(DASK_SCHEDULER_ADDRESS)", "--nthreads", str(threads_per_worker), "--death-timeout", "60"]
    if memory_limit:
        args += ["--memory-limit", str(memory_limit)]
    if resources:
        args += ["--resources", str(resources)]
    limits = {"cpu": cpu_limit, "memory": None if memory_limit == "auto" else memory_limit, "nvidia.com/gpu": gpu_limit}
    requests = {"cpu": cpu_request, "memory": memory_request}
    container = {
        "name": CONTAINER,
        "image": image,
        "args": args,
        "env": [{"name": str(name), "value": str(value)} for name, value in env.items()],
        "resources": {"limits": _amounts(limits, "limit"), "requests": _amounts(requests, "request")},
    }
    more = {"extra_container_config": extra_container_config, "extra_pod_config": extra_pod_config}
    of_container, of_pod = (checks.mapping(name, plain(value, name)) for name, value in more.items())
    spec = _merged({"restartPolicy": "Never", "containers": [_merged(container, of_container)]}, of_pod)
    metadata = {"labels": dict(labels), "annotations": dict(annotations)}
    return make_pod_from_dict({"metadata": metadata, "spec": spec})


def _amounts(given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = {}
    for name, amount in given.items():
        if not amount:
            continue
        if not _QUANTITY.fullmatch(str(amount)):
            what = f"{name.replace('nvidia.com/', '')}_{kind}"
            raise SpecError(
                f"make_pod_spec: {what}={amount!r} is not an amount that Kubernetes knows.",
                "Write for example 4G, 4Gi, 500m or 4000000000; Kubernetes has no GB.",
            )
        found[name] = amount
    return found


def _merged(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts are merged, lists are appended, everything else is replaced."""
    merged = dict(base)
    for key, value in more.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, Mapping):
            merged[key] = _merged(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            merged[key] = before + value
        else:
            merged[key] = value
    return merged


def make_pod_from_dict(dict_: Mapping[str, Any]) -> Model:
    """Return a pod template, from data as in a YAML file. Containers without a name get one."""
    pod: Model = model(plain(dict_, "pod template"))
    containers = (pod.get("spec") or {}).get("containers") or []
    for number, container in enumerate(containers):
        if isinstance(container, Model):
            container.setdefault("name", f"dask-{number}")
    return pod


def clean_pod_template(pod_template: Any, apply_default_affinity: str = "preferred", pod_type: str = "worker") -> Model:
    """Return a copy with everything that is added to each pod: two tolerations, and an affinity for nodes that are
    labelled for this type of pod, unless apply_default_affinity is "none"."""
    if apply_default_affinity not in AFFINITIES:
        meant = suggest(str(apply_default_affinity), AFFINITIES)
        raise SpecError(f"There is no apply_default_affinity={apply_default_affinity!r}.{meant}",
                        f"Use one of {', '.join(AFFINITIES)}.")  # fmt: skip
    pod: Model = checked_template(copy.deepcopy(pod_template), f"{pod_type} pod template")
    pod.setdefault("metadata", Model()).setdefault("labels", Model())
    spec = pod.spec
    spec.containers[0].setdefault("env", [])
    taint = {"operator": "Equal", "value": pod_type, "effect": "NoSchedule"}
    spec.setdefault("tolerations", []).extend(Model({"key": key, **taint}) for key in DEDICATED)
    term = model({"matchExpressions": [{"key": NODE_PURPOSE, "operator": "In", "values": [pod_type]}]})
    if apply_default_affinity != "none":
        affinity = spec.setdefault("affinity", Model()).setdefault("nodeAffinity", Model())
        if apply_default_affinity == "required":
            required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", Model())
            required.setdefault("nodeSelectorTerms", []).append(term)
        else:
            preferred = affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
            preferred.append(Model({"preference": term, "weight": 100}))
    return pod


# What Oars extends must be of these types.
_TYPES = {
    "metadata": dict, "metadata.labels": dict, "metadata.annotations": dict, "spec.tolerations": list,
    "spec.affinity": dict, "spec.affinity.nodeAffinity": dict,
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution": dict,
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": list,
    "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution": list,
}  # fmt: skip
_CONTAINER_TYPES = {"command": list, "args": list, "env": list}
_TYPE_NAMES: dict[type, str] = {dict: "a dict", list: "a list"}


def checked_template(template: Any, where: str) -> Model:
    """The template as a Model. Raises SpecError if it is no pod with a container and an image."""
    data = plain(template, where)
    if not isinstance(data, dict) or not isinstance(data.get("spec"), dict):
        raise SpecError(f"{where}: it has no `spec`.", "Write a pod: `spec: {containers: [{image: …, args: […]}]}`.")
    containers = data["spec"].get("containers")
    if not isinstance(containers, list) or not containers or not isinstance(containers[0], dict):
        raise SpecError(f"{where}.spec: it has no containers.", "Add `containers: [{image: …, args: […]}]`.")
    if not containers[0].get("image"):
        raise SpecError(f"{where}.spec.containers[0]: it has no image.", "Add `image: REGISTRY/NAME:TAG`.")
    _check_types(data, _TYPES, where)
    _check_container(containers[0], f"{where}.spec.containers[0]")
    return make_pod_from_dict(data)


def _check_container(container: Mapping[str, Any], where: str) -> None:
    _check_types(container, _CONTAINER_TYPES, where)
    for key in ("command", "args"):
        for number, word in enumerate(container.get(key, ())):
            if not isinstance(word, str):
                raise SpecError(f"{where}.{key}[{number}]: {word!r} is not text.", "Put it in quotes.")
    for number, variable in enumerate(container.get("env", ())):
        if not isinstance(variable, dict) or not isinstance(variable.get("name"), str):
            message = f"{where}.env[{number}]: {variable!r} has no name."
            raise SpecError(message, "Write {name: NAME, value: 'TEXT'}.")


def _check_types(data: Mapping[str, Any], types: Mapping[str, type], where: str) -> None:
    """Types of the fields at these paths, if they are there. A path follows those that it begins with."""
    for path, kind in types.items():
        *parents, last = path.split(".")
        parent: Any = data
        for name in parents:
            parent = parent.get(name, {})
        value = parent.get(last, kind())
        if not isinstance(value, kind):
            raise SpecError(
                f"{where}.{path}: {value!r} is not {_TYPE_NAMES[kind]}.", "Write it as in a pod's manifest."
            )
