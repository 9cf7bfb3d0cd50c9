"""The CustomResourceDefinition, made from the models that check files, so that the two cannot disagree.

The schema refuses what it can see: wrong types, unknown fields, names, bounds, and changes that no running cluster can
follow. What only the model knows (units, engines) the operator tells in a condition. Needs Kubernetes 1.29 or newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from oars.places.kube.state.status_codec import LONGEST_LINE, MOST_CAUSES, MOST_LINES
from oars.spec import resources
from oars.spec.cluster import API_VERSION, KIND, ClusterSpec, Part

Schema = dict[str, Any]

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "computeclusters"
NAME = f"{PLURAL}.{GROUP}"
# ComputeJob has its place here and no definition yet: one that is served would let `kubectl apply` accept jobs that
# nobody runs, and one that is not served would only be in the way of its first real version.
JOB_KIND = "ComputeJob"
JOB_PLURAL = "computejobs"

MAX_GROUPS = 100
MAX_ENTRIES = 1000  # of any other map or list
MAX_NAME = 53  # room for "-head" and the like within the 63 of a DNS label
LABEL = "^[a-z]([-a-z0-9]{0,51}[a-z0-9])?$"
NAMESPACE = {"maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}  # as Kubernetes itself has it
_DURATION = r"^\s*(\d+(\.\d+)?|(\d+(\.\d+)?(ms|s|m|h|d))+)\s*$"

ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
# No number-or-string exists in a structural schema. Without a type each keyword guards the values it is about: numbers
# by bounds, strings by a pattern; objects and lists are refused by bounds that nothing meets, truth values by name.
_NEITHER = {"minProperties": 1, "maxProperties": 0, "minItems": 1, "maxItems": 0, "not": {"enum": [True, False]}}
_NUMBER_OR_STRING: Schema = {"x-kubernetes-preserve-unknown-fields": True, "minimum": 0, **_NEITHER}
_CPU = {"exclusiveMinimum": True, "maximum": resources.MAX_CPU, "pattern": r"^\s*\d*\.?\d+m?\s*$"}

QUANTITIES: Mapping[Any, Schema] = {
    resources.cpu: {**_NUMBER_OR_STRING, **_CPU},
    resources.duration: {**_NUMBER_OR_STRING, "maximum": int(resources.MAX_SECONDS), "pattern": _DURATION},
    resources.memory: {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "minimum": 2**20,
        "pattern": r"^\s*\d+(\.\d+)?\s*([kKmMgGtT]([iI]?[bB]?)?|[bB])?\s*$",
    },
}
# What `kubectl explain` adds, as it can name no such type.
EXAMPLES: Mapping[Any, str] = {
    resources.cpu: "Such as 2, 0.5 or 500m.",
    resources.duration: "Such as 90, 30s or 1h30m.",
    resources.memory: "Such as 512Mi or 4Gi.",
}
PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {"x-kubernetes-preserve-unknown-fields": True},
}
# Blocks that every cluster has, so that their defaults show in the object; the others show when somebody writes them.
SHOWN = ("head", "drain", "expose")

# By the path in the object: what the models say in code.
EXTRA: Mapping[str, Schema] = {
    "engine": {"minLength": 1, "maxLength": 63, "pattern": "^[A-Za-z][-_.A-Za-z0-9]*$"},
    # The same file may say it for the command line; nothing else makes sense here.
    "place": {"enum": ["kubernetes"], "default": "kubernetes", "description": "Always kubernetes."},
    "image": {"minLength": 1, "maxLength": 500},
    "workers": {
        "maxItems": MAX_GROUPS,
        "default": [{}],
        "description": "Worker groups. (The short form `workers: 3` of files is `replicas: 3` here.)",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    },
    "workers[].name": {
        "maxLength": MAX_NAME,
        "pattern": LABEL,
        "x-kubernetes-validations": [
            {"rule": "self != 'head'", "message": "'head' is the head's own name; call the group something else"}
        ],
    },
    "workers[].resources": {"additionalProperties": {"type": "number", "minimum": 0}},
    "namespace.name": NAMESPACE,
    "expose.host": {"maxLength": 253},
    "expose.ingressClass": {"maxLength": 253},
    "expose.tlsSecret": {"maxLength": 253},
    "environment.packages": {"maxItems": MAX_ENTRIES, "x-kubernetes-list-type": "atomic"},
}
# `replicas` of the cluster wins over that of the first group: a default in the group would contradict what holds.
NO_DEFAULT = ("workers[].replicas",)

RESERVED = {"namespace": "__namespace__"}  # words of CEL, as Kubernetes lets rules write them
# Path, what it is when it is not written, and why it cannot follow.
FIXED = (
    ("engine", "", "another engine is another cluster: delete this one and make a new one"),
    ("namespace.name", "", "a cluster cannot move: delete this one and make a new one"),
    ("namespace.create", False, "a cluster cannot move: delete this one and make a new one"),
    ("dask.protocol", "tls", "running clients and workers speak the old one: delete this cluster and make a new one"),
    ("ray.auth", "token", "running clients and workers use the old one: delete this cluster and make a new one"),
    ("mars.distribution", "xorbits", "the two cannot talk to each other: delete this cluster and make a new one"),
)


def compute_cluster() -> dict[str, Any]:
    """The CustomResourceDefinition of ComputeCluster."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": "oars"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["cc", "oars"],
                "categories": ["all", "oars"],
            },
            "versions": [_version()],
        },
    }


def _version() -> Schema:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Engine", "type": "string", "jsonPath": ".spec.engine"},
            {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
            {
                "name": "Ready",
                "type": "string",
                "jsonPath": ".status.ready",
                "description": "Workers, ready of wanted.",
            },
            {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {"openAPIV3Schema": _root()},
    }


def _root() -> Schema:
    name_rule = {
        "rule": f"size(self.metadata.name) <= {MAX_NAME} && self.metadata.name.matches('{LABEL}')",
        "message": f"metadata.name must have at most {MAX_NAME} lower-case letters, digits and '-', "
        "and start with a letter",
    }
    return {
        "type": "object",
        "description": "A Dask, Ray or Mars cluster.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema(),
            "status": status_schema(),
        },
        "x-kubernetes-validations": [name_rule],
    }


def spec_schema() -> Schema:
    """What a user may write."""
    clash = {
        "rule": "!has(self.workers) || !(self.workers.exists(g, g.name == 'default') && "
        "self.workers.exists(g, g.name == 'worker'))",
        "message": "groups 'default' and 'worker' would both have members called worker-0; rename one",
    }
    return {**_block(ClusterSpec, ""), "x-kubernetes-validations": [*map(_fixed, *zip(*FIXED, strict=True)), clash]}


def _fixed(path: str, default: object, why: str) -> Schema:
    """A field that must not change, whether it is written or left to its default."""
    new, old = (_value(root, path, default) for root in ("self", "oldSelf"))
    return {"rule": f"{new} == {old}", "message": f"{path} must not change; {why}"}


def _value(root: str, path: str, default: object) -> str:
    """In CEL: the value at a path, or what it means that nothing is there. (`.?` costs too much.)"""
    steps = [RESERVED.get(step, step) for step in path.split(".")]
    there = " && ".join(f"has({root}.{'.'.join(steps[:depth])})" for depth in range(1, len(steps) + 1))
    return f"({there} ? {root}.{'.'.join(steps)} : {'false' if default is False else repr(default)})"


def _block(model: type[Part], path: str) -> Schema:
    """A model as an object. Names are those of files."""
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
    if path in SHOWN:
        return {"default": {}}
    if path in NO_DEFAULT or not isinstance(value, bool | int | float | str):
        return {}
    return {"default": int(value) if isinstance(value, float) and value.is_integer() else value}


def _typed(found: Any, path: str) -> Schema:
    """The schema of a type as the models write them."""
    origin, inner = get_origin(found), get_args(found)
    if origin is Annotated:
        return _annotated(inner, path)
    if origin in (Union, UnionType):  # only `X | None`: left out means none
        return _typed(next(each for each in inner if each is not type(None)), path)
    if origin is Literal:
        return {"type": "string", "enum": list(inner)}
    if origin is tuple:
        return {"type": "array", "items": _typed(inner[0], f"{path}[]")}
    if origin is dict:
        values = PLAIN[inner[1]]
        return dict(ANYTHING) if inner[1] is Any else {"type": "object", "additionalProperties": dict(values)}
    return dict(PLAIN[found]) if found in PLAIN else _block(found, path)


def _annotated(inner: tuple[Any, ...], path: str) -> Schema:
    """Quantities are known by the function that reads them; bounds by their names."""
    for extra in inner[1:]:
        if (reader := getattr(extra, "func", None)) in QUANTITIES:
            return {"description": EXAMPLES[reader], **QUANTITIES[reader]}
    schema = _typed(inner[0], path)
    for extra in inner[1:]:
        for name, keyword in (("ge", "minimum"), ("le", "maximum")):
            if (bound := getattr(extra, name, None)) is not None:
                schema[keyword] = bound
    return schema


def status_schema() -> Schema:
    """What the operator reports."""
    text: Schema = {"type": "string"}
    count: Schema = {"type": "integer", "minimum": 0}
    lines = {"type": "array", "maxItems": MOST_LINES, "items": {**text, "maxLength": LONGEST_LINE}}
    cause = {"reason": text, "message": text, "hint": text, "lines": lines}
    group = {"type": "object", "required": ["name"], "properties": {"name": text, "wanted": count, "ready": count}}
    endpoints = {"client": text, "dashboard": text}
    return {
        "type": "object",
        "description": "What the operator reports.",
        "default": {"phase": "Pending"},  # until it does, which may be when all is done
        "properties": {
            "phase": _said("Pending, Starting, Ready, Degraded, Stopping, Stopped or Failed."),
            "reason": _said("In one word, why it is not Ready."),
            "message": _said("In a sentence, what is wrong and what to do."),
            "ready": _said("Workers, ready of wanted, such as 3/3."),
            "replicas": {**count, "description": "Workers of the first group; what autoscalers read."},
            "selector": _said("Selects the pods of the first group; what autoscalers read."),
            "observedGeneration": {**count, "format": "int64", "description": "Of the spec that this status is about."},
            "endpoints": {"type": "object", "description": "Addresses in the cluster.", "properties": endpoints},
            "groups": _listed(group, "name", "Each worker group."),
            "causes": {
                "type": "array",
                "description": "What is wrong, the gravest first: what to do about it, and the last lines of the log.",
                "maxItems": MOST_CAUSES,
                "items": {"type": "object", "required": ["reason", "message"], "properties": cause},
                "x-kubernetes-list-type": "atomic",
            },
            "conditions": _listed(_condition(), "type", "The same for programs, in the form all kinds share."),
            "notes": {**ANYTHING, "description": "What the operator must remember from one look to the next."},
            "mode": _said("Who runs the loop: operator."),
            "operator": _said("Identity and version of the operator that wrote this."),
        },
    }


def _said(description: str) -> Schema:
    return {"type": "string", "description": description}


def _listed(items: Schema, key: str, description: str) -> Schema:
    listed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return {"type": "array", "description": description, "items": items, **listed}


def _condition() -> Schema:
    """metav1.Condition, with the bounds that Kubernetes gives it."""
    return {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
        },
    }
