"""Manifests of other projects as ComputeClusters and ComputeJobs. Pure.

Each converter takes the fields that it understands; everything else is reported (`fields.py`, `tables.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oars.base.errors import SpecError
from oars.convert import dask, deployments, mars, ray, tables
from oars.convert.fields import Fields, Foreign, Unmet, open_manifest
from oars.spec import text
from oars.spec.cluster import API_VERSION, KIND
from oars.spec.job import JOB_KIND
from oars.spec.problems import in_plain, raise_for
from oars.spec.text import Document

__all__ = ["Converted", "Unmet", "convert", "convert_one", "is_foreign", "read"]

Converter = Callable[[Fields, Fields], dict[str, Any]]
# Kinds that become one ComputeCluster or ComputeJob.
_ALONE: Mapping[str, tuple[str, Converter]] = {
    "MarsJob": (KIND, mars.mars_job),
    "RayCluster": (KIND, ray.ray_cluster),
    "RayService": (KIND, ray.ray_service),
    "RayJob": (JOB_KIND, ray.ray_job),
    "RayCronJob": (JOB_KIND, ray.ray_cron_job),
    "DaskJob": (JOB_KIND, dask.dask_job),
}


@dataclass(frozen=True)
class Converted:
    """The objects of a file, in its order, and what is not honoured. Objects that are no part of a cluster stay as they
    are."""

    objects: tuple[dict[str, Any], ...]
    unmet: tuple[Unmet, ...]

    def ours(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.objects if (each.get("apiVersion"), each.get("kind")) == (API_VERSION, kind)]


@dataclass
class _File:
    """The documents of a file by their number, and what they become."""

    documents: Sequence[Document]
    opened: dict[int, Foreign] = field(default_factory=dict)
    objects: dict[int, dict[str, Any]] = field(default_factory=dict)

    def open(self, number: int) -> Foreign:
        document = self.documents[number]
        table = tables.table(document.data.get("apiVersion"), document.data.get("kind"))
        assert table is not None
        self.opened[number] = open_manifest(document.data, table.rules, document.places)
        return self.opened[number]

    def of_kind(self, kind: str) -> list[int]:
        found = []
        for number, document in enumerate(self.documents):
            table = tables.table(document.data.get("apiVersion"), document.data.get("kind"))
            if table is not None and table.kind == kind:
                found.append(number)
        return found

    def become(self, number: int, kind: str, spec: dict[str, Any], name: str = "") -> None:
        source = self.opened[number]
        namespace = {"namespace": source.namespace} if source.namespace else {}
        metadata = {"name": name or source.name, **namespace}
        self.objects[number] = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def read(content: str, source: str) -> list[Document]:
    """The documents of a file, with the items of Lists."""
    found = []
    for document in text.read_all(content, source):
        raise_for(in_plain(document.data, ()), document.places)
        data = document.data
        if isinstance(data, dict) and data.get("kind") == "List" and isinstance(data.get("items"), list):
            found += [Document(source, each) for each in data["items"]]
        elif data is not None:
            found.append(document)
    return found


def is_foreign(documents: Sequence[Document]) -> bool:
    """Whether a file has something to convert, or several documents."""
    return len(documents) > 1 or any(_is_convertible(each.data) for each in documents)


def _is_convertible(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    table = tables.table(data.get("apiVersion"), data.get("kind"))
    if table is tables.DEPLOYMENT:
        return bool(deployments.role_of(data))
    return table is not None and table is not tables.SERVICE


def convert(documents: Sequence[Document]) -> Converted:
    """Convert the manifests of a file. Raises SpecError for those that Oars cannot run at all."""
    for document in documents:
        if not isinstance(document.data, dict):
            raise SpecError(f"{document.source}: a document is not a mapping.", "Pass a file with manifests.")
    file = _File(documents)
    for kind, (becomes, converter) in _ALONE.items():
        for number in file.of_kind(kind):
            opened = file.open(number)
            file.become(number, becomes, converter(opened.spec, opened.metadata))
    _convert_dask(file)
    _convert_deployments(file)
    unmet: list[Unmet] = []
    for number in sorted(file.opened):
        root = file.opened[number].root
        root.finish()
        unmet += sorted(root.source.unmet, key=lambda each: each.path)
    kept = {number: each.data for number, each in enumerate(documents) if number not in file.opened}
    objects = {**kept, **file.objects}
    return Converted(tuple(objects[number] for number in sorted(objects)), tuple(unmet))


def convert_one(manifest: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Unmet, ...]]:
    """The spec that a manifest becomes by itself, and what is not honoured."""
    document = Document("the manifest", dict(manifest))
    converted = convert([document])
    return dict(converted.objects[0]["spec"]), converted.unmet


def _convert_dask(file: _File) -> None:
    """Clusters, and the groups and autoscalers that are parts of them."""
    clusters: dict[str, tuple[int, dask.DaskCluster]] = {}
    for number in file.of_kind("DaskCluster"):
        opened = file.open(number)
        clusters[opened.name] = number, dask.dask_cluster(opened.spec)

    def cluster_of(part: Foreign, hint: str) -> tuple[str, dask.DaskCluster]:
        name = part.spec.text("cluster") or ""
        if name not in clusters:
            part.spec.fail("cluster", f"is {name!r}, which is not a DaskCluster of this file", hint)
        return name, clusters[name][1]

    for number in file.of_kind("DaskWorkerGroup"):
        opened = file.open(number)
        name, found = cluster_of(opened, "Write the DaskCluster and its groups into one file.")
        title = opened.name.removeprefix(f"{name}-")
        found.groups.append(dask.worker_group(title, opened.spec.block("worker"), found.image))
    for number in file.of_kind("DaskAutoscaler"):
        opened = file.open(number)
        dask.add_autoscaler(opened.spec, cluster_of(opened, "For a running cluster use `oars adapt`.")[1])
    for number, found in clusters.values():
        file.become(number, KIND, found.spec)


def _convert_deployments(file: _File) -> None:
    """The Deployments of a Ray cluster and the Services of its head."""
    roles = {number: deployments.role_of(file.documents[number].data) for number in file.of_kind("Deployment")}
    heads = [number for number, role in roles.items() if role == "head"]
    workers = [number for number, role in roles.items() if role == "worker"]
    if len(heads) != 1 and (heads or workers):
        source = file.documents[(heads or workers)[0]].source
        message = f"{source} has {len(heads)} Deployments with `ray start --head`, and {len(workers)} with workers."
        raise SpecError(message, "Write the Deployments of one Ray cluster into one file.")
    for number in heads:
        deployment = file.documents[number].data
        services = [
            each for each in file.of_kind("Service") if deployments.selects(file.documents[each].data, deployment)
        ]
        head = file.open(number)
        spec = deployments.ray_deployments(
            head, [file.open(each) for each in workers], [file.open(each) for each in services]
        )
        file.become(number, KIND, spec, deployments.cluster_name(head))
