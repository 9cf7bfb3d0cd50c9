"""How members are reached from outside of their cluster: frozen data, a part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Exposure:
    """How the head is reached from outside."""

    type: str = "ClusterIP"
    host: str = ""
    ingress_class: str = ""
    tls_secret: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    clients: Mapping[str, str] = field(default_factory=dict)  # labels that pods of the namespace need to reach it
    metrics: Mapping[str, str] = field(default_factory=dict)  # labels of namespaces whose pods read the metrics
    metrics_ports: tuple[int, ...] = ()  # of all members, for them
    path: str = ""  # below which the dashboard is at the host; what forwards to it removes the path


@dataclass(frozen=True)
class Alias:
    """A further name of members, where names can be given. `ports`: name → port of the alias, port of the member.
    `is_direct`: the name stands for the members' own addresses, so its ports are theirs. `is_numbered`: each member has
    its own name, such as NAME-0 (Group.number_label, Group.first_number)."""

    name: str
    group: str
    ports: Mapping[str, tuple[int, int]]
    is_direct: bool = False
    is_numbered: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
