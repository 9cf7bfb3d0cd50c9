"""The engine registry.

Third parties add an engine with an entry point in the group `oars.engines`:

    [project.entry-points."oars.engines"]
    toy = "toy_engine:engine"
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, cast

from oars.base.errors import OarsError, SpecError
from oars.base.text import suggest
from oars.engines.base import Engine, Session

if TYPE_CHECKING:  # session.py also runs in environments without pydantic
    from oars.spec.cluster import Part

GROUP = "oars.engines"
BUILT_IN = {
    "dask": "oars.engines.dask:engine",
    "mars": "oars.engines.mars:engine",
    "ray": "oars.engines.ray:engine",
}


def names() -> list[str]:
    """All engines that a spec can name."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


@cache
def get(name: str) -> Engine:
    """The engine of that name, imported on first use."""
    point = _find(name)
    try:
        return cast(Engine, point.load())
    except (ImportError, AttributeError) as error:
        raise OarsError(
            f"The engine plug-in {name!r} ({point.value}) cannot be loaded: {error}.",
            "Reinstall or update the package that provides it.",
        ) from error


def session(engine: Engine) -> Session:
    """The user's part of an engine. Its functions import the engine when they are called."""
    module: ModuleType = importlib.import_module(engine.session)  # noqa: TID251 (this is a registry)
    return cast(Session, module)


def option_model(name: str) -> type[Part] | None:
    """The model of the block that a spec may have under this name; None if no engine has the name, or it has none."""
    return get(name).options_model() if name in BUILT_IN or name in names() else None


def _find(name: str) -> EntryPoint:
    if name in BUILT_IN:
        return EntryPoint(name=name, group=GROUP, value=BUILT_IN[name])
    for point in entry_points(group=GROUP, name=name):
        return point
    raise SpecError(f"There is no engine {name!r}.{suggest(name, names())}", f"Use one of: {', '.join(names())}.")
