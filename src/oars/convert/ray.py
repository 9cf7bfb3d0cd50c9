"""KubeRay's RayCluster, RayJob, RayCronJob and RayService."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from typing import Any

from oars.convert import commands, pods
from oars.convert.clusters import cluster, filled
from oars.convert.fields import Fields
from oars.convert.tables import (
    RAY_HEAD_CPUS,
    RAY_HEAD_OPTION,
    RAY_INSTALLERS,
    RAY_PACKAGES,
    RAY_SUBMITTER_IMAGE,
    RAY_WORKER_OPTIONS,
)
from oars.spec import resources, text
from oars.spec.cluster import MAX_WORKERS
from oars.spec.cron import find_zone, parse_cron
from oars.spec.problems import in_plain, raise_for
from oars.spec.text import Loc

_VARIABLES = re.compile("RAY_(ADDRESS|AUTH_MODE|AUTH_TOKEN|AUTH_TOKEN_PATH)")
HEAD = pods.Engine((6379, 8265, 10001, 8080, 52365), _VARIABLES, on_service=(6379, 8265, 10001))
WORKER = pods.Engine((8080, 52365), _VARIABLES)
RESERVED = ("CPU", "GPU", "memory", "object_store_memory")
# What the driver's pod shares with the head's.
OF_CONTAINER = ("env", "envFrom", "imagePullPolicy", "volumeMounts")
OF_POD = ("imagePullSecrets", "serviceAccount", "serviceAccountName", "volumes")
_ZONE = re.compile(r"(?:CRON_)?TZ=(\S*)\s+")  # before a cron expression
_BOTH = ("SUCCEEDED", "FAILED")


def ray_cluster(spec: Fields, metadata: Fields) -> dict[str, Any]:
    found, _ = cluster_spec(spec)
    ingress_class = metadata.block("annotations").text("kubernetes.io/ingress.class")
    if ingress_class:
        found["expose"] = {**found.get("expose", {}), "ingressClass": ingress_class}
    return found


def ray_service(spec: Fields, metadata: Fields) -> dict[str, Any]:
    return ray_cluster(spec.block("rayClusterConfig"), metadata)


def cluster_spec(spec: Fields) -> tuple[dict[str, Any], pods.Pod]:
    """The ClusterSpec of a RayCluster's spec, and the pod of its head."""
    scales = spec.flag("enableInTreeAutoscaling")
    head_group = spec.block("headGroupSpec")
    pod = pods.read_pod(head_group.block("template"), "head", HEAD)
    groups = [worker_group(each, pod.image, scales=scales) for each in spec.blocks("workerGroupSpecs")]
    options = head_options(head_group.block("rayStartParams"), has_workers=bool(groups))
    if mode := spec.block("authOptions").text("mode"):
        options["auth"] = "token" if mode == "token" else "none"
    head = {**pods.read_sizes(pod), "env": pod.env, "pod": pod.overlay(pod.image)}
    delay = spec.block("autoscalerOptions").whole("idleTimeoutSeconds")
    blocks = {
        "autoscale": filled({"scaleDownDelay": delay}),
        "expose": _expose(spec, head_group),
        "ray": options,
    }
    return cluster("ray", pod.image, head, groups, **blocks), pod


def _expose(spec: Fields, head_group: Fields) -> dict[str, Any]:
    service = head_group.block("headService")
    service_type = service.block("spec").text("type")
    annotations = {**spec.pairs("headServiceAnnotations"), **service.block("metadata").pairs("annotations")}
    ingress = head_group.block("ingressOptions")
    host = ingress.text("host")
    secrets = [name for each in ingress.blocks("tls") if (name := each.take_all().get("secretName"))]
    if head_group.flag("enableIngress") and not host:
        head_group.unmet("enableIngress", "an Ingress of Oars needs a host name; set expose.host")
    return filled(
        {
            "type": head_group.text("serviceType") or service_type,
            "host": host,
            "tlsSecret": secrets[0] if secrets else None,
            "annotations": annotations,
        }
    )


def worker_group(group: Fields, cluster_image: str | None, *, scales: bool) -> dict[str, Any]:
    if (group.whole("numOfHosts") or 1) > 1:
        sentence = "is more than 1, but a worker of Oars is one pod"
        group.fail("numOfHosts", sentence, "Use a group with more replicas if its workers need no common start.")
    least, most = group.whole("minReplicas") or 0, group.whole("maxReplicas")
    most = MAX_WORKERS if most is None else min(most, MAX_WORKERS)
    replicas = max(least, min(group.whole("replicas") or 0, most))
    pod = pods.read_pod(group.block("template"), "worker", WORKER)
    found = {
        "name": group.text("groupName") or "default",
        "replicas": replicas,
        **({"min": least, "max": most} if scales and most else {}),
        "priority": group.whole("priority"),
        **pods.read_sizes(pod),
        "env": pod.env,
    }
    read_worker_options(group.block("rayStartParams"), found)
    _add_resources(group, "resources", group.take("resources"), found)
    _add_labels(group, "labels", group.pairs("labels"), found)
    return {**filled({**found, "pod": pod.overlay(cluster_image)}), "replicas": replicas}


# ray start


def head_options(params: Fields, *, has_workers: bool) -> dict[str, Any]:
    """The block `ray` of a cluster, from the options of the head's `ray start`."""
    if "num-cpus" in params and str(params.take("num-cpus")) != "0" and has_workers:
        params.unmet("num-cpus", RAY_HEAD_CPUS)
    for name in RAY_WORKER_OPTIONS:
        if name in params:
            params.unmet(name, RAY_HEAD_OPTION)
    return {"dashboard": False} if str(params.take("include-dashboard")).lower() == "false" else {}


def read_worker_options(params: Fields, group: dict[str, Any]) -> None:
    """Complete a worker group from the options of its `ray start`. The container's own resources come first."""
    _add_count(params, "num-cpus", group, "cpu")
    _add_count(params, "num-gpus", group, "gpu")
    if "memory" in params and "memory" in group:
        params.unmet("memory", "Ray gets what the container's memory leaves beside the object store")
    elif memory := params.parsed("memory", resources.memory):
        group["memory"] = resources.exact_memory(memory)
    if store := params.parsed("object-store-memory", resources.memory):
        group["cache"] = resources.exact_memory(store)
    _add_resources(params, "resources", _json(params, "resources"), group)
    listed = [each.partition("=") for each in (params.text("labels") or "").split(",") if each]
    _add_labels(params, "labels", {name: value for name, _, value in listed}, group)


def _add_count(params: Fields, option: str, group: dict[str, Any], field: str) -> None:
    value = params.take(option)
    if value is None or str(value).startswith("$"):  # a variable with the container's own amount
        return
    try:
        count = float(value)
    except (TypeError, ValueError):
        params.fail(option, "must be a number")
    own = group.get(field)
    if own is None and 0 < count < math.inf:
        group[field] = int(count) if count == int(count) else count
    elif own is not None and math.ceil(resources.cpu(own)) != count:
        params.unmet(option, f"Ray gets what the container has: {field}")


def _json(params: Fields, name: str) -> Any:
    """A mapping as JSON, which may be quoted once more."""
    value: Any = params.text(name)
    try:
        for _ in range(2):
            value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        params.fail(name, 'is not JSON, such as {"accelerator": 1}')
    return value


def _add_resources(block: Fields, name: str, amounts: Any, group: dict[str, Any]) -> None:
    if amounts is None:
        return
    if not isinstance(amounts, dict):
        block.fail(name, "must be a map of names to amounts")
    for key, amount in amounts.items():
        if key in RESERVED:
            block.source.report((*block.loc, name, key), "Ray gets what the container has: cpu, gpu and memory")
            continue
        try:
            group.setdefault("resources", {})[key] = float(amount)
        except (TypeError, ValueError):
            block.source.fail((*block.loc, name, key), "must be a number")


def _add_labels(block: Fields, name: str, labels: dict[str, str], group: dict[str, Any]) -> None:
    for key, value in labels.items():
        if key.startswith("ray.io/"):
            block.source.report((*block.loc, name, key), "Ray reserves the prefix ray.io/")
        else:
            group.setdefault("labels", {})[key] = value


# jobs


def ray_cron_job(spec: Fields, metadata: Fields) -> dict[str, Any]:
    """Each run is a job. KubeRay starts a run whether or not earlier ones have ended."""
    written, zone = spec.text("schedule") or "", spec.text("timeZone")
    given = _ZONE.match(written)
    cron = written[given.end() :] if given else written
    zone = zone or (given[1] if given else None)
    try:
        parse_cron(cron)
        find_zone(zone or "UTC")
    except ValueError as error:
        spec.fail("schedule", str(error))
    schedule = {"cron": cron, "timeZone": zone, "concurrency": "Allow", "suspend": spec.flag("suspend") or None}
    template = spec.block("jobTemplate")
    if template.flag("suspend"):
        template.unmet("suspend", "a run is not created suspended; suspend the schedule")
    return {**ray_job(template, metadata), "schedule": filled(schedule)}


def ray_job(spec: Fields, metadata: Fields) -> dict[str, Any]:
    if spec.text("submissionMode") == "InteractiveMode":
        hint = "Convert its rayClusterSpec as a RayCluster, and run `oars submit --cluster` with the command."
        spec.fail("submissionMode", "is InteractiveMode: such a job has no command", hint)
    submitter: pods.Pod | None = None
    if "submitterPodTemplate" in spec:
        submitter = pods.read_pod(spec.block("submitterPodTemplate"), "driver", WORKER)
    variables = _runtime_env(spec, "runtimeEnvYAML")
    entrypoint: str | list[str] | None = spec.text("entrypoint")
    if not entrypoint and submitter:
        entrypoint, more = _submitted(submitter.container)
        variables = {**variables, **more}
    if not entrypoint:
        spec.fail("entrypoint", "is missing", "Add the command that the job runs.")
    made, driver, env = _job_cluster(spec, submitter, variables)
    cpus = spec.take("entrypointNumCpus")
    return filled(
        {
            "cluster": made,
            "entrypoint": entrypoint,
            "env": {**env, **variables},
            "driver": filled({"cpu": cpus, **driver}),
            "retries": spec.whole("backoffLimit"),
            "attemptDeadline": spec.whole("activeDeadlineSeconds"),
            "startDeadline": spec.whole("preRunningDeadlineSeconds"),
            "suspend": spec.flag("suspend") or None,
            **_cleanup(spec),
        }
    )


def _submitted(container: Fields) -> tuple[list[str], dict[str, str]]:
    """The command that a submitter with a command of its own passes to Ray, after `--`, and its variables."""
    before, found, _ = commands.find(commands.words(container), ("--",)) or ([], [], [])
    options = container.child(commands.options(before, ("no-wait", "verbose")), "args")
    for name in ("address", "submission-id", "no-wait", "verbose"):  # of a command that Oars does not run
        options.take(name)
    return found, _runtime_env(options, "runtime-env-json")


def _job_cluster(
    spec: Fields, submitter: pods.Pod | None, variables: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The cluster, the driver, and the driver's variables. KubeRay starts the entrypoint in the head's pod: the driver
    sees the same files and variables, and has as much memory."""
    name = spec.block("clusterSelector").text("ray.io/cluster")
    if name:
        overlay = submitter.overlay(None) if submitter else {}
        return {"name": name}, {"pod": overlay}, submitter.env if submitter else {}
    made, head = cluster_spec(spec.block("rayClusterSpec"))
    if variables:
        made["env"] = variables
    driver = pods.Pod("driver", head.container, head.image)
    driver.own = {key: value for key, value in head.own.items() if key in OF_CONTAINER}
    driver.spec = {key: value for key, value in head.spec.items() if key in OF_POD}
    env = dict(head.env)
    if submitter is not None:
        driver.metadata, driver.others = submitter.metadata, submitter.others
        if submitter.image not in (None, head.image):
            submitter.container.unmet("image", RAY_SUBMITTER_IMAGE)
        driver.spec = _joined(driver.spec, submitter.spec)
        driver.own = _joined(driver.own, submitter.own)
        env |= submitter.env
    memory = made.get("head", {}).get("memory")
    return made, {"memory": memory, "pod": driver.overlay(head.image)}, env


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both, lists one after the other."""
    return {
        **first,
        **{
            key: [*first[key], *value] if isinstance(value, list) and isinstance(first.get(key), list) else value
            for key, value in second.items()
        },
    }


def _runtime_env(block: Fields, name: str) -> dict[str, str]:
    """The variables of a runtime environment, which is written as YAML or JSON."""
    content = block.text(name)
    if not content:
        return {}
    document = text.read(content, name)
    raise_for(in_plain(document.data, (name,)), document.places)
    if not isinstance(document.data, dict):
        block.fail(name, "must be a mapping of fields")
    environment = block.child(document.data, name)
    for installer in RAY_INSTALLERS:
        if packages := _packages(environment.take(installer)):
            environment.unmet(installer, f"{RAY_PACKAGES}. It needs {packages}")
    return environment.pairs("env_vars")


def _packages(given: Any) -> str:
    """The packages of `pip`, `uv` or `conda`: a list, a mapping with a list, or the name of a file."""
    found = given.get("packages", given.get("dependencies")) if isinstance(given, dict) else given
    return ", ".join(map(str, found)) if isinstance(found, list) else str(found or given or "")


def _cleanup(spec: Fields) -> dict[str, Any]:
    """KubeRay keeps the cluster of a job unless the job says otherwise."""
    removes = spec.flag("shutdownAfterJobFinishes")
    seconds = spec.whole("ttlSecondsAfterFinished") or 0
    delays: dict[str, dict[str, int]] = {
        "DeleteCluster": dict.fromkeys(_BOTH, seconds) if removes else {},
        "DeleteSelf": {},
    }
    strategy = spec.block("deletionStrategy")
    for at, policy, states, delay in _deletions(strategy):
        if policy in delays:
            delays[policy] |= dict.fromkeys(states, delay)
        elif policy != "DeleteNone":
            strategy.source.report((*strategy.loc, *at), "Oars keeps or removes a whole cluster, or deletes the job")
    for policy, given in delays.items():
        if given and given.keys() != set(_BOTH):
            strategy.unmet("deletionRules", f"Oars has no {policy} for one of success and failure only")
            given.clear()
    after = {state.lower(): seconds for state, seconds in delays["DeleteCluster"].items() if seconds}
    cleanup = filled({"policy": "running", "after": after}) if delays["DeleteCluster"] else {"policy": "none"}
    return {"cleanup": cleanup, "ttlAfterFinished": max(delays["DeleteSelf"].values(), default=None)}


def _deletions(strategy: Fields) -> Iterator[tuple[Loc, str | None, Collection[str], int]]:
    """The place, the policy, the ends of a job and the delay of each rule, old and new."""
    for field, state in (("onSuccess", "SUCCEEDED"), ("onFailure", "FAILED")):
        if field in strategy:
            yield (field,), strategy.block(field).text("policy"), (state,), 0
    for index, rule in enumerate(strategy.blocks("deletionRules")):
        condition = rule.block("condition")
        states = [condition.text(key) for key in ("jobStatus", "jobDeploymentStatus")]
        ends = {each for each in _BOTH if each in (str(state).upper() for state in states)}
        yield ("deletionRules", index), rule.text("policy"), ends, condition.whole("ttlSeconds") or 0
