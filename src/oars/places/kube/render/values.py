"""Values for the `$(…)` of templates in a pod. Kubernetes fills in those that differ from pod to pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from oars.model import HEAD, Group, Port, Role, Shape
from oars.places.kube import names

FILES, SECRETS, SCRATCH = "/etc/oars/files", "/etc/oars/secrets", "/tmp"
SPILL = "/var/oars/spill"  # how the names of mounts begin
CHOSEN_SPILL = f"{SCRATCH}/oars-spill"  # a link to one of several mounts
DRIVER = "driver"  # the folder of FILES that is on the PYTHONPATH of drivers, and of nothing else
CONTROL_TOKEN = "control"  # the key of the helper's token in the Secret

# From the downward API. They come first in every environment, so that later values and arguments can refer to them.
POD_FIELDS = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}


def pod_values(cluster: str, shape: Shape, group: Group) -> dict[str, str]:
    """Values for the argv, environment and files of a group's members."""
    process, spill = group.process, spill_mounts(group) or [SCRATCH]
    return {
        "host": "$(POD_IP)",
        "bind": "0.0.0.0",  # the pod has its own network; port-forward connects to its loopback
        "member": HEAD if group.role is Role.HEAD else "$(POD_NAME)",
        "incarnation": "$(POD_UID)",
        "dir": SCRATCH,
        "spill": spill[0] if len(spill) == 1 else CHOSEN_SPILL,
        "spill.all": ":".join(spill),
        **{f"port.{port.name}": str(port.default) for port in process.ports},
        **{f"file.{name}": f"{FILES}/{name}" for name in process.files},
        **{f"secret.{name}": f"{SECRETS}/{name}" for name in secret_files(shape)},
        **head_values(names.head(cluster), shape),
    }


def spill_mounts(group: Group) -> list[str]:
    """Where the volumes for spilled data are mounted; empty: the group has none."""
    count = 0 if group.spill is None else max(1, len(group.spill.paths))
    return [f"{SPILL}-{number}" for number in range(count)]


def head_values(host: str, shape: Shape, ports: Mapping[str, int] | None = None) -> dict[str, str]:
    """The address of the head. `ports`: local ports of a port-forward, if there is one."""
    given = ports or {}
    return {
        "head.host": host,
        **{f"head.{port.name}": str(given.get(port.name, port.default)) for port in shape.head.process.ports},
    }


def client_ports(shape: Shape) -> list[Port]:
    """The head's ports that clients may use."""
    return [port for port in shape.head.process.ports if port.on_service and not port.for_members]


def secret_files(shape: Shape) -> list[str]:
    """The keys of the cluster's Secret that the engine needs."""
    files = ["ca.pem", "cert.pem", "key.pem"] if "tls" in shape.secrets else []
    return [*files, "token"] if "token" in shape.secrets else files
