"""What stands for the `$(…)` of templates in a pod. Kubernetes itself fills in what differs from pod to pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from oars.model import HEAD, Group, Role, Shape
from oars.places.kube import names

FILES, SECRETS, SCRATCH = "/etc/oars/files", "/etc/oars/secrets", "/tmp"

# From the downward API; they stand first in every environment, so that later values and arguments may use them.
POD_FIELDS = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}


def pod_values(cluster: str, shape: Shape, group: Group) -> dict[str, str]:
    """For the argv, environment and files of a group's members."""
    process = group.process
    return {
        "host": "$(POD_IP)",
        "bind": "0.0.0.0",  # a pod's own network; port-forward comes in on its loopback
        "member": HEAD if group.role is Role.HEAD else "$(POD_NAME)",
        "incarnation": "$(POD_UID)",
        "dir": SCRATCH,
        **{f"port.{port.name}": str(port.default) for port in process.ports},
        **{f"file.{name}": f"{FILES}/{name}" for name in process.files},
        **{f"secret.{name}": f"{SECRETS}/{name}" for name in secret_files(shape)},
        **head_values(names.head(cluster), shape),
    }


def head_values(host: str, shape: Shape, ports: Mapping[str, int] | None = None) -> dict[str, str]:
    """Where the head is, seen from `host`'s side; `ports` are those of a forward."""
    given = ports or {}
    return {
        "head.host": host,
        **{f"head.{port.name}": str(given.get(port.name, port.default)) for port in shape.head.process.ports},
    }


def secret_files(shape: Shape) -> list[str]:
    """The files of the cluster's Secret, by what the engine asks for."""
    files = ["ca.pem", "cert.pem", "key.pem"] if "tls" in shape.secrets else []
    return [*files, "token"] if "token" in shape.secrets else files
