"""Hints that say how a Python gets Mars. Oars' other modules are not imported: this Python may lack what they need."""

from __future__ import annotations

import json
import shlex
from importlib import metadata


def hint(*distributions: str) -> str:
    """How to get one of these distributions beside Oars."""
    ways = {
        "xorbits": "For xorbits run `pip install 'oars[mars]'` here.",
        # There are wheels for Python 3.7 to 3.10 only, and the source needs build tools of that time.
        "pymars": f"For pymars run the program with the Python that `{pymars_command()}` prints.",
    }
    return " ".join(ways[each] for each in distributions)


def pymars_command() -> str:
    """The command that builds a Python with pymars and this Oars, and prints its path."""
    words = ("env", "build", "--engine", "mars", "--set", "mars.distribution=pymars", "--package", _requirement())
    return shlex.join(["oars", *words])


def _requirement() -> str:
    """What pip installs this Oars from: a package index, or the URL of this installation."""
    try:
        text = metadata.distribution("oars").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # only on the path
        text = None
    if not text:
        return "oars"
    origin = json.loads(text)
    if vcs := origin.get("vcs_info"):
        return f"oars @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
    return f"oars @ {origin['url']}"
