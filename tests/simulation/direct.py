"""Histories in direct mode: clients reconcile the clusters of ConfigMaps, and follow each other by Leases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from oars.base import codec
from oars.client.direct import Direct
from oars.kube.client import Client
from oars.kube.kinds import Object
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.state.root import STATE, dump_intent, read_intent, report_of
from oars.spec import load
from oars.spec.status import Phase
from tests.simulation.api_server import Process
from tests.simulation.history import NAMESPACE, History, Replica, live

NAME = "demo"
ROOT = ("configmaps", NAMESPACE, names.root(NAME))


def spec_of(workers: int, cpu: int = 1, **env: str) -> dict[str, Any]:
    given = {"engine": "simulated", "workers": [{"replicas": workers, "cpu": cpu}], "env": env}
    return load.build(given).spec.model_dump(mode="json", exclude_unset=True)


@dataclass
class DirectClient(Replica):
    """One client process, restarted when it was killed or when the cluster was replaced."""

    async def run(self) -> None:
        while True:
            self.process = process = Process(self.name, self.kills.pop(0) if self.kills else None)
            client = cast(Client, self.connect(process))
            await live(process, self._live(Direct(client, NAMESPACE, NAME, self.name)))
            await self.restart_later()

    @staticmethod
    async def _live(direct: Direct) -> None:
        """Until the cluster is deleted. A client that cannot start, for example because there is no cluster, ends."""
        try:
            await direct.start()
        except Exception:  # noqa: BLE001 (the program would show it to its user, who starts it again)
            return
        try:
            async for _ in direct.watch():
                pass
        finally:
            await direct.close()


class DirectHistory(History):
    """The same users and faults. There is one cluster."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lease = ("leases", NAMESPACE, names.root(NAME))
        self._read: tuple[Object, Object] = ({}, {})  # the root, and the cluster that it stores

    def make_replicas(self) -> list[Replica]:
        return [DirectClient(f"client-{number}", self) for number in range(self.random.choice((1, 2, 2)))]

    def _clusters(self) -> list[Object]:
        """The cluster, in the form of a custom resource."""
        root = self.server.objects.get(ROOT)
        if root is None:
            return []
        if root is not self._read[0]:  # reading is slow, and is done several times per second
            self._read = root, self._cluster(root)
        return [self._read[1]]

    @staticmethod
    def _cluster(root: Object) -> Object:
        intent, report = read_intent(root), report_of(root)
        metadata = {**root["metadata"], "name": NAME, "generation": intent.generation}
        spec = {"replicas": intent.spec["workers"][0]["replicas"], "env": intent.spec.get("env") or {}}
        status: Object = {}
        if report is not None:
            found = report.status
            ready = {"type": "Ready", "status": str(found.phase is Phase.READY), "observedGeneration": found.generation}
            status = {"conditions": [ready], "message": found.message}
        retiring = json.loads(root["data"].get(STATE, "{}")).get("retiring") or {}
        return {"metadata": metadata, "spec": spec, "status": {**status, "retiring": retiring}}

    def _create(self, name: str) -> None:
        workers = self.random.randint(0, 4)
        self.log(f"user: create {name} with {workers} workers")
        self._allow(name, workers)
        metadata = {"name": ROOT[2], "namespace": NAMESPACE, "labels": names.labels(name, "simulated")}
        self.server.create("configmaps", {"metadata": metadata, "data": dump_intent(Intent(spec_of(workers)))})

    def _delete(self, name: str) -> None:
        self.server.delete(ROOT)

    def _patch(self, cluster: Object, body: Object) -> None:
        """As clients do: change the intent."""
        root = self.server.get(ROOT)
        intent = read_intent(root)
        changed = json.loads(json.dumps(codec.dump(intent)))["spec"]
        changes = body.get("spec", {})
        worker = changed["workers"][0]
        worker["replicas"] = changes.get("replicas", worker["replicas"])
        worker["cpu"] = changes.get("workers", [worker])[0]["cpu"]
        changed["env"] = changes.get("env", changed.get("env") or {})
        force = names.FORCE in body.get("metadata", {}).get("annotations", {})
        self.server.patch(ROOT, {"data": dump_intent(intent.changed(spec=changed, force=force))})

    def _annotate(self, cluster: Object, annotations: Object) -> None:
        self.server.patch(ROOT, {"metadata": {"annotations": annotations}})

    def second_cluster(self) -> None:
        """Clients have one cluster each."""

    async def break_spec(self) -> None:
        """Clients validate the spec before they store it."""

    def deletable(self) -> tuple[str, ...]:
        """Others than the root, which a ConfigMap is here."""
        return ("services", "serviceaccounts", "networkpolicies", "secrets")
