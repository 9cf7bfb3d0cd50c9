"""Load a validated job spec from YAML, mappings and options, and dump it. All errors are SpecErrors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from oars.base.errors import SpecError
from oars.spec import edit, text
from oars.spec.cluster import API_VERSION, KIND
from oars.spec.job import JOB_KIND, MAX_ARCHIVE, MAX_SCHEDULE_NAME, JobSpec, check_job_name
from oars.spec.load import NO_OVERRIDES, check_header, check_packages_in_image, copy_plain, header_problems
from oars.spec.options import OptionModel, check_blocks
from oars.spec.problems import Problem, in_block, in_plain, raise_for
from oars.spec.text import Loc

_HINT = f"A file starts with apiVersion: {API_VERSION} and kind: {JOB_KIND}, and has the job under spec."
_COMMAND_HINT = "Example: oars submit -f cluster.yaml -- python train.py."
_MAPS = ("labels", "annotations")
RESERVED = "oars.dev/"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # of the object that kubectl wrote
_EMPTY: Mapping[str, Any] = MappingProxyType({"apiVersion": API_VERSION, "kind": JOB_KIND, "spec": {}})


@dataclass(frozen=True)
class JobMetadata:
    """Labels and annotations of a ComputeJob, which other programs read. They mean nothing on this machine."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


NO_METADATA = JobMetadata()


@dataclass(frozen=True)
class JobManifest:
    """A job spec and, if given, the name of the job and its namespace."""

    name: str | None
    spec: JobSpec
    namespace: str | None = None
    metadata: JobMetadata = NO_METADATA


def load_job_text(
    content: str,
    source: str,
    fields: Mapping[str, Any],
    sets: Sequence[str] = (),
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    option_model: OptionModel | None = None,
) -> JobManifest:
    """Load a ComputeJob, or a ComputeCluster as the cluster of a job. fields: of the job's spec; overrides: of its
    cluster."""
    document = text.read(content, source)
    if not isinstance(document.data, dict):
        raise SpecError(f"{source} is {'empty' if document.data is None else 'not a mapping'}.", _HINT)
    return _finish(document.data, document.places, fields, sets, overrides, option_model)


def build_job(
    fields: Mapping[str, Any],
    sets: Sequence[str] = (),
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    option_model: OptionModel | None = None,
    manifest: Mapping[str, Any] = _EMPTY,
) -> JobManifest:
    """Load from a mapping with the fields of the spec, and a manifest that they complete."""
    return _finish(manifest, {}, fields, sets, overrides, option_model)


def _as_job(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A ComputeCluster as the cluster of a job; a job as it is."""
    if data.get("kind") != KIND or not isinstance(data.get("spec"), dict):
        return data
    metadata = data.get("metadata") or {}
    if isinstance(metadata, Mapping):
        metadata = {key: value for key, value in metadata.items() if key != "name"}
    return {**data, "kind": JOB_KIND, "metadata": metadata, "spec": {"cluster": data["spec"]}}


def check_on_kubernetes(spec: JobSpec) -> None:
    """Raises SpecError for what a job on Kubernetes cannot have."""
    if spec.working_dir.size > MAX_ARCHIVE:
        raise SpecError(
            f"workingDir.size is {spec.working_dir.size}: on Kubernetes files have at most {MAX_ARCHIVE} bytes when "
            "packed.",
            "Let `oars submit` fill in workingDir.",
        )
    if spec.cluster is not None:
        check_packages_in_image(spec.cluster, "cluster.")


def check_schedule_name(name: str, spec: JobSpec) -> None:
    """Raises SpecError if the names of the runs would be too long."""
    if spec.schedule is not None and len(name) > MAX_SCHEDULE_NAME:
        message = f"{name!r} is too long for a job with a schedule: its runs have the minute in their names"
        raise SpecError(f"{message}.", f"Use at most {MAX_SCHEDULE_NAME} characters.")


def dump_job(name: str | None, spec: JobSpec, metadata: JobMetadata = NO_METADATA) -> dict[str, Any]:
    """A manifest from which `load_job_text` restores the job; defaults are omitted."""
    fields = {"name": name, "labels": dict(metadata.labels), "annotations": dict(metadata.annotations)}
    fields = {key: value for key, value in fields.items() if value}
    body = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"apiVersion": API_VERSION, "kind": JOB_KIND, **({"metadata": fields} if fields else {}), "spec": body}


def _finish(
    given: Mapping[Any, Any],
    places: dict[Loc, str],
    fields: Mapping[str, Any],
    sets: Sequence[str],
    overrides: Mapping[str, Any],
    option_model: OptionModel | None,
) -> JobManifest:
    raise_for(in_plain(given, ()), places)
    data = _as_job(given)
    check_header(data, places, JOB_KIND, _HINT, "the cluster and the entrypoint")
    problems = header_problems(data, ("name", "namespace", *_MAPS))
    metadata, wrong = _metadata(data)
    problems += wrong
    spec = copy_plain(data["spec"]) | {name: value for name, value in fields.items() if value is not None}
    for assignment in sets:
        edit.apply_set(assignment, spec, places)
    if data is not given and "entrypoint" not in spec:
        raise SpecError("No command is given, and the file is a cluster, not a job.", _COMMAND_HINT)
    _override_cluster(spec, overrides)
    raise_for(in_plain(spec, ("spec",)), places)
    cluster = spec.get("cluster")
    if option_model is not None and isinstance(cluster, dict) and "name" not in cluster:
        found = check_blocks(cluster, option_model)
        problems += [Problem(("spec", "cluster", *each.loc[1:]), each.sentence, each.hint) for each in found]
    checked: JobSpec | None = None
    try:
        checked = JobSpec.model_validate(spec)
    except ValidationError as error:
        problems += in_block(error, spec, JobSpec, ("spec",))
    except (ArithmeticError, RecursionError):
        problems.append(Problem(("spec",), "contains a number that is too large"))
    raise_for(problems, places)
    assert checked is not None
    return JobManifest(_job_name(data), checked, data.get("metadata", {}).get("namespace"), metadata)


def _metadata(data: Mapping[Any, Any]) -> tuple[JobMetadata, list[Problem]]:
    found: dict[str, dict[str, str]] = {}
    problems = []
    given = data.get("metadata")
    for name in _MAPS:
        texts = (given.get(name) if isinstance(given, Mapping) else None) or {}
        if not isinstance(texts, Mapping):
            problems.append(Problem(("metadata", name), "must be a mapping of texts"))
            continue
        for key, value in texts.items():
            if not isinstance(value, str):
                problems.append(Problem(("metadata", name, key), "must be text; put it in quotes"))
            elif str(key).startswith(RESERVED):
                problems.append(Problem(("metadata", name, key), f"belongs to Oars, as all that begin with {RESERVED}"))
        found[name] = {str(key): value for key, value in texts.items() if key != LAST_APPLIED}
    return JobMetadata(**found), problems


def _override_cluster(spec: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    given = {name: value for name, value in overrides.items() if value is not None}
    if not given:
        return
    cluster = spec.setdefault("cluster", {})
    if isinstance(cluster, dict) and "name" not in cluster:
        edit.apply_overrides(given, cluster, {})
    elif given.keys() - {"place"}:
        field = next(iter(given.keys() - {"place"}))
        message = f"{field} is for a new cluster, but the job uses an existing one."
        raise SpecError(message, f"Omit {field}, or omit the name of the cluster.")


def _job_name(data: Mapping[str, Any]) -> str | None:
    name = data.get("metadata", {}).get("name")
    if name is None:
        return None
    try:
        return check_job_name(name)
    except ValueError as error:
        raise SpecError(f"metadata.name: {error}.") from error
