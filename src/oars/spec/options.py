"""Engine options: the block that a spec has under the name of its engine, such as `dask: {protocol: tcp}`.

A spec stores the block as plain data; the engine's model checks it. Callers pass the models in: this package does not
know engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_args

from pydantic import ValidationError

from oars.spec import resources
from oars.spec.cluster import ClusterSpec, Part
from oars.spec.problems import Problem, in_block, raise_for

OptionModel = Callable[[str], type[Part] | None]
"""Name of a block → its model; None if no engine of that name has one."""

P = TypeVar("P", bound=Part)


def parse_options(model: type[P], spec: ClusterSpec) -> P:
    """The options of the spec's engine. Raises SpecError."""
    try:
        return model.model_validate(spec.engine_options)
    except ValidationError as error:
        raise_for(in_block(error, spec.engine_options, model, ("spec", spec.engine)), {})
        raise


def check_blocks(spec: dict[str, Any], option_model: OptionModel) -> list[Problem]:
    """Check the blocks of engines in a spec and normalize that of its own engine, in place.

    A spec may have blocks for other engines; they are checked and deleted."""
    problems: list[Problem] = []
    engine = spec.get("engine")
    for name in sorted(spec.keys() - _field_names()):
        model = option_model(name)
        if model is None:
            continue
        block = spec.pop(name)
        try:
            options = model.model_validate(block)
        except ValidationError as error:
            problems += in_block(error, block, model, ("spec", name))
            continue
        if name == engine:
            spec[name] = _normalized(options)
    if not isinstance(engine, str):
        return problems
    has_model = option_model(engine) is not None
    if has_model and spec.get("options"):
        loc, hint = ("spec", "options"), f"Write the options of {engine} under spec.{engine}."
        problems.append(Problem(loc, f"is not read by the engine {engine!r}", hint))
    elif not has_model and engine in spec and engine not in _field_names():
        loc, hint = ("spec", engine), "Write its options under spec.options."
        problems.append(Problem(loc, f"is not a known field: the engine {engine!r} has no block", hint))
        del spec[engine]
    return problems


def _normalized(options: Part) -> dict[str, Any]:
    """Options that differ from their defaults; memory in the largest unit that is exact."""
    data = options.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for name, field in type(options).model_fields.items():
        alias = field.alias or name
        if isinstance(data.get(alias), int) and _is_memory(Annotated[field.annotation, *field.metadata, None]):
            data[alias] = resources.exact_memory(data[alias])
    return data


def _is_memory(annotation: Any) -> bool:
    inner = get_args(annotation)
    return any(getattr(each, "func", None) is resources.memory or _is_memory(each) for each in inner)


def _field_names() -> set[str]:
    fields = ClusterSpec.model_fields
    return {*fields, *(field.alias or "" for field in fields.values())}
