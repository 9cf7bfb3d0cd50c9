"""`oars operator install --adopt marsjob`: what it installs, for whom, and where it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from lab.api import Object
from lab.errors import LabError
from lab.kube import Kube
from lab.wait import until
from tests.marsjob import document

from oars.base.errors import OarsError
from oars.cli.kubernetes import operator
from oars.kube import config
from oars.kube.client import Client
from oars.operator import crd, installation

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def home(kube_api: Kube) -> Iterator[str]:
    """The name of a namespace for the operator, which is uninstalled afterwards."""
    name = f"{kube_api.namespace}-ops"
    yield name

    async def remove() -> None:
        async with Client(config.load({}, kubeconfig=kube_api.kubeconfig)) as client:
            await installation.uninstall(client, name, 60, lambda _: None, force=True)

    asyncio.run(remove())


def install(kube: Kube, home: str) -> None:
    words = ["install", "-n", home, "--kubeconfig", str(kube.kubeconfig), "--replicas", "0", "--adopt", "marsjob"]
    result = CliRunner().invoke(operator, words)
    if isinstance(result.exception, OarsError):
        raise result.exception
    assert result.exit_code == 0, result.output


def definition(kube: Kube, name: str) -> Object | None:
    status, found = kube.api.raw("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    return json.loads(found) if status == 200 else None


def create(kube: Kube, *words: str) -> str:
    job = document()
    job["metadata"]["namespace"] = kube.namespace
    return kube.kubectl("create", "-f", "-", *words, text=json.dumps(job))


def test_definitions_and_rights_come_with_the_operator_and_go_with_it(kube_api: Kube, home: str) -> None:
    install(kube_api, home)
    until("MarsJobs are served", lambda: "created" in _or_error(kube_api, "--dry-run=server"))
    kube_api.kubectl("create", "rolebinding", "edit", "--clusterrole=edit", "--user=editor")
    kube_api.kubectl("create", "role", "jobs", "--verb=create", "--resource=marsjobs.training.kubedl.io")
    kube_api.kubectl("create", "rolebinding", "jobs", "--role=jobs", "--user=author")
    until("roles are effective", lambda: "created" in _or_error(kube_api, "--dry-run=server", "--as=editor"))
    refusal = "you need the right to create pods"
    until("the policy is enforced", lambda: refusal in _or_error(kube_api, "--dry-run=server", "--as=author"))
    account = f"--as=system:serviceaccount:{home}:oars-operator"  # it may not create pods, but runs of a cronPolicy
    until("the operator may run jobs", lambda: "created" in _or_error(kube_api, "--dry-run=server", account))

    create(kube_api)
    with pytest.raises(OarsError, match=f"{kube_api.namespace}/mars-test-demo"):
        asyncio.run(_uninstall(kube_api, home, force=False))
    asyncio.run(_uninstall(kube_api, home, force=True))
    assert [definition(kube_api, name) for name in crd.MARS_JOB_NAMES] == [None, None]
    kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies"
    assert kube_api.kubectl("get", kinds, "-l", "app.kubernetes.io/part-of=oars") == ""


async def _uninstall(kube: Kube, home: str, *, force: bool) -> None:
    async with Client(config.load({}, kubeconfig=kube.kubeconfig)) as client:
        await installation.uninstall(client, home, 60, lambda _: None, force=force)


def _or_error(kube: Kube, *words: str) -> str:
    try:
        return create(kube, *words)
    except LabError as error:
        return str(error)


def test_installation_is_refused_where_kubedl_runs(kube_api: Kube, home: str) -> None:
    kube_api.kubectl("create", "deployment", "kubedl", "--image", "kubedl/kubedl:v0.5.0")
    with pytest.raises(OarsError, match=f"{kube_api.namespace}/kubedl"):
        install(kube_api, home)
    assert definition(kube_api, crd.MARS_JOB_NAMES[0]) is None
    kube_api.kubectl("scale", "deployment", "kubedl", "--replicas", "0")
    install(kube_api, home)
    assert definition(kube_api, crd.MARS_JOB_NAMES[0]) is not None


def test_definition_of_kubedl_stays_as_it_is(kube_api: Kube, home: str) -> None:
    name = crd.MARS_JOB_NAMES[0]
    theirs = crd.mars_jobs()[0]
    theirs["metadata"]["labels"] = {"of": "kubedl"}
    kube_api.apply(theirs)
    try:
        install(kube_api, home)
        found = definition(kube_api, name)
        assert found is not None and found["metadata"]["labels"] == {"of": "kubedl"}
        asyncio.run(_uninstall(kube_api, home, force=True))
        assert definition(kube_api, name) is not None and definition(kube_api, crd.MARS_JOB_NAMES[1]) is None
    finally:
        kube_api.kubectl("delete", "crd", name)
