"""The runs of a schedule are changed only while they are those that were seen."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.operator.job_runs import KubeRuns
from oars.operator.resources import Key
from oars.places.kube.kinds import COMPUTE_JOB
from oars.plan.schedule import RunSeen

TEMPLATE = {"metadata": {"name": "nightly", "namespace": "team", "uid": "t"}, "spec": {}}


def job(uid: str, owner: str) -> Object:
    return {"metadata": {"name": "nightly-1", "namespace": "team", "uid": uid, "ownerReferences": [{"uid": owner}]}}


class Api:
    """An API server with one ComputeJob. It checks uids as Kubernetes does."""

    def __init__(self, stored: Object) -> None:
        self.stored: Object | None = stored

    def _check(self, uid: str | None) -> None:
        if self.stored is None:
            raise ApiError(404, {"reason": "NotFound"})
        if uid not in (None, self.stored["metadata"]["uid"]):
            raise ApiError(409, {"reason": "Conflict"})

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        self._check(None)
        assert self.stored is not None
        return self.stored

    async def delete(self, kind: Kind, name: str, namespace: str, *, uid: str | None = None) -> bool:
        self._check(uid)
        self.stored = None
        return True

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object) -> Object:
        self._check(body["metadata"].get("uid"))
        assert self.stored is not None
        self.stored["metadata"]["annotations"] = body["metadata"]["annotations"]
        return self.stored


def runs(api: Api, *seen: Object) -> KubeRuns:
    found = {Key(COMPUTE_JOB.kind, "team", each["metadata"]["name"]): each for each in seen}

    async def write(status: Any) -> None:
        raise AssertionError(status)

    return KubeRuns(cast(Client, api), found, TEMPLATE, write)


def test_run_is_cancelled_and_removed() -> None:
    api = Api(job("r", "t"))
    asyncio.run(runs(api, job("r", "t")).cancel("nightly-1"))
    assert api.stored is not None and api.stored["metadata"]["annotations"]
    asyncio.run(runs(api, job("r", "t")).remove(RunSeen("nightly-1", 0.0, uid="r")))
    assert api.stored is None


@pytest.mark.parametrize("seen", [[job("r", "t")], []], ids=["the watch lags", "not seen"])
def test_job_of_somebody_else_that_took_the_name_is_left_alone(seen: list[Object]) -> None:
    api = Api(job("theirs", "x"))
    asyncio.run(runs(api, *seen).cancel("nightly-1"))
    asyncio.run(runs(api, *seen).remove(RunSeen("nightly-1", 0.0, uid="r")))
    assert api.stored == job("theirs", "x")


def test_run_that_the_watch_has_not_delivered_is_cancelled() -> None:
    api = Api(job("r", "t"))
    asyncio.run(runs(api).cancel("nightly-1"))
    assert api.stored is not None and api.stored["metadata"]["annotations"]
