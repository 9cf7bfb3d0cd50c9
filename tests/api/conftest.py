"""Fixtures for the tests of the operator and of direct mode; see lab/fixtures.py for those they stand on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from lab.kube import Kube
from lab.wait import until
from tests.api.stage import LEASE, Operator, Stage, holder

from oars.operator import crd
from oars.places.kube import names
from oars.spec.cluster import API_VERSION

NODES = 4

# Started with every Python that finds it: an Oars that asks for nothing twice, however far its watches lag behind.
PATIENT = """
from oars.places.kube.state import cache, owned_objects
owned_objects.CATCH_UP = cache.CATCH_UP = 60.0
"""


def is_served(kube: Kube, path: str) -> bool:
    return kube.api.raw("GET", path)[0] == 200


@pytest.fixture
def stage(kube_api: Kube, kwok: Callable[[int], list[str]]) -> Stage:
    """Both kinds are served, as after an installation, and pods are simulated."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    where = f"{definitions}/{crd.NAME}"
    kube_api.api.apply(where, crd.compute_cluster())
    kube_api.api.apply(f"{definitions}/{crd.JOB_NAME}", crd.compute_job())
    # The operators of a test have their Lease in its namespace.
    kube_api.api.patch(where, {"metadata": {"annotations": {names.OPERATOR_NAMESPACE: kube_api.namespace}}})
    kwok(NODES)
    for plural in (crd.PLURAL, crd.JOB_PLURAL):
        path = kube_api.path(plural, f"apis/{API_VERSION}")
        until(f"{plural} are served", partial(is_served, kube_api, path))
    return Stage(kube_api)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Operators started from here on can be counted on: on a busy machine watches may lag for longer than usual."""
    (tmp_path / "sitecustomize.py").write_text(PATIENT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))


@pytest.fixture
def operators(stage: Stage, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Start one: returns when it leads. All are ended afterwards."""
    started: list[Operator] = []

    def start(
        kubeconfig: Path | None = None,
        identity: str = "one",
        *,
        lease: str = LEASE,
        leads: bool = True,
        trust_authors: bool = True,
        adopt: str = "",
    ) -> Operator:
        log = tmp_path / f"operator-{identity}-{len(started)}.log"
        # Pods on simulated nodes have overlays; what checks their authors is not installed.
        options = ["--lease-duration", lease, *(["--trust-authors"] if trust_authors else [])]
        options += ["--adopt", adopt] if adopt else []
        made = Operator(kubeconfig or stage.kube.kubeconfig, stage.kube.namespace, log, identity, *options)
        started.append(made)
        if leads:
            until(f"{identity} leads", lambda: holder(stage.kube).startswith(f"{identity}-"), 90)
        return made

    yield start
    for each in started:
        each.kill()
        # Shown by pytest with a failed test.
        print(f"--- {each.log.name}", *each.lines[-60:], sep="\n")  # noqa: T201
