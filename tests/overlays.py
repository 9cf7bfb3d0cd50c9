"""Pod overlays for the tests of the authors' check: what must need more rights, what must not, and random ones."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from oars.operator.safe_fields import ANY, POSITIVE, Each, Node

Overlay = dict[str, Any]


def of_pod(**spec: Any) -> Overlay:
    return {"spec": spec}


def of_container(name: str, **fields: Any) -> Overlay:
    return of_pod(containers=[{"name": name, **fields}])


def harmful(name: str) -> dict[str, Overlay]:
    """Path → an overlay of the container's pod that would give its author more than an unprivileged pod has."""
    of_engine: dict[str, dict[str, Any]] = {
        "env[].valueFrom.secretKeyRef": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db"}}}]},
        "env[].valueFrom.configMapKeyRef": {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "db"}}}]},
        "envFrom": {"envFrom": [{"secretRef": {"name": "db"}}]},
        "ports[].hostPort": {"ports": [{"containerPort": 1, "hostPort": 1}]},
        "ports[].hostIP": {"ports": [{"containerPort": 1, "hostIP": "0.0.0.0"}]},
        "securityContext.privileged": {"securityContext": {"privileged": True}},
        "securityContext.allowPrivilegeEscalation": {"securityContext": {"allowPrivilegeEscalation": True}},
        "securityContext.capabilities.add": {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
        "securityContext.capabilities.drop": {"securityContext": {"capabilities": {"drop": []}}},
        "securityContext.runAsUser": {"securityContext": {"runAsUser": 0}},
        "securityContext.runAsNonRoot": {"securityContext": {"runAsNonRoot": False}},
        "securityContext.procMount": {"securityContext": {"procMount": "Unmasked"}},
        "securityContext.seccompProfile.type": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
        "securityContext.seLinuxOptions": {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}},
        "readinessProbe.httpGet.host": {"readinessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}}},
        "lifecycle.postStart.tcpSocket.host": {"lifecycle": {"postStart": {"tcpSocket": {"host": "x", "port": 1}}}},
        "volumeDevices": {"volumeDevices": [{"devicePath": "/dev/a", "name": "a"}]},
        "volumeMounts[].mountPropagation": {"volumeMounts": [{"mountPath": "/a", "mountPropagation": "Bidirectional"}]},
        "resources.claims": {"resources": {"claims": [{"name": "a"}]}},
        "resources.limits.devices.example.org/kvm": {"resources": {"limits": {"devices.example.org/kvm": "1"}}},
    }
    volumes = {
        "hostPath": {"path": "/"}, "secret": {"secretName": "db"}, "configMap": {"name": "db"},
        "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}, "nfs": {"server": "x", "path": "/"},
        "persistentVolumeClaim": {"claimName": "db"}, "csi": {"driver": "x"}, "ephemeral": {},
        "image": {"reference": "x"},
    }  # fmt: skip
    anti_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    far = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "namespaceSelector": {}}]}
    other = "worker" if name == "head" else "head"
    return {
        **{f"spec.containers[].{path}": of_container(name, **fields) for path, fields in of_engine.items()},
        **{f"spec.volumes[].{kind}": of_pod(volumes=[{"name": "a", kind: body}]) for kind, body in volumes.items()},
        "spec.containers[].name": of_container(other),
        "spec.initContainers": of_pod(initContainers=[{"name": "a"}]),
        "spec.ephemeralContainers": of_pod(ephemeralContainers=[{"name": "a"}]),
        "spec.hostNetwork": of_pod(hostNetwork=True),
        "spec.hostPID": of_pod(hostPID=True),
        "spec.hostIPC": of_pod(hostIPC=True),
        "spec.hostUsers": of_pod(hostUsers=True),
        "spec.nodeName": of_pod(nodeName="control-plane"),
        "spec.serviceAccountName": of_pod(serviceAccountName="admin"),
        "spec.serviceAccount": of_pod(serviceAccount="admin"),
        "spec.automountServiceAccountToken": of_pod(automountServiceAccountToken=True),
        "spec.imagePullSecrets": of_pod(imagePullSecrets=[{"name": "db"}]),
        "spec.priorityClassName": of_pod(priorityClassName="system-node-critical"),
        "spec.runtimeClassName": of_pod(runtimeClassName="weak"),
        "spec.schedulerName": of_pod(schedulerName="mine"),
        "spec.shareProcessNamespace": of_pod(shareProcessNamespace=True),
        "spec.resourceClaims": of_pod(resourceClaims=[{"name": "a"}]),
        "spec.securityContext.runAsUser": of_pod(securityContext={"runAsUser": 0}),
        "spec.securityContext.fsGroup": of_pod(securityContext={"fsGroup": 0}),
        "spec.securityContext.sysctls": of_pod(securityContext={"sysctls": [{"name": "kernel.msgmax"}]}),
        "spec.securityContext.supplementalGroups": of_pod(securityContext={"supplementalGroups": [0]}),
        "spec.tolerations[].key": of_pod(tolerations=[{"operator": "Exists"}]),
        "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution": of_pod(
            affinity={"podAntiAffinity": anti_affinity}
        ),
        "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector": of_pod(
            affinity={"podAffinity": far}
        ),
        "metadata.labels.app": {"metadata": {"labels": {"app": "database"}}},
        "metadata.annotations.iam.amazonaws.com/role": {"metadata": {"annotations": {"iam.amazonaws.com/role": "x"}}},
        "metadata.namespace": {"metadata": {"namespace": "kube-system"}},
        "spec": {"spec": ["hostNetwork"]},
        "kind": {"kind": "Pod"},
    }


def harmless(name: str) -> list[Overlay]:
    """Overlays that every author may set."""
    security = {"runAsUser": 2000, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return [
        {},
        {"metadata": {"labels": {}, "annotations": {"prometheus.io/scrape": "true"}}},
        of_pod(nodeSelector={"pool": "a"}, terminationGracePeriodSeconds=60, hostNetwork=False, hostUsers=None),
        of_pod(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        of_pod(securityContext={**security, "fsGroup": 2000}, serviceAccountName=None),
        of_pod(volumes=[{"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]),
        of_container(
            name,
            image="example.org/team/dask:1",
            env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
            volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}],
            resources={"limits": {"ephemeral-storage": "1Gi"}},
            securityContext={"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}, "privileged": False},
            readinessProbe={"exec": {"command": ["true"]}, "periodSeconds": 2},
        ),
    ]


_SCALARS = [None, True, False, 0, 1, -1, 7, "", "x", "ALL", "RuntimeDefault", [], {}, ["ALL"], {"name": "x"}]
_UNKNOWN = ["hostNetwork", "hostPath", "name", "key", "privileged", "secretName", "drop", "x", "type"]


def random_overlay(rng: random.Random, safe: Node) -> Any:
    """An overlay along the list of safe fields, with other fields and values of wrong types here and there."""
    if rng.random() < 0.08 or safe is ANY:
        return rng.choice(_SCALARS)
    if safe is POSITIVE:
        return rng.choice([0, 1, -1, 1000, "1", True, 1.5])
    if isinstance(safe, tuple):
        return rng.choice([*safe, *safe, *_SCALARS])
    if isinstance(safe, Each):
        return [random_overlay(rng, safe.entry) for _ in range(rng.choice((0, 1, 1, 2)))]
    assert isinstance(safe, Mapping)
    names = rng.sample(sorted(safe), min(len(safe), rng.choice((1, 2, 3))))
    found = {name: random_overlay(rng, safe[name]) for name in names}
    return found | ({rng.choice(_UNKNOWN): rng.choice(_SCALARS)} if rng.random() < 0.1 else {})
