"""Renders the driver of a job: a batch/v1 Job per attempt, whose pod runs the user's command. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oars.model import Desired, Process, Resources, Restart, Role, Stop
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import overlay
from oars.places.kube.render.pod import template
from oars.places.kube.render.values import SECRETS, head_values, secret_files
from oars.plan.fill import fill_mapping

if TYPE_CHECKING:
    from oars.spec.job import JobSpec

CODE = "/etc/oars/code"
WORK = "/work"
CONTAINER = Role.DRIVER.value
PART_BYTES = 900 * 1024  # of an archive, in one ConfigMap
GRACE = 30.0  # seconds for the driver to end after SIGTERM
LATE_SECONDS = 60  # after a deadline Kubernetes stops a driver that the operator has not stopped
WRONG_FILES = 65  # exit code

# Unpacks the working directory and becomes the user's command: exit code, signals and output are its own.
START = f"""
import glob, hashlib, io, os, sys, tarfile
os.chdir({WORK!r})
digest = sys.argv.pop(1)
if digest:
    data = b"".join(open(part, "rb").read() for part in sorted(glob.glob({CODE!r} + "/part-*")))
    if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
        print("The ConfigMaps with the job's files have other content than", digest, file=sys.stderr)
        sys.exit({WRONG_FILES})
    checked = {{"filter": "tar"}} if hasattr(tarfile, "tar_filter") else {{}}
    tarfile.open(fileobj=io.BytesIO(data), mode="r:gz").extractall(".", **checked)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    print("The command", repr(sys.argv[1]), "could not be started:", error.strerror, file=sys.stderr)
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


# The fields of a Job whose driver must not run. The second one counts if somebody else resumes the Job, such as Kueue.
STOPPED: dict[str, object] = {"suspend": True, "parallelism": 0}


@dataclass(frozen=True)
class Attempted:
    """The attempt that a driver is for: job, owner reference, number and cluster. seconds: until Kubernetes stops it;
    None: no limit."""

    job: str
    owner: Object
    n: int
    cluster: Desired
    seconds: float | None = None


def driver_env(cluster: Desired) -> dict[str, str]:
    """The environment with which a program in a pod finds the cluster. Secrets are named by their files."""
    shape = cluster.shape
    values = head_values(names.head(cluster.name), shape)
    values |= {f"secret.{name}": f"{SECRETS}/{name}" for name in secret_files(shape)}
    endpoints = fill_mapping(shape.endpoints, values)
    return {
        **fill_mapping(shape.driver_env, values),
        "OARS_ENGINE": cluster.engine,
        "OARS_ADDRESS": endpoints["client"],
        "OARS_NAME": cluster.name,
        "OARS_NAMESPACE": cluster.namespace,
        "OARS_DASHBOARD": endpoints.get("dashboard", ""),
    }


def driver_job(attempt: Attempted, spec: JobSpec) -> Object:
    """The Job of an attempt. Its name is the lock: there is one per attempt, with one pod that is not replaced."""
    labels = job_labels(attempt.job, attempt.n)
    limit = {} if attempt.seconds is None else {"activeDeadlineSeconds": math.ceil(attempt.seconds) + LATE_SECONDS}
    job = _job(attempt.job, attempt.owner, attempt.n, attempt.cluster.namespace, _pod(attempt, spec, labels))
    job["spec"] |= limit
    return job


def closed_job(job: str, owner: Object, n: int, namespace: str) -> Object:
    """A Job that takes the name of an attempt and starts no pod: no driver can start under that name any more."""
    container = {"name": CONTAINER, "image": "closed", "command": ["true"]}
    pod = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    closed = _job(job, owner, n, namespace, pod)
    closed["spec"] |= STOPPED
    return closed


def _job(job: str, owner: Object, n: int, namespace: str, pod: Object) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": driver_name(job, n),
            "namespace": namespace,
            "labels": job_labels(job, n),
            "ownerReferences": [owner],
        },
        "spec": {
            "backoffLimit": 0,
            "parallelism": 1,
            "completions": 1,
            "podReplacementPolicy": "Failed",
            "template": pod,
        },
    }


def driver_name(job: str, n: int) -> str:
    return f"{job}-{n}"


def job_labels(job: str, n: int | None = None) -> dict[str, str]:
    number = {names.ATTEMPT: str(n)} if n is not None else {}
    return {"app.kubernetes.io/managed-by": "oars", names.JOB: job, **number}


def _pod(attempt: Attempted, spec: JobSpec, labels: Mapping[str, str]) -> Object:
    cluster = attempt.cluster
    env = {**outside_driver_env(cluster), "PYTHONUNBUFFERED": "1", **spec.env}
    env |= {"OARS_JOB": attempt.job, "OARS_ATTEMPT": str(attempt.n)}
    command = ("python", "-c", START, spec.working_dir.archive, *spec.entrypoint)
    # As the head's group: its files are in the cluster's ConfigMap under that name.
    group = replace(
        cluster.shape.head,
        role=Role.DRIVER,
        process=Process(argv=(), stop=Stop(grace=GRACE)),
        resources=Resources(spec.driver.cpu, spec.driver.memory),
        restart=Restart.NEVER,
        pod={},
    )
    rendered = template(cluster, group)
    annotations = {names.JOB_UID: attempt.owner["uid"]}
    rendered["metadata"] = {"labels": {**labels, names.DRIVER_OF: cluster.name}, "annotations": annotations}
    pod, container = rendered["spec"], rendered["spec"]["containers"][0]
    container["command"] = [_literal(word) for word in command]
    container["env"] += [{"name": name, "value": _literal(text)} for name, text in env.items()]
    container["workingDir"] = WORK
    container["env"] += [
        {"name": each.variable, "valueFrom": {"secretKeyRef": {"name": each.name, "key": each.key}}}
        for each in spec.secrets
    ]
    pod["volumes"] = [*pod["volumes"], {"name": "work", "emptyDir": {}}]
    container["volumeMounts"] = [*container["volumeMounts"], {"name": "work", "mountPath": WORK}]
    if spec.working_dir.archive:
        count = -(-spec.working_dir.size // PART_BYTES)
        sources = [{"configMap": {"name": names.job_files(spec.working_dir.archive, part)}} for part in range(count)]
        pod["volumes"].append({"name": "oars-code", "projected": {"sources": sources}})
        container["volumeMounts"].append({"name": "oars-code", "mountPath": CODE, "readOnly": True})
    pod["restartPolicy"] = "Never"
    pod["shareProcessNamespace"] = True  # a program that is process 1 would ignore SIGTERM
    if spec.priority_class:
        pod["priorityClassName"] = spec.priority_class
    return overlay.merged(rendered, spec.driver.pod, "driver.pod")


def _literal(text: str) -> str:
    """The text without Kubernetes' expansion of `$(NAME)`."""
    return text.replace("$(", "$$(")


def outside_driver_env(cluster: Desired) -> dict[str, str]:
    """As driver_env, for a pod that is not a member: an engine whose members must be dialled by address may need
    another one."""
    shape = cluster.shape
    env = driver_env(cluster)
    if "outside" in shape.endpoints:
        values = head_values(names.head(cluster.name), shape)
        env |= fill_mapping(shape.outside_env, values)
        env["OARS_ADDRESS"] = fill_mapping(shape.endpoints, values)["outside"]
    return env


def archive_parts(digest: str, data: bytes) -> list[tuple[str, str, bytes]]:
    """Name of the ConfigMap, key and content of each part of an archive."""
    offsets = range(0, len(data), PART_BYTES)
    return [
        (names.job_files(digest, part), f"part-{part:03}", data[start : start + PART_BYTES])
        for part, start in enumerate(offsets)
    ]
