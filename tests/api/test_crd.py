"""The CRD on a real API server: accepted without warnings, and rejecting invalid specs with clear messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.api import ApiError
from lab.kube import Kube
from lab.wait import until

from oars import engines
from oars.operator import crd
from oars.spec.cluster import API_VERSION, KIND, ClusterSpec
from oars.spec.load import build

ROOT = Path(__file__).parents[2]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def served(kube_api: Kube) -> Kube:
    """A namespace of a cluster with the CRD."""
    kube_api.api.apply(f"{CRDS}/{crd.NAME}", crd.compute_cluster())
    until("the kind is served", lambda: kube_api.api.raw("GET", path(kube_api))[0] == 200)  # first 404, then 429
    return kube_api


def path(kube: Kube, name: str = "", part: str = "") -> str:
    return "/".join(filter(None, [kube.path(crd.PLURAL, f"apis/{API_VERSION}"), name, part]))


def create(kube: Kube, spec: object, name: str = "demo") -> dict[str, Any]:
    """Create with strict validation, as kubectl does."""
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    return kube.api.create(f"{path(kube)}?fieldValidation=Strict", body)


def edit(kube: Kube, spec: object, name: str = "demo") -> dict[str, Any]:
    return kube.api.patch(f"{path(kube, name)}?fieldValidation=Strict", {"spec": spec})


def validated(spec: dict[str, Any]) -> ClusterSpec:
    """The spec as the operator reads it."""
    return build(spec, option_model=engines.option_model).spec


def documents() -> Iterator[Any]:
    """Every ComputeCluster of the examples and the documentation."""
    texts = [(file, file.read_text()) for file in sorted((ROOT / "examples").rglob("*.yaml"))]
    for file in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]):
        texts += [(file, each) for each in re.findall(r"```yaml\n(.*?)```", file.read_text(), re.DOTALL)]
    for file, text in texts:
        for document in yaml.safe_load_all(text) if f"kind: {KIND}" in text else ():
            if document["spec"].get("place", "kubernetes") == "kubernetes":
                yield pytest.param(document, id=str(file.relative_to(ROOT)))


def test_definition_is_accepted_without_warnings(kube_api: Kube) -> None:
    words = ("apply", "--server-side", "--force-conflicts", "--warnings-as-errors", "-f", "-")
    kube_api.kubectl(*words, text=json.dumps(crd.compute_cluster()))
    kube_api.kubectl("wait", "--for=condition=Established", f"crd/{crd.NAME}", "--timeout=30s")
    conditions = kube_api.api.get(f"{CRDS}/{crd.NAME}")["status"]["conditions"]
    assert not [each for each in conditions if each["type"] == "NonStructuralSchema"]


@pytest.mark.parametrize("document", list(documents()))
def test_every_documented_cluster_is_accepted(served: Kube, document: dict[str, Any]) -> None:
    spec = document["spec"]
    found = create(served, spec, document["metadata"]["name"])
    assert validated(found["spec"]) == validated({**spec, "place": "kubernetes"})


def test_defaults_are_filled_in(served: Kube) -> None:
    assert create(served, {"engine": "dask"})["spec"] == {
        "engine": "dask",
        "place": "kubernetes",
        "head": {"burst": False, "eviction": "block", "update": "Recreate"},
        "replicas": 1,
        "drain": {"timeout": 60},
        "expose": {"type": "ClusterIP"},
    }


def test_new_cluster_is_pending(served: Kube) -> None:
    create(served, {"engine": "dask"})
    assert served.kubectl("get", "computecluster/demo", "-o", "jsonpath={.status.phase}") == "Pending"


def test_every_field_is_accepted(served: Kube) -> None:
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"disk": "ssd"}, "containers": []}}
    spec: dict[str, Any] = {
        "engine": "ray", "image": "example.org/ray:1", "env": {"A": "b"}, "replicas": 3, "minReady": 1,
        "environment": {"packages": ["pandas>=2"]},
        "head": {"cpu": 0.5, "memory": "2Gi", "env": {"A": "b"}, "pod": pod},
        "workers": [
            {"name": "default", "cpu": "500m", "memory": 1073741824, "resources": {"BIG": 1.5}, "pod": pod},
            {"name": "gpu", "replicas": 0, "gpu": 1, "labels": {"a": "b"}},
        ],
        "drain": {"timeout": "1h30m"}, "lifetime": {"orphaned": 0.5},
        "namespace": {"name": "4" + "u" * 62, "create": True},
        "expose": {"type": "NodePort", "host": "a.example.org", "annotations": {"a": "b"}},
        "dask": {"config": {"distributed": {"worker": {"memory": {"spill": 0.6}}}}},
        "ray": {"objectStoreMemory": "1Gi", "dashboard": False}, "mars": {"config": {"a": [1, {"b": None}]}},
        "options": {"any": {"thing": [1, "2", None]}},
    }  # fmt: skip
    found = create(served, spec)["spec"]
    assert found["head"]["pod"] == pod
    assert found.pop("options") == spec.pop("options"), "for plug-in engines without a model; Ray rejects it"
    assert validated(found) == validated({**spec, "place": "kubernetes"})


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({}, r"spec\.engine: Required value"),
        ({"engine": 3}, r"spec\.engine.*string"),
        ({"engine": "dask", "wrokers": []}, r"unknown field \\\"spec\.wrokers"),
        ({"engine": "dask", "workers": [{"cores": 1}]}, r"unknown field \\\"spec\.workers\[0\]\.cores"),
        ({"engine": "dask", "place": "local"}, r"spec\.place.*kubernetes"),
        ({"engine": "dask", "workers": 3}, r"spec\.workers.*array"),
        ({"engine": "dask", "replicas": -1}, r"spec\.replicas.*greater than or equal to 0"),
        ({"engine": "dask", "workers": [{}, {"name": "b", "replicas": "3"}]}, r"spec\.workers\[1\]\.replicas.*integer"),
        ({"engine": "dask", "workers": [{"replicas": 3}]}, r"workers\[0\]\.replicas: write .* in spec\.replicas"),
        ({"engine": "dask", "workers": [{"name": "A"}]}, r"spec\.workers\[0\]\.name.*should match"),
        ({"engine": "dask", "workers": [{"name": "head"}]}, "'head' is reserved for the head"),
        ({"engine": "dask", "workers": [{"name": "a"}, {"name": "a"}]}, "two worker groups have the same name"),
        ({"engine": "dask", "workers": [{}, {"name": "default"}]}, "two worker groups have the same name"),
        ({"engine": "dask", "workers": [{}, {"cpu": 2}]}, "two worker groups have the same name"),
        ({"engine": "dask", "workers": [{}, {"name": "worker"}]}, "would have the same names; rename one group"),
        ({"engine": "dask", "head": {"cpu": "many"}}, r"spec\.head\.cpu.*should match"),
        ({"engine": "dask", "head": {"cpu": 0}}, r"spec\.head\.cpu.*greater than 0"),
        ({"engine": "dask", "head": {"cpu": True}}, r"spec\.head\.cpu"),
        ({"engine": "dask", "head": {"cpu": {}}}, r"spec\.head\.cpu"),
        ({"engine": "dask", "head": {"cpu": [1]}}, r"spec\.head\.cpu"),
        ({"engine": "dask", "head": {"memory": "1Xi"}}, r"spec\.head\.memory.*should match"),
        ({"engine": "dask", "head": {"memory": 4}}, r"spec\.head\.memory.*greater than or equal to 1048576"),
        ({"engine": "dask", "drain": {"timeout": "soon"}}, r"spec\.drain\.timeout.*should match"),
        ({"engine": "dask", "env": {"A": 1}}, r"spec\.env\.A.*string"),
        ({"engine": "dask", "dask": {"protocol": "udp"}}, r"spec\.dask\.protocol.*\\\"tls\\\", \\\"tcp\\\""),
        ({"engine": "dask", "expose": {"type": "Ingress"}}, r"spec\.expose\.type.*NodePort"),
    ],
)
def test_invalid_spec_is_rejected(served: Kube, spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ApiError, match=sentence) as caught:
        create(served, spec)
    assert caught.value.status in (400, 422)


@pytest.mark.parametrize("name", ["9lives", "a" * 54, "a.b"])
def test_invalid_name_is_rejected(served: Kube, name: str) -> None:
    with pytest.raises(ApiError, match=r"metadata\.name must have at most 53"):
        create(served, {"engine": "dask"}, name)


@pytest.mark.parametrize(
    ("first", "change", "sentence"),
    [
        ({}, {"engine": "ray"}, "engine cannot change"),
        ({}, {"dask": {"protocol": "tcp"}}, r"dask\.protocol cannot change"),
        ({"dask": {"protocol": "tcp"}}, {"dask": None}, r"dask\.protocol cannot change"),
        ({}, {"ray": {"auth": "none"}}, r"ray\.auth cannot change"),
        ({}, {"mars": {"distribution": "pymars"}}, r"mars\.distribution cannot change"),
        ({}, {"namespace": {"name": "other"}}, r"namespace\.name cannot change"),
        ({"namespace": {"create": True}}, {"namespace": None}, r"namespace\.create cannot change"),
    ],
)
def test_change_of_immutable_field_is_rejected(
    served: Kube, first: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    create(served, {"engine": "dask", **first})
    with pytest.raises(ApiError, match=sentence):
        edit(served, change)


def test_explicit_default_of_immutable_field_is_accepted(served: Kube) -> None:
    create(served, {"engine": "dask"})
    edit(served, {"dask": {"protocol": "tls"}, "mars": {}, "ray": {"auth": "token"}, "namespace": {"create": False}})
    edit(served, {"image": "i:2", "env": {"A": "b"}, "replicas": 4, "workers": [{"name": "other"}]})


def test_kubectl_scale_sets_replicas(served: Kube) -> None:
    create(served, {"engine": "dask", "workers": [{"cpu": 2}]})
    served.kubectl("scale", "cc/demo", "--replicas=5")
    spec = served.api.get(path(served, "demo"))["spec"]
    assert spec["replicas"] == 5
    assert ClusterSpec.model_validate(spec).workers[0].replicas == 5


def test_scale_subresource_has_replicas_and_selector(served: Kube) -> None:
    create(served, {"engine": "dask", "replicas": 2})
    status = {"replicas": 2, "selector": "oars.dev/cluster=demo"}
    served.api.patch(path(served, "demo", "status"), {"status": status})
    scale = served.api.get(path(served, "demo", "scale"))
    assert (scale["spec"]["replicas"], scale["status"]) == (2, status)


def test_status_is_stored_and_printed(served: Kube) -> None:
    create(served, {"engine": "dask"})
    since = "2026-01-01T00:00:00Z"
    condition = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": since}
    status = {
        "phase": "Ready", "reason": "", "message": "All is well.", "ready": "3/3", "replicas": 3, "selector": "a=b",
        "observedGeneration": 1, "endpoints": {"client": "tls://demo:8786", "dashboard": ""}, "mode": "operator",
        "groups": [{"name": "default", "wanted": 3, "ready": 3}], "conditions": [condition],
        "head": {"incarnation": "a:0", "epoch": 1}, "headReady": True, "retiring": {"w": {"since": 1.5}},
    }  # fmt: skip
    query = "?fieldValidation=Strict"
    found = served.api.patch(path(served, "demo", "status") + query, {"status": status})
    assert found["status"] == status
    assert found["metadata"]["generation"] == 1, "the status does not change the generation"
    shown = served.kubectl("get", "oars", "-o", "wide")
    assert re.split(r" {2,}", shown.splitlines()[1])[:5] == ["demo", "dask", "Ready", "3/3", "All is well."]
    assert "demo" in served.kubectl("get", "all"), "in the category all"


def test_maximum_number_of_groups_is_accepted(served: Kube) -> None:
    groups = [{"name": f"g{number}-{'x' * 45}"} for number in range(crd.MAX_GROUPS)]
    assert len(create(served, {"engine": "dask", "workers": groups})["spec"]["workers"]) == crd.MAX_GROUPS


def test_explain_shows_examples_of_quantities(served: Kube) -> None:
    assert "500m" in served.kubectl("explain", "cc.spec.head.cpu")
    assert "Gi" in served.kubectl("explain", "cc.spec.workers.memory")
