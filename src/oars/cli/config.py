"""`oars config show`: show the settings in effect and their sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import click

from oars.base.settings import Settings
from oars.cli.output import Column, emit, output_option, table


@dataclass(frozen=True)
class Setting:
    name: str
    value: str
    source: str
    meaning: str


COLUMNS = (
    Column[Setting]("SETTING", lambda s: s.name),
    Column[Setting]("VALUE", lambda s: s.value),
    Column[Setting]("FROM", lambda s: s.source),
    Column[Setting]("MEANING", lambda s: s.meaning),
)


@click.group()
def config() -> None:
    """Show the settings in effect."""


@config.command("show")
@output_option
def show_config(output: str) -> None:
    """Show every setting with its value and the environment variable that sets it."""
    found = settings(os.environ)
    names = [setting.name for setting in found]
    emit(output, [asdict(each) for each in found], names, lambda wide: table(found, COLUMNS, wide))


def settings(environ: Mapping[str, str]) -> list[Setting]:
    now = Settings.from_environ(environ)
    state = _source(environ, "OARS_STATE_DIR", "XDG_STATE_HOME")
    cache = _source(environ, "OARS_CACHE_DIR", "XDG_CACHE_HOME")
    return [
        Setting("state_dir", str(now.state_dir), state, "clusters: OARS_STATE_DIR"),
        Setting("cache_dir", str(now.cache_dir), cache, "environments: OARS_CACHE_DIR"),
        _switch(environ, "debug", "OARS_DEBUG", "tracebacks of unexpected errors"),
        _switch(environ, "no_color", "NO_COLOR", "no colours"),
    ]


def _switch(environ: Mapping[str, str], name: str, variable: str, meaning: str) -> Setting:
    value = "yes" if environ.get(variable) else "no"
    return Setting(name, value, _source(environ, variable), f"{meaning}: {variable}")


def _source(environ: Mapping[str, str], *variables: str) -> str:
    """The variable that Settings reads; variables are in order of precedence."""
    return next((variable for variable in variables if environ.get(variable)), "default")
