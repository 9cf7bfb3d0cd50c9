"""Manifests of other projects, converted and checked."""

from __future__ import annotations

from typing import Any

from oars import convert, engines
from oars.base.errors import SpecError
from oars.convert import Converted, Unmet
from oars.spec import load
from oars.spec.cluster import API_VERSION, KIND
from oars.spec.job import JOB_KIND
from oars.spec.load_job import build_job

__all__ = ["Converted", "Unmet", "convert_text", "one", "read_foreign"]

_KINDS = "MarsJob, RayCluster, RayJob, DaskCluster, DaskJob and Deployments of Ray"


def convert_text(content: str, source: str) -> Converted:
    """The manifests of a text as ours. Raises SpecError if there is none."""
    found = _checked(convert.convert(convert.read(content, source)))
    if not found.ours(KIND) and not found.ours(JOB_KIND):
        raise SpecError(f"{source} has no manifest that Oars converts.", f"It converts {_KINDS}.")
    return found


def read_foreign(content: str, source: str) -> Converted | None:
    """The manifests of a text as ours; None: it is a single one that needs no conversion."""
    documents = convert.read(content, source)
    return _checked(convert.convert(documents)) if convert.is_foreign(documents) else None


def one(found: Converted, kinds: tuple[str, ...], source: str) -> tuple[dict[str, Any], tuple[Unmet, ...]]:
    """The one object of the first of these kinds that there is, and what is not honoured: the other objects, too."""
    listed = next((each for kind in kinds if (each := found.ours(kind))), [])
    if len(listed) != 1:
        names = ", ".join(each["metadata"]["name"] for each in listed) or "none"
        raise SpecError(
            f"{source} must have one {' or '.join(kinds)}; it has {names}.",
            f"Run `oars convert {source}`, and apply its output with kubectl.",
        )
    others = [each for each in found.objects if each is not listed[0]]
    return listed[0], (*found.unmet, *(_left_out(each) for each in others))


def _left_out(data: dict[str, Any]) -> Unmet:
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    return Unmet(f"{data.get('kind')} {name}".strip(), "", "this command does not create it; create it with kubectl")


def _checked(found: Converted) -> Converted:
    """Raises SpecError if a ComputeCluster or ComputeJob is not valid."""
    for data in found.objects:
        if data.get("apiVersion") != API_VERSION:
            continue
        try:
            if data.get("kind") == JOB_KIND:
                build_job({}, option_model=engines.option_model, manifest=data)
            else:
                load.build(data, option_model=engines.option_model)
        except SpecError as error:
            name = data["metadata"]["name"] if isinstance(data.get("metadata"), dict) else ""
            raise SpecError(f"Converted {data['kind']} {name}: {error.message}", error.hint, error.details) from error
    return found
