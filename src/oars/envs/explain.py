"""uv's output → an error with a hint. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from oars.base.errors import Denied, EnvironmentFailed, OarsError
from oars.envs.cache import no_space

_NOISE = re.compile(
    r"\s*$|\s*[+~-] |(Using|Resolved|Downloading|\s+Downloaded|Prepared|Installed|Bytecode|Building|\s+Built) "
)
_SPELLING = "Check the spelling and the version in `packages`; set UV_INDEX to use your own package index."
_MAX_LINES = 8

# In this order: causes come before their consequences.
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"Failed to parse: `([^`]*)`", "{0!r} is not a package requirement.", "Write it like pandas or numpy>=2."),
    (
        r"network was disabled|Failed to fetch|error sending request|dns error|[Cc]onnection (refused|reset)"
        r"|Network is unreachable|operation timed out|Failed to download|Could not connect",
        "The package index cannot be reached.",
        "Check the network; set HTTPS_PROXY or UV_INDEX if this machine needs them.",
    ),
    (r"[Bb]ecause ([\w.-]+) was not found in the", "There is no package {0!r} in the package index.", _SPELLING),
    (r"there (?:is|are) no versions? of ([\w.\[\]-]+\S*)", "There is no {0} in the package index.", _SPELLING),
    (
        r"Failed to build `?([^`\s]+)|failed to build `?([^`\s]+)",
        "The package {0} could not be built from its source.",
        "Choose a version that has a wheel for this Python, or install the compiler it asks for.",
    ),
    (
        r"build backend returned an error",
        "A package could not be built from its source.",
        "Choose a version that has a wheel, or install what the build needs; see its output below.",
    ),
    (r"No solution found|unsatisfiable", "The packages cannot be installed together.", "Relax or remove one of them."),
    (r"does not satisfy Python|requires Python", "A package does not work with this Python version.", _SPELLING),
)


def explain(what: str, lines: Sequence[str], directory: Path) -> OarsError:
    """The error to raise when uv failed to build `what` in `directory`."""
    text = "\n".join(lines)
    details = _relevant(lines)
    if re.search(r"No space left|os error 28\b|Disk quota|os error 122\b", text):
        return no_space(directory, details)
    if re.search(r"Permission denied|os error 13\b|Read-only file system|os error 30\b", text):
        return Denied(
            f"{what} cannot be written: permission denied.", "Check the owner of the directories below.", details
        )
    for pattern, sentence, hint in _CAUSES:
        found = re.search(pattern, text)
        if found:
            names = [group for group in found.groups() if group]
            text = sentence.format(*names)
            text = text if text.startswith("'") else text[0].lower() + text[1:]
            return EnvironmentFailed(f"{what} cannot be built: {text}", hint, details)
    return EnvironmentFailed(f"{what} cannot be built: uv failed.", "See its output below.", details)


def _relevant(lines: Sequence[str]) -> tuple[str, ...]:
    kept = [line.rstrip()[:300] for line in lines if not _NOISE.match(line)]
    errors = next((index for index, line in enumerate(kept) if line.lstrip().startswith(("error", "×"))), None)
    relevant = kept[errors:]
    if len(relevant) > _MAX_LINES:  # uv reports what failed first; the program that it ran reports why last
        relevant = [*relevant[:2], "…", *relevant[3 - _MAX_LINES :]]
    return tuple(relevant)
