"""What keeps `oars operator uninstall` from removing the operator."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from oars.base.errors import OarsError
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import CRD, DEPLOYMENT, Kind, Object
from oars.operator import MARS_JOB, crd, installation, kubedl, manifests
from oars.operator.manifests import InstallOptions
from oars.operator.marsjob import KINDS

ENDED = {"completionTime": "2026-01-01T00:00:00Z"}


class Cluster:
    """A Kubernetes with the definitions of MarsJobs, jobs of each, and perhaps an operator."""

    def __init__(self, labels: dict[str, str], options: InstallOptions | None, **statuses: Object) -> None:
        self.labels = labels
        self.deployments = (
            [each for each in manifests.install(options) if each["kind"] == "Deployment"] if options else []
        )
        self.jobs = [
            {"metadata": {"name": name, "namespace": "team"}, "spec": {}, "status": status}
            for name, status in statuses.items()
        ]

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        if kind == CRD and name in crd.MARS_JOB_NAMES:
            return {"metadata": {"name": name, "labels": self.labels}}
        raise ApiError(404, {})

    async def list(self, kind: Kind, *_: Any, **__: Any) -> Listing:
        if kind == DEPLOYMENT:
            return Listing(self.deployments, "1")
        return Listing(self.jobs if kind == KINDS[0] else [], "1")


def adopting(*watched: str) -> InstallOptions:
    return InstallOptions(namespace="oars-system", adopt=(MARS_JOB,), watch_namespaces=watched)


KUBEDL: dict[str, str] = {}
OURS = {kubedl.PART_OF: kubedl.OARS}


@pytest.mark.parametrize(
    ("labels", "options", "names"),
    [
        (KUBEDL, adopting(), "team/runs"),
        (KUBEDL, adopting("team", "other"), "team/runs"),
        (KUBEDL, adopting("other"), ""),
        (KUBEDL, InstallOptions(namespace="oars-system"), ""),
        (KUBEDL, None, ""),
        (OURS, adopting(), "team/runs, team/over"),
    ],
)
def test_uninstall_sees_the_mars_jobs_that_the_operator_runs(
    labels: dict[str, str], options: InstallOptions | None, names: str
) -> None:
    client = cast(Client, Cluster(labels, options, runs={}, over=ENDED))
    found = asyncio.run(_adopted(client))
    assert ", ".join(f"team/{each['metadata']['name']}" for each in found) == names
    assert {each["kind"] for each in found} <= {"MarsJob"}
    if names:
        with pytest.raises(OarsError, match=f"still runs clusters: {names}"):
            asyncio.run(installation.uninstall(client, "oars-system", 10, lambda _: None))


async def _adopted(client: Client) -> list[Object]:
    return await kubedl.adopted_jobs(client, await installation._adopting(client, "oars-system"))
