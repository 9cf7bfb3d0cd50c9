"""The CRD on a real API server: accepted without a warning, and refusing what is wrong in words that help."""

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

from oars.operator import crd
from oars.spec.cluster import API_VERSION, KIND, ClusterSpec

ROOT = Path(__file__).parents[2]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def served(kube_api: Kube) -> Kube:
    """A namespace on a cluster that knows ComputeCluster."""
    kube_api.api.apply(f"{CRDS}/{crd.NAME}", crd.compute_cluster())
    until("the kind is served", lambda: kube_api.api.raw("GET", path(kube_api))[0] == 200)  # first 404, then 429
    return kube_api


def path(kube: Kube, name: str = "", part: str = "") -> str:
    return "/".join(filter(None, [kube.path(crd.PLURAL, f"apis/{API_VERSION}"), name, part]))


def make(kube: Kube, spec: object, name: str = "demo") -> dict[str, Any]:
    """Create strictly, as kubectl does."""
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    return kube.api.create(f"{path(kube)}?fieldValidation=Strict", body)


def edit(kube: Kube, spec: object, name: str = "demo") -> dict[str, Any]:
    return kube.api.patch(f"{path(kube, name)}?fieldValidation=Strict", {"spec": spec})


def documents() -> Iterator[Any]:
    """Every ComputeCluster of the examples and the documentation."""
    texts = [(file, file.read_text()) for file in sorted((ROOT / "examples").rglob("*.yaml"))]
    for file in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]):
        texts += [(file, each) for each in re.findall(r"```yaml\n(.*?)```", file.read_text(), re.DOTALL)]
    for file, text in texts:
        for document in yaml.safe_load_all(text) if f"kind: {KIND}" in text else ():
            if document["spec"].get("place", "kubernetes") == "kubernetes":
                yield pytest.param(document, id=str(file.relative_to(ROOT)))


def test_it_is_accepted_without_a_warning(kube_api: Kube) -> None:
    words = ("apply", "--server-side", "--force-conflicts", "--warnings-as-errors", "-f", "-")
    kube_api.kubectl(*words, text=json.dumps(crd.compute_cluster()))
    kube_api.kubectl("wait", "--for=condition=Established", f"crd/{crd.NAME}", "--timeout=30s")
    conditions = kube_api.api.get(f"{CRDS}/{crd.NAME}")["status"]["conditions"]
    assert not [each for each in conditions if each["type"] == "NonStructuralSchema"]


@pytest.mark.parametrize("document", list(documents()))
def test_every_documented_cluster_is_accepted(served: Kube, document: dict[str, Any]) -> None:
    spec = document["spec"]
    if isinstance(spec.get("workers"), int):  # the short form of files
        with pytest.raises(ApiError, match=r"spec\.workers.*array"):
            make(served, spec)
        spec = {**spec, "workers": [{"replicas": spec["workers"]}]}
    found = make(served, spec, document["metadata"]["name"])
    assert ClusterSpec.model_validate(found["spec"]) == ClusterSpec.model_validate({**spec, "place": "kubernetes"})


def test_defaults_are_filled_in(served: Kube) -> None:
    assert make(served, {"engine": "dask"})["spec"] == {
        "engine": "dask",
        "place": "kubernetes",
        "head": {"cpu": 1, "burst": False},
        "workers": [{"name": "default", "cpu": 1, "gpu": 0, "burst": False}],
        "drain": {"timeout": 60},
        "expose": {"type": "ClusterIP"},
    }


def test_before_any_operator_has_seen_it_it_is_pending(served: Kube) -> None:
    make(served, {"engine": "dask"})
    assert served.kubectl("get", "computecluster/demo", "-o", "jsonpath={.status.phase}") == "Pending"


def test_all_that_may_be_written_is_accepted(served: Kube) -> None:
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"disk": "ssd"}, "containers": []}}
    spec = {
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
    found = make(served, spec)["spec"]
    assert found["head"]["pod"] == pod
    assert ClusterSpec.model_validate(found) == ClusterSpec.model_validate({**spec, "place": "kubernetes"})


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
        ({"engine": "dask", "workers": [{"replicas": "3"}]}, r"spec\.workers\[0\]\.replicas.*integer"),
        ({"engine": "dask", "workers": [{"name": "A"}]}, r"spec\.workers\[0\]\.name.*should match"),
        ({"engine": "dask", "workers": [{"name": "head"}]}, "'head' is the head's own name"),
        ({"engine": "dask", "workers": [{"name": "a"}, {"name": "a"}]}, r"spec\.workers\[1\]: Duplicate value"),
        ({"engine": "dask", "workers": [{}, {"name": "worker"}]}, "would both have members called worker-0"),
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
def test_what_is_wrong_is_refused(served: Kube, spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ApiError, match=sentence) as refused:
        make(served, spec)
    assert refused.value.status in (400, 422)


@pytest.mark.parametrize("name", ["9lives", "a" * 54, "a.b"])
def test_a_name_that_could_not_name_its_parts_is_refused(served: Kube, name: str) -> None:
    with pytest.raises(ApiError, match=r"metadata\.name must have at most 53"):
        make(served, {"engine": "dask"}, name)


@pytest.mark.parametrize(
    ("first", "change", "sentence"),
    [
        ({}, {"engine": "ray"}, "engine must not change"),
        ({}, {"dask": {"protocol": "tcp"}}, r"dask\.protocol must not change"),
        ({"dask": {"protocol": "tcp"}}, {"dask": None}, r"dask\.protocol must not change"),
        ({}, {"ray": {"auth": "none"}}, r"ray\.auth must not change"),
        ({}, {"mars": {"distribution": "pymars"}}, r"mars\.distribution must not change"),
        ({}, {"namespace": {"name": "other"}}, r"namespace\.name must not change"),
        ({"namespace": {"create": True}}, {"namespace": None}, r"namespace\.create must not change"),
    ],
)
def test_what_no_cluster_can_follow_is_refused(
    served: Kube, first: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    make(served, {"engine": "dask", **first})
    with pytest.raises(ApiError, match=sentence):
        edit(served, change)


def test_writing_down_a_default_changes_nothing(served: Kube) -> None:
    make(served, {"engine": "dask"})
    edit(served, {"dask": {"protocol": "tls"}, "mars": {}, "ray": {"auth": "token"}, "namespace": {"create": False}})
    edit(served, {"image": "i:2", "env": {"A": "b"}, "replicas": 4, "workers": [{"name": "other", "replicas": 2}]})


def test_kubectl_scales(served: Kube) -> None:
    make(served, {"engine": "dask", "workers": [{"replicas": 2}]})
    served.kubectl("scale", "cc/demo", "--replicas=5")
    spec = served.api.get(path(served, "demo"))["spec"]
    assert spec["replicas"] == 5
    assert ClusterSpec.model_validate(spec).workers[0].replicas == 5


def test_an_autoscaler_finds_what_it_reads(served: Kube) -> None:
    make(served, {"engine": "dask", "replicas": 2})
    status = {"replicas": 2, "selector": "oars.dev/cluster=demo"}
    served.api.patch(path(served, "demo", "status"), {"status": status})
    scale = served.api.get(path(served, "demo", "scale"))
    assert (scale["spec"]["replicas"], scale["status"]) == (2, status)


def test_a_status_is_kept_and_shown(served: Kube) -> None:
    make(served, {"engine": "dask"})
    since = "2026-01-01T00:00:00Z"
    condition = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": since}
    status = {
        "phase": "Ready", "reason": "", "message": "All is well.", "ready": "3/3", "replicas": 3, "selector": "a=b",
        "observedGeneration": 1, "endpoints": {"client": "tls://demo:8786", "dashboard": ""}, "mode": "operator",
        "groups": [{"name": "default", "wanted": 3, "ready": 3}], "conditions": [condition],
        "notes": {"any": {"thing": [1]}}, "operator": "oars-operator-0",
    }  # fmt: skip
    query = "?fieldValidation=Strict"
    found = served.api.patch(path(served, "demo", "status") + query, {"status": status})
    assert found["status"] == status
    assert found["metadata"]["generation"] == 1, "a status is no change of the spec"
    shown = served.kubectl("get", "oars", "-o", "wide")
    assert re.split(r" {2,}", shown.splitlines()[1])[:5] == ["demo", "dask", "Ready", "3/3", "All is well."]
    assert "demo" in served.kubectl("get", "all"), "it is in the category"


def test_groups_of_two_managers_are_merged_by_name(served: Kube) -> None:
    """Whoever applies one group leaves those of others alone."""

    def apply(manager: str, spec: dict[str, Any]) -> list[str]:
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "demo"}, "spec": spec}
        where = f"{path(served, 'demo')}?fieldManager={manager}"
        found = served.api.request("PATCH", where, body, "application/apply-patch+yaml")
        return [group["name"] for group in found["spec"]["workers"]]

    assert apply("one", {"engine": "dask", "workers": [{"replicas": 1}]}) == ["default"]
    assert apply("two", {"workers": [{"name": "gpu", "gpu": 1}]}) == ["default", "gpu"]
    assert apply("one", {"engine": "dask", "workers": [{"replicas": 2}]}) == ["default", "gpu"]


def test_explain_says_how_to_write_amounts(served: Kube) -> None:
    assert "500m" in served.kubectl("explain", "cc.spec.head.cpu")
    assert "Gi" in served.kubectl("explain", "cc.spec.workers.memory")
