"""Clusters whose Secret is deleted, or whose certificates expire, with real pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from lab.kube import Kube

from oars.client.sync import Cluster
from oars.secure import certs, expiry
from oars.spec.load import build
from oars.spec.status import Phase
from oars.testing.driver import run_driver
from tests.api.stage import Stage
from tests.api.test_direct import at_home, run_scenario
from tests.contract.test_engines import TestDask as Dask
from tests.e2e.contract import SELECTORS, SMALL, TIMEOUT, until

pytestmark = [pytest.mark.timeout(600)]


@contextmanager
def dask(kube: Kube, mode: str, *, tied: bool = True) -> Iterator[Cluster]:
    size = {**SMALL, "memory": "1Gi"}
    data = {**Dask.spec, "image": kube.image("dask"), "head": size, "workers": [{"replicas": 1, **size}]}
    with Cluster(
        build(data).spec, name="demo", timeout=TIMEOUT, mode=mode, namespace=kube.namespace,
        kubeconfig=str(kube.kubeconfig), tied=tied,
    ) as made:  # fmt: skip
        yield made


def secret(kube: Kube) -> dict[str, str]:
    """Its content; empty if it does not exist."""
    code, _ = kube.api.raw("GET", kube.path("secrets/demo-oars"))
    return dict(kube.api.get(kube.path("secrets/demo-oars"))["data"]) if code == 200 else {}


def head(kube: Kube) -> str:
    """The uid of the head that is not being deleted; empty if there is none."""
    found = [pod for pod in kube.pods(SELECTORS["head"]) if "deletionTimestamp" not in pod["metadata"]]
    return str(found[0]["metadata"]["uid"]) if found else ""


def works(demo: Cluster) -> bool:
    return any(line.startswith("result") for line in run_driver(demo, Dask.work, 180))


def test_deleted_secret_and_config_map_are_restored(kube: Kube, operator: Path) -> None:
    """Without a pod being replaced, and a new worker joins."""
    with dask(kube, "operator") as demo:
        before, uid = secret(kube), head(kube)
        kube.kubectl("delete", "secret/demo-oars", "configmap/demo-oars")
        until(lambda: secret(kube) == before, 90)
        until(lambda: kube.api.raw("GET", kube.path("configmaps/demo-oars"))[0] == 200, 90)
        events = kube.api.get(kube.path("events"))["items"]
        assert [each for each in events if each["reason"] == "SecretLost"], "it is announced"
        (worker,) = kube.pods(SELECTORS["worker"])
        kube.kubectl("delete", "pod", worker["metadata"]["name"], seconds=120)
        until(lambda: worker["metadata"]["name"] not in {member.id for member in demo.members()}, 60)
        demo.wait(timeout=TIMEOUT)
        assert works(demo) and head(kube) == uid


def test_secret_lost_while_nobody_ran_the_loop_is_replaced_with_the_head(kube: Kube) -> None:
    with dask(kube, "direct", tied=False):
        before, uid = secret(kube), head(kube)
    kube.kubectl("delete", "secret/demo-oars")

    async def scenario() -> None:
        """Another client runs the loop until the cluster is ready again."""
        reasons = []
        async with at_home(Stage(kube)) as home:
            async for report in home.demo.watch():
                reasons += [cause.reason for cause in report.causes]
                is_new = head(kube) not in ("", uid) and secret(kube) not in ({}, before)
                rest = {cause.reason for cause in report.causes} - {"HeadReplaced"}
                if is_new and report.status.phase is Phase.READY and not rest:
                    break
        assert "SecretLost" in reasons, "it is announced"

    run_scenario(scenario())
    again = Cluster.attach("demo", namespace=kube.namespace, kubeconfig=str(kube.kubeconfig))
    try:
        assert works(again)
    finally:
        again.stop()
        again.close()


def test_certificates_are_replaced_before_they_expire(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as short:
        short.setattr(certs, "VALID", timedelta(days=45))
        with dask(kube, "direct", tied=False) as demo:
            assert [cause.reason for cause in demo.why()] == ["CertificateExpires"]
            before, uid = secret(kube), head(kube)
            short.setattr(certs, "VALID", timedelta(days=365))
            short.setattr(expiry, "RENEW_SECONDS", 50 * expiry.DAY)
            until(lambda: secret(kube)["ca.pem"] != before["ca.pem"], 60)
            until(lambda: head(kube) not in ("", uid), 90)
            demo.wait(timeout=TIMEOUT)
            assert secret(kube)["control"] == before["control"]
            assert [cause.reason for cause in demo.why()] == ["HeadReplaced"]
    again = Cluster.attach("demo", namespace=kube.namespace, kubeconfig=str(kube.kubeconfig))
    try:
        assert works(again)
    finally:
        again.stop()
        again.close()
