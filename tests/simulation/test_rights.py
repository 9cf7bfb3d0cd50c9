"""Each right of the operator is used: the requests of simulated histories, compared with its rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from oars.kube.kinds import Kind, Object, kind_of
from oars.operator import rbac
from tests.simulation.api_server import Connection
from tests.simulation.history import History
from tests.simulation.jobs import JobHistory

Right = tuple[str, str]  # verb, resource
CLUSTERS, JOBS = (1, 2, 3, 6, 7, 9, 10, 11), range(1, 31)  # seeds
NAME_TAKEN = "read if an object of this name belongs to somebody else"
ADMISSION = "no request: the plug-in OwnerReferencesPermissionEnforcement asks for it"
HOST = "expose.host, which no history has"
# Rights that these histories do not need, with the reason why the operator does.
EXPLAINED: dict[Right, str] = {
    ("update", "computeclusters/finalizers"): ADMISSION,
    ("update", "computejobs/finalizers"): ADMISSION,
    ("get", "deployments"): NAME_TAKEN,
    ("get", "poddisruptionbudgets"): NAME_TAKEN,
    ("get", "ingresses"): NAME_TAKEN,
    **{(verb, "ingresses"): HOST for verb in ("create", "patch", "delete")},
    ("delete", "poddisruptionbudgets"): "head.eviction is set to allow",
    ("patch", "secrets"): "certificates are renewed, or a lost key is restored",
}


def requests(method: str, kind: Kind, subresource: str) -> set[Right]:
    """The rights that a call of a client's method needs."""
    resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
    verbs = {"apply": ("create", "patch"), "replace": ("update",)}.get(method, (method,))
    return {(verb, resource) for verb in verbs}


def record(monkeypatch: pytest.MonkeyPatch) -> set[Right]:
    """The rights that all simulated clients use from now on."""
    used: set[Right] = set()

    def wrap(method: str) -> None:
        original: Callable[..., Any] = getattr(Connection, method)

        def call(self: Connection, target: Kind | Object, *rest: Any, subresource: str = "", **more: Any) -> Any:
            chosen = next((each for each in (target, *rest) if isinstance(each, Kind)), None)
            kind = chosen or kind_of(target)  # type: ignore[arg-type]
            used.update(requests(method, kind, subresource))
            given = {"subresource": subresource} if subresource else {}
            return original(self, target, *rest, **given, **more)

        monkeypatch.setattr(Connection, method, call)

    for method in ("get", "list", "watch", "create", "apply", "patch", "replace", "delete"):
        wrap(method)
    logs = Connection.logs

    def read_logs(self: Connection, *arguments: Any, **options: Any) -> Any:
        used.add(("get", "pods/log"))
        return logs(self, *arguments, **options)

    monkeypatch.setattr(Connection, "logs", read_logs)
    return used


def granted(rules: Iterable[rbac.Rule]) -> set[Right]:
    return {(verb, resource) for rule in rules for resource in rule.resources for verb in rule.verbs}


def test_every_right_of_the_operator_is_used_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    used = record(monkeypatch)
    for seed in CLUSTERS:
        History(seed).run()
    for seed in JOBS:
        JobHistory(seed).run()
    rights = granted((*rbac.OPERATOR, *rbac.LEASES, rbac.NODES))
    assert rights - used <= EXPLAINED.keys()
    assert EXPLAINED.keys() <= rights
    assert used <= rights | granted(rbac.QUEUES)
