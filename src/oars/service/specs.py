"""Specs from files, text and options, with the options of the installed engines."""

from __future__ import annotations

from functools import partial

from oars import engines
from oars.client.cluster import generate_name
from oars.spec import load
from oars.spec.load import Manifest

__all__ = ["Manifest", "from_data", "from_file", "from_text", "generate_name", "read_text"]

read_text = load.read_text
from_text = partial(load.load_text, option_model=engines.option_model)
from_file = partial(load.load_file, option_model=engines.option_model)
from_data = partial(load.build, option_model=engines.option_model)
