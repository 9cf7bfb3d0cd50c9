"""Problems of a spec as one sentence each: position in the file, path, and the closest valid name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from oars.base.errors import SpecError
from oars.base.text import suggest
from oars.spec.cluster import ClusterSpec
from oars.spec.text import MAX_DEPTH, MAX_VALUES, Loc

_MAX_INTEGER = 2**63
_MAX_SENTENCE = 300
_ENGINE_OPTIONS = ("engineOptions", "engine_options")
_HIDDEN = ("engineOptions", "clusterName")  # files write them in another way

_SENTENCES = {
    "string_type": "must be text, not {value}{quote}",
    "string_unicode": "contains invalid characters",
    "int_type": "must be a whole number, not {value}",
    "int_parsing": "must be a whole number, not {value}",
    "int_parsing_size": "must be a smaller number",
    "int_from_float": "must be a whole number, not {value}",
    "float_type": "must be a number, not {value}",
    "float_parsing": "must be a number, not {value}",
    "finite_number": "must be a finite number, not {value}",
    "bool_type": "must be true or false, not {value}",
    "bool_parsing": "must be true or false, not {value}",
    "greater_than_equal": "must be at least {ge}, not {value}",
    "less_than_equal": "must be at most {le}, not {value}",
    "dict_type": "must be a mapping of names to values, not {value}",
    "tuple_type": "must be a list, not {value}",
    "list_type": "must be a list, not {value}",
    "model_type": "must be a mapping of fields, not {value}",
    "model_attributes_type": "must be a mapping of fields, not {value}",
}


@dataclass(frozen=True)
class Problem:
    """An error at a path."""

    loc: Loc
    sentence: str  # follows the path, without a full stop
    hint: str = ""


def raise_for(problems: Sequence[Problem], places: Mapping[Loc, str]) -> None:
    """Raise SpecError with the first problem as message and, if there are several, all as details."""
    if not problems:
        return
    sentences = [_sentence(problem, places) for problem in problems]
    hint = problems[0].hint or "Correct it and try again."
    raise SpecError(sentences[0], hint, tuple(sentences) if len(sentences) > 1 else ())


def path(loc: Loc) -> str:
    """('spec', 'workers', 0, 'cpu') → 'spec.workers[0].cpu'."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[\w-]+", part):
            text += f".{part}" if text else part
        else:
            text += f"[{_short(repr(part), 60)}]"
    return text


def unknown(loc: Loc, choices: Iterable[str]) -> Problem:
    """The problem of an unknown field."""
    names = sorted(choices)
    where = f"of {path(loc[:-1])}" if len(loc) > 1 else "at the top of a file"
    sentence = f"is not a known field{_nearest(str(loc[-1]), names)}"
    return Problem(loc, sentence, f"Known fields {where}: {', '.join(names)}.")


def in_plain(value: object, loc: Loc) -> list[Problem]:
    """The first value that YAML cannot represent, as a list of at most one problem."""
    pending: list[tuple[object, Loc]] = [(value, loc)]
    for _ in range(MAX_VALUES):
        if not pending:
            return []
        value, loc = pending.pop()
        sentence = _plain_problem(value)
        if sentence or len(loc) > MAX_DEPTH:
            return [Problem(loc, sentence or f"is nested more than {MAX_DEPTH} levels deep")]
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    return [Problem(loc, f"has the key {_show(key)}, which is not text; put it in quotes")]
            pending += [(child, (*loc, key)) for key, child in value.items()]
        elif isinstance(value, list | tuple):
            pending += [(child, (*loc, index)) for index, child in enumerate(value)]
    return [Problem((), f"the spec has more than {MAX_VALUES} values")]


def in_block(error: ValidationError, block: Any, model: type[BaseModel], loc: Loc) -> list[Problem]:
    """pydantic's errors in the block at `loc` as problems; paths as the user wrote them."""
    return [_translated(dict(found), block, model, loc) for found in error.errors(include_url=False)]


def fields(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """Field names of a model, as in files, with the model of each block or None."""
    names = {info.alias or name: _model_in(info.annotation) for name, info in model.model_fields.items()}
    return {name: block for name, block in names.items() if name not in _HIDDEN}


def _sentence(problem: Problem, places: Mapping[Loc, str]) -> str:
    parents = (problem.loc[:length] for length in range(len(problem.loc), -1, -1))
    where = next((places[parent] for parent in parents if parent in places), "")
    separator = "" if not problem.loc or re.match(r"(is|has|must|contains)\b", problem.sentence) else ":"
    text = f"{path(problem.loc)}{separator} {problem.sentence}".strip()
    text = _short((f"{where}: " if where else "") + text.rstrip("."), _MAX_SENTENCE)
    return text if text.endswith("?") else f"{text}."


def _nearest(word: str, choices: Iterable[str]) -> str:
    return suggest(word, choices).replace(" Did you", "; did you")


def _plain_problem(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        return "is too large a number"
    if isinstance(value, str) and (re.search("[\x00\ud800-\udfff]", value)):
        return "contains a NUL or half a surrogate pair"
    if value is None or isinstance(value, bool | int | float | str | Mapping | list | tuple):
        return ""
    return f"must be text, a number, true, false, a list or a mapping, not {type(value).__name__}"


def _translated(found: dict[str, Any], block: Any, model: type[BaseModel], at: Loc) -> Problem:
    kind, value = found["type"], found["input"]
    inner = _as_written(found["loc"], block)
    if model is ClusterSpec and inner and inner[0] in _ENGINE_OPTIONS:
        inner = (block["engine"], *inner[1:])
    loc: Loc = (*at, *inner)
    if kind == "extra_forbidden":
        is_top = model is ClusterSpec and len(inner) == 1
        own = {str(block["engine"])} if is_top and "engine" in block else set()
        return unknown(loc, {*fields(_model_at(model, inner[:-1])), *own})
    if kind == "missing":
        infos = _model_at(model, inner[:-1]).model_fields.values()
        description = next((info.description for info in infos if info.alias == inner[-1]), None)
        return Problem(loc, "is missing", f"Add it: {description or 'a value is needed there.'}")
    context: dict[str, Any] = found.get("ctx", {})
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        nearest = _nearest(str(value), choices)
        return Problem(loc, f"is {_show(value)}, which is not one of {', '.join(choices)}{nearest}")
    if value is None:
        return Problem(loc, "is empty; set it or remove it")
    if kind in ("tuple_type", "list_type") and loc[-1:] == ("workers",):
        return Problem(loc, f"must be a whole number or a list of groups, not {_show(value)}")
    if kind == "value_error":
        return Problem(loc, str(context["error"]))
    quote = "; put it in quotes" if isinstance(value, bool | int | float) else ""
    sentence = _SENTENCES.get(kind, "must not be {value}")
    return Problem(loc, sentence.format(**{**context, "value": _show(value), "quote": quote}))


def _as_written(loc: Loc, spec: Any) -> Loc:
    """The part of the path that exists in the user's data: `workers: -1` has no `replicas`. Its last part may be
    missing."""
    for index, part in enumerate(loc):
        try:
            spec = spec[part]
        except (KeyError, IndexError, TypeError):
            return loc[: index + 1] if isinstance(spec, Mapping) and isinstance(part, str) else loc[:index]
    return loc


def _model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel]:
    for part in loc:
        model = (fields(model).get(part) or model) if isinstance(part, str) else model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model_in, get_args(annotation)) if model), None)


def _show(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else _short(repr(value), 60)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 40]} … {text[-37:]}"
