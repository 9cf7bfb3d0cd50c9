"""A second resource kind in the operator: a row of its table, with its own key, owner and status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from lab.wait import until
from tests.api.stage import SIMULATED_POD, Stage, resource

from oars.kube import config
from oars.kube.client import Client
from oars.kube.kinds import Kind, Object, register
from oars.model import Cause, Desired, LoopState
from oars.operator import RunOptions
from oars.operator.main import Operator
from oars.operator.resources import COMPUTE_CLUSTERS, ResourceKind, compute_cluster
from oars.places.kube.state import status_codec
from oars.places.report import Report
from oars.spec.status import Phase

FLEET = register(Kind("example.dev", "v1", "toyfleets", "ToyFleet"))
ANYTHING: Mapping[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "toyfleets.example.dev"},
    "spec": {
        "group": FLEET.group,
        "scope": "Namespaced",
        "names": {"plural": FLEET.plural, "singular": "toyfleet", "kind": FLEET.kind},
        "versions": [
            {
                "name": FLEET.version,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": ANYTHING, "status": ANYTHING}}},
            }
        ],
    },
}


def fleet(fleet_resource: Object) -> Desired:
    """A ToyFleet has one field: the number of its boats."""
    boats = {"cpu": "0.1", "memory": "64Mi", "pod": SIMULATED_POD}
    spec = {"engine": "simulated", "head": boats, "workers": [boats], "replicas": fleet_resource["spec"]["boats"]}
    return compute_cluster({**fleet_resource, "spec": spec})


class FleetStatus:
    """Shows only how many boats float; stores the loop state in a field of its own."""

    def load_state(self, status: Mapping[str, Any]) -> LoopState:
        return status_codec.load_state(status.get("loop"))

    def dump_state(self, state: LoopState) -> Object:
        return {"loop": status_codec.dump_state(state)}

    def dump_report(self, report: Report, before: Mapping[str, Any], now: str) -> Object:
        status = report.status
        return {"phase": status.phase.value, "reason": status.reason, "afloat": status.ready,
                "observedGeneration": status.generation}  # fmt: skip

    def dump_failure(
        self, cause: Cause, phase: Phase | None, generation: int, before: Mapping[str, Any], now: str
    ) -> Object:
        return {"phase": "Sunk", "reason": cause.reason, "observedGeneration": generation}

    def is_progress(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        return False

    def transitions(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Cause, ...]:
        return ()


FLEETS = ResourceKind(FLEET, fleet, FleetStatus())


def test_two_kinds_side_by_side(stage: Stage) -> None:
    kube, namespace = stage.kube, stage.kube.namespace
    kube.api.apply(
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{DEFINITION['metadata']['name']}", DEFINITION
    )
    fleets = kube.path(FLEET.plural, f"apis/{FLEET.api_version}")
    until("the second kind is served", lambda: kube.api.raw("GET", fleets)[0] == 200)

    def create(name: str, boats: int) -> Object:
        body = {"apiVersion": FLEET.api_version, "kind": FLEET.kind, "metadata": {"name": name}}
        created: Object = kube.api.create(fleets, {**body, "spec": {"boats": boats}})
        return created

    def status(name: str) -> Object:
        found: Object = kube.api.get(f"{fleets}/{name}").get("status") or {}
        return found

    async def story() -> None:
        options = RunOptions((namespace,), lease_namespace=namespace, metrics_port=0, health_port=0, trust_authors=True)
        async with Client(config.load({}, kubeconfig=kube.kubeconfig)) as client:
            operator = asyncio.create_task(Operator(client, options, (COMPUTE_CLUSTERS, FLEETS)).run())
            try:
                await asyncio.to_thread(in_the_cluster)
            finally:
                operator.cancel()
                await asyncio.gather(operator, return_exceptions=True)

    def in_the_cluster() -> None:
        made = create("armada", 2)
        stage.create(resource("demo"))
        until("the fleet floats", lambda: status("armada").get("afloat") == 2, 90)
        assert status("armada")["phase"] == "Ready" and stage.await_ready("demo")["ready"] == "3/3"
        owners = [each["metadata"]["ownerReferences"][0] for each in stage.deployments("armada").values()]
        assert {(owner["kind"], owner["uid"]) for owner in owners} == {("ToyFleet", made["metadata"]["uid"])}

        create("demo", 1)  # the name of the ComputeCluster, whose objects it must not touch
        until("the name clash is reported", lambda: status("demo").get("reason") == "NameTaken", 90)
        assert stage.await_ready("demo")["ready"] == "3/3"

    asyncio.run(asyncio.wait_for(story(), 280))
