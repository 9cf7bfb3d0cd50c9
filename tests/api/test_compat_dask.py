"""Pods of the classic KubeCluster on a real scheduler, with simulated nodes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.kube import Kube
from lab.kwok import POD as SIMULATED
from lab.wait import until
from tests.api.stage import Stage
from tests.api.test_rbac_modes import account

from oars.compat.dask_kubernetes import KubeAuth, make_pod_spec
from oars.compat.dask_kubernetes.templates import Settings, scheduler_pod, worker_pod
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import POD


@pytest.mark.parametrize("key", ["k8s.dask.org/dedicated", "k8s.dask.org_dedicated"])
def test_pods_are_scheduled_on_tainted_nodes(kube_api: Kube, kwok: Callable[[int], list[str]], key: str) -> None:
    """Workers run on nodes with the page's taints, and no other pods do. The label prefers them, too."""
    plain, tainted = kwok(2)
    path = f"/api/v1/nodes/{tainted}"
    taint = {"key": key, "value": "worker", "effect": "NoSchedule"}
    before = kube_api.api.get(path)["spec"]["taints"]
    labels = {"k8s.dask.org/node-purpose": "worker"}
    kube_api.api.patch(path, {"spec": {"taints": [*before, taint]}, "metadata": {"labels": labels}})
    settings = Settings("demo", kube_api.namespace, "ann")
    template = make_pod_spec("i:1", cpu_request=0.1, extra_pod_config=SIMULATED)
    worker = kube_api.api.create(kube_api.path("pods"), dict(worker_pod(template, settings)))
    scheduler = kube_api.api.create(kube_api.path("pods"), dict(scheduler_pod(None, template, settings)))

    def node_of(pod: dict[str, Any]) -> str:
        found = kube_api.api.get(kube_api.path(f"pods/{pod['metadata']['name']}"))
        return str(found["spec"].get("nodeName", ""))

    assert until("the worker has a node", lambda: node_of(worker), 60) == tainted
    assert until("the scheduler has a node", lambda: node_of(scheduler), 60) == plain


def test_kube_auth_authenticates(kube_api: Kube, tmp_path: Path) -> None:
    """The API server's own answer names the account of the token: it has no rights, and no token is another answer."""
    account(Stage(kube_api), "ann")
    token = kube_api.kubectl("create", "token", "ann").strip()
    server = kube_api.cluster.config()["clusters"][0]["cluster"]
    ca = tmp_path / "ca.pem"
    ca.write_bytes(
        base64.b64decode(server["certificate-authority-data"])
        if "certificate-authority-data" in server
        else Path(server["certificate-authority"]).read_bytes()
    )

    async def refusal(**credentials: Any) -> ApiError:
        target = await KubeAuth(server["server"], ssl_ca_cert=str(ca), **credentials).load()
        async with Client(target) as client:
            with pytest.raises(ApiError) as refused:
                await client.list(POD, kube_api.namespace)
        return refused.value

    known = asyncio.run(refusal(api_key={"authorization": f"Bearer {token}"}))
    assert known.status == 403 and f"system:serviceaccount:{kube_api.namespace}:ann" in known.message
    unknown = asyncio.run(refusal(api_key={"authorization": "Bearer wrong"}))
    assert unknown.status == 401
