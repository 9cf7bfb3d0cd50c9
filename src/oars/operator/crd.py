"""The CustomResourceDefinition, generated from the models of the spec.

The schema rejects wrong types, unknown fields, invalid names, values out of bounds, and changes of immutable fields.
The operator reports what only the models can check (units, engines) in a condition. Requires Kubernetes 1.29 or newer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

from oars import engines
from oars.places.kube.render.changes import IMMUTABLE
from oars.spec import cron, resources
from oars.spec.cluster import API_VERSION, MAX_SPILL_PATHS, ClusterSpec, Part
from oars.spec.job import MAX_ARCHIVE, JobSpec

Schema = dict[str, Any]

TEMPLATE = Path(__file__).with_name("crd.yaml")
JOB_TEMPLATE = Path(__file__).with_name("job_crd.yaml")
GROUP = API_VERSION.split("/")[0]
PLURAL = "computeclusters"
NAME = f"{PLURAL}.{GROUP}"
JOB_PLURAL = "computejobs"
JOB_NAME = f"{JOB_PLURAL}.{GROUP}"
MARS_JOB_TEMPLATE = Path(__file__).with_name("marsjob_crd.yaml")
MARS_JOB_GROUPS = ("training.kubedl.io", "kubedl.io")
MARS_JOB_PLURAL = "marsjobs"
# The API server lists groups in alphabetical order, and kubectl takes the first resource of a name, here the older one.
# So only the present group has the singular `marsjob`, which KubeDL's page uses.
OLD_MARS_JOB = "oldmarsjob"
MARS_JOB_NAMES = tuple(f"{MARS_JOB_PLURAL}.{group}" for group in MARS_JOB_GROUPS)
MARS_JOB_POLICY = f"{MARS_JOB_PLURAL}.{GROUP}"  # the admission policy that checks their authors

MAX_GROUPS = 100
MAX_ENTRIES = 1000  # of other maps and lists
MAX_NAME = 53  # leaves room for suffixes such as "-head" in a DNS label of 63 characters
LABEL = "^[a-z]([-a-z0-9]{0,51}[a-z0-9])?$"
NAMESPACE = {"maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}  # as in Kubernetes
_DURATION = r"^\s*(\d+(\.\d+)?|(\d+(\.\d+)?(ms|s|m|h|d))+)\s*$"

ANY_OBJECT: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
# A structural schema has no number-or-string type. Without a type, bounds apply to numbers and the pattern to strings.
# Contradictory bounds reject objects and lists, and the enum rejects booleans.
_NO_OTHER_TYPE = {"minProperties": 1, "maxProperties": 0, "minItems": 1, "maxItems": 0, "not": {"enum": [True, False]}}
_NUMBER_OR_STRING: Schema = {
    "x-kubernetes-preserve-unknown-fields": True,
    "minimum": 0,
    "maxLength": resources.MAX_LENGTH,
    **_NO_OTHER_TYPE,
}
_MEMORY: Schema = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "minimum": 2**20,
    "maxLength": resources.MAX_LENGTH,
    "pattern": r"^\s*\d+(\.\d+)?\s*([kKmMgGtT]([iI]?[bB]?)?|[bB])?\s*$",
}
_CPU = {"exclusiveMinimum": True, "maximum": resources.MAX_CPU, "pattern": r"^\s*\d*\.?\d+m?\s*$"}

_TIME = {**_NUMBER_OR_STRING, "maximum": int(resources.MAX_SECONDS), "pattern": _DURATION}
QUANTITIES: Mapping[Any, Schema] = {
    resources.cpu: {**_NUMBER_OR_STRING, **_CPU},
    resources.duration: _TIME,
    resources.limit: _TIME,
    resources.memory: _MEMORY,
    resources.cache: {**_MEMORY, "pattern": _MEMORY["pattern"].replace("|[bB])", "|[bB]|%)")},
}
# Appended to descriptions, because `kubectl explain` shows no type for quantities.
EXAMPLES: Mapping[Any, str] = {
    resources.cpu: "For example 2, 0.5 or 500m.",
    resources.duration: "For example 90, 30s or 1h30m.",
    resources.limit: "For example 30m or 8h.",
    resources.memory: "For example 512Mi or 4Gi.",
    resources.cache: "For example 40% or 4Gi.",
}
SCALARS: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {"x-kubernetes-preserve-unknown-fields": True},
}
# Blocks whose defaults are stored in the object even if the user omits the block.
DEFAULTED_BLOCKS = ("head", "drain", "expose")

# CEL: the name of a group. List items have no defaults: kubectl would send the whole list at every apply.
_NAME_OF = "(has({0}.name) ? {0}.name : 'default')"
_GROUP_RULES = [
    {
        "rule": "size(self) == 0 || !has(self[0].replicas)",
        "message": "workers[0].replicas: write the number of workers of the first group in spec.replicas, "
        "which kubectl scale and autoscalers use",
    },
    {
        "rule": f"self.all(a, self.exists_one(b, {_NAME_OF.format('a')} == {_NAME_OF.format('b')}))",
        "message": "two worker groups have the same name (the default name is 'default'); rename one",
    },
    {
        "rule": f"!(self.exists(g, {_NAME_OF.format('g')} == 'default') && "
        f"self.exists(g, {_NAME_OF.format('g')} == 'worker'))",
        "message": "the members of groups 'default' and 'worker' would have the same names; rename one group",
    },
]

# Schemas by path, for checks that the models do in code.
EXTRA: Mapping[str, Schema] = {
    "engine": {"minLength": 1, "maxLength": 63, "pattern": "^[A-Za-z][-_.A-Za-z0-9]*$"},
    # Files for the command line may contain it.
    "place": {"enum": ["kubernetes"], "default": "kubernetes", "description": "Always kubernetes."},
    "image": {"minLength": 1, "maxLength": 500},
    "workers": {
        "maxItems": MAX_GROUPS,
        "description": "Worker groups. The number of workers of the first one is spec.replicas.",
        "x-kubernetes-list-type": "atomic",
        "x-kubernetes-validations": _GROUP_RULES,
    },
    "workers[].replicas": {"description": "Number of workers. Not allowed in the first group: use spec.replicas."},
    "replicas": {
        "default": 1,  # /scale requires a value
        "description": "Number of workers of the first group. kubectl scale and autoscalers read and write it.",
    },
    "workers[].name": {
        "maxLength": MAX_NAME,
        "pattern": LABEL,
        "x-kubernetes-validations": [
            {"rule": "self != 'head'", "message": "'head' is reserved for the head; rename the group"}
        ],
    },
    "workers[].resources": {"additionalProperties": {"type": "number", "minimum": 0}},
    "workers[].spill.paths": {
        "maxItems": MAX_SPILL_PATHS,
        "items": {"type": "string", "maxLength": 1000, "pattern": "^/"},
        "x-kubernetes-list-type": "atomic",
    },
    "workers[].spill.medium": {"maxLength": 253},
    "namespace.name": NAMESPACE,
    "expose.host": {"maxLength": 253},
    "expose.ingressClass": {"maxLength": 253},
    "expose.tlsSecret": {"maxLength": 253},
    "job.workingDir.size": {"maximum": MAX_ARCHIVE},
    "job.schedule.cron": {"maxLength": cron.MAX_LENGTH},
    "environment.packages": {"maxItems": MAX_ENTRIES, "x-kubernetes-list-type": "atomic"},
}
CEL_RESERVED = {"namespace": "__namespace__"}  # escaped in CEL rules
# Defaults of immutable fields of the spec; those of engine options are in their models.
IMMUTABLE_DEFAULTS: Mapping[str, object] = {"engine": "", "namespace.name": "", "namespace.create": False}


def compute_cluster(engine_names: Iterable[str] | None = None) -> dict[str, Any]:
    """The CustomResourceDefinition, with the options of these engines; None: all that are installed."""
    definition: Schema = yaml.safe_load(TEMPLATE.read_text())
    (version,) = definition["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec_schema(engine_names)
    return definition


def compute_job() -> dict[str, Any]:
    """The CustomResourceDefinition of ComputeJob."""
    definition: Schema = yaml.safe_load(JOB_TEMPLATE.read_text())
    (version,) = definition["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] = job_schema()
    return definition


def mars_jobs() -> list[dict[str, Any]]:
    """KubeDL's CustomResourceDefinitions of MarsJob, one for each of its groups."""
    return [_mars_job(group) for group in MARS_JOB_GROUPS]


def _mars_job(group: str) -> dict[str, Any]:
    definition: Schema = yaml.safe_load(MARS_JOB_TEMPLATE.read_text().replace("GROUP", group))
    (version,) = definition["spec"]["versions"]
    if group != MARS_JOB_GROUPS[0]:
        definition["spec"]["names"]["singular"] = OLD_MARS_JOB
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    quantity = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    policy = {
        "type": "object",
        "description": "Memory of the workers. Both spellings of the field are accepted.",
        "properties": {
            "plasmaStore": {"type": "string"},
            "lockFreeFileIO": {"type": "boolean"},
            "spillDirs": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_ENTRIES},
            "workerCachePercentage": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 100},
            "workerCacheSize": quantity,
        },
    }
    spec["workerMemoryTuningPolicy"] = spec["memoryTuningPolicy"] = policy
    return definition


def job_schema() -> Schema:
    """The schema of a job's spec. The operator checks the cluster with the models, as its schema would be repeated."""
    schema = _block(JobSpec, "job")
    properties = schema["properties"]
    del properties["clusterName"]
    properties["cluster"] = {**ANY_OBJECT, "description": properties["cluster"]["description"]}
    entry = {"x-kubernetes-preserve-unknown-fields": True, "description": properties["entrypoint"]["description"]}
    properties["entrypoint"] = entry
    codes = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    for field in ("exitCodes", "never"):
        properties["retryOn"]["properties"][field] |= {"items": codes, "maxItems": MAX_ENTRIES}
    for field in ("entrypoint", "secrets", "env"):
        properties[field].pop("default", None)
    message = "schedule cannot be added or removed: create another job"
    rules = [{"rule": "has(self.schedule) == has(oldSelf.schedule)", "message": message}]
    return {**schema, "required": ["cluster", "entrypoint"], "x-kubernetes-validations": rules}


def spec_schema(engine_names: Iterable[str] | None = None) -> Schema:
    """The schema of `spec`."""
    models = option_models(engine_names)
    schema = _block(ClusterSpec, "")
    del schema["properties"]["engineOptions"]
    schema["properties"] |= {name: _block(model, name) for name, model in models.items()}
    return {**schema, "x-kubernetes-validations": [_unchanged(*field) for field in immutable_fields(models)]}


def option_models(engine_names: Iterable[str] | None = None) -> dict[str, type[Part]]:
    """Engine name → the model of its block."""
    models = {name: engines.option_model(name) for name in engine_names or engines.names()}
    return {name: model for name, model in models.items() if model is not None}


def immutable_fields(models: Mapping[str, type[Part]]) -> Iterator[tuple[str, object, str]]:
    """Path, default and reason of each field that a running cluster cannot change."""
    for path, reason in IMMUTABLE.items():
        yield path, IMMUTABLE_DEFAULTS[path], reason
    for engine, model in models.items():
        defaults = model().model_dump(mode="json", by_alias=True)
        for name, reason in engines.get(engine).immutable_options.items():
            yield f"{engine}.{name}", defaults[name], reason


def _unchanged(path: str, default: object, reason: str) -> Schema:
    """The rule for an immutable field, whether it is set or has its default."""
    new, old = (_cel_value(root, path, default) for root in ("self", "oldSelf"))
    message = f"{path} cannot change: {reason}. Delete this cluster and create a new one"
    return {"rule": f"{new} == {old}", "message": message}


def _cel_value(root: str, path: str, default: object) -> str:
    """CEL: the value at a path, or the default. (The operator `.?` exceeds the cost budget.)"""
    steps = [CEL_RESERVED.get(step, step.replace("-", "__dash__")) for step in path.split(".")]
    exists = " && ".join(f"has({root}.{'.'.join(steps[:depth])})" for depth in range(1, len(steps) + 1))
    return f"({exists} ? {root}.{'.'.join(steps)} : {json.dumps(default)})"


def _block(model: type[Part], path: str) -> Schema:
    """The object schema of a model, with the field names of files."""
    properties: Schema = {}
    required = []
    for name, field in model.model_fields.items():
        alias = field.alias or name
        where = f"{path}.{alias}" if path else alias
        whole = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        schema = _typed(whole, where)
        if field.description:
            example = f" {schema['description']}" if schema.get("description") in EXAMPLES.values() else ""
            schema["description"] = field.description + example
        schema |= _default(field.default, where)
        properties[alias] = schema | EXTRA.get(where, {})
        if field.is_required():
            required.append(alias)
    described = {"type": "object", "description": (model.__doc__ or "").strip().splitlines()[0]}
    return {**described, "properties": properties} | ({"required": required} if required else {})


def _default(value: object, path: str) -> Schema:
    if path in DEFAULTED_BLOCKS:
        return {"default": {}}
    if "[]" in path or not isinstance(value, bool | int | float | str):
        return {}
    return {"default": int(value) if isinstance(value, float) and value.is_integer() else value}


def _typed(found: Any, path: str) -> Schema:
    """The schema of a type annotation."""
    origin, inner = get_origin(found), get_args(found)
    if origin is Annotated:
        return _annotated(inner, path)
    if origin in (Union, UnionType):  # only `X | None`
        return _typed(next(each for each in inner if each is not type(None)), path)
    if origin is Literal:
        return {"type": "string", "enum": list(inner)}
    if origin in (tuple, list):
        return {"type": "array", "items": _typed(inner[0], f"{path}[]")}
    if origin is dict:
        return (
            dict(ANY_OBJECT) if inner[1] is Any else {"type": "object", "additionalProperties": _typed(inner[1], path)}
        )
    if isinstance(found, type) and issubclass(found, Part):
        return _block(found, path)
    return dict(SCALARS.get(found, SCALARS[Any]))  # other types of plug-in options are checked by the operator


def _annotated(inner: tuple[Any, ...], path: str) -> Schema:
    """A quantity is recognized by its validator function."""
    readers = (getattr(extra, "func", None) for extra in inner[1:])
    reader = next((each for each in readers if each in QUANTITIES), None)
    schema = {"description": EXAMPLES[reader], **QUANTITIES[reader]} if reader else _typed(inner[0], path)
    for extra in inner[1:]:
        for name, keyword in (("ge", "minimum"), ("le", "maximum")):
            if (bound := getattr(extra, name, None)) is not None:
                schema[keyword] = bound
    return schema
