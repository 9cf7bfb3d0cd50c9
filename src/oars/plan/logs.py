"""What log lines mean: patterns that explain why a member died. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oars.model import LogPattern

ROWS = 3  # details in one meaning
LINES = 8  # of a log, in an explanation
LINE_LENGTH = 2000  # of a line that patterns read: some take long on a long one
_LEVEL = re.compile(r"\d\d:\d\d:\d\d.*?\b(DEBUG|INFO|SUCC|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b")
_ROUTINE = ("DEBUG", "INFO", "SUCC")

# Patterns that hold for every engine; an engine's own are in its shape.
GENERAL = (
    LogPattern(
        r"ModuleNotFoundError: No module named '?([\w.]+)",
        "the Python module {0} is missing",
        "Add it to `environment.packages`, or use an image that has it.",
    ),
    LogPattern(
        "(?i)no space left on device",
        "the disk is full",
        "Free some space; for a container, request more ephemeral-storage or mount a volume.",
    ),
    LogPattern(
        r"(?i)read-only file system: '?([^'\s]+)",
        "{0} cannot be written",
        "Make that path writable; for a container, mount a volume there.",
    ),
    LogPattern(
        r"(?i)permission denied(?:: '?([^'\s]+))?",
        "it may not read or write {0}",
        "Check the permissions of that path; for a container, set runAsUser and fsGroup, or mount a volume there.",
    ),
    LogPattern(
        "(?i)address already in use",
        "another program uses a port that it needs",
        "Oars tries again; stop the other program if this goes on.",
    ),
    LogPattern(
        r"(?i)\bMemoryError\b|cannot allocate memory|out of memory",
        "it ran out of memory",
        "Give it more `memory`, or use fewer workers.",
    ),
    LogPattern(
        "(?i)too many open files", "it ran out of file descriptors", "Raise the limit of open files (`ulimit -n`)."
    ),
    LogPattern(
        r"(?i)no such option:? '?(-[\w-]+)|unrecognized arguments:? '?(-[\w-]+)",
        "the engine does not know the option {0}",
        "Use a version of the engine that Oars supports; `oars doctor` compares them.",
    ),
)


def telling_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """The last lines of a log that may say why its member died: not those that every healthy start writes."""
    return tuple(line for line in lines if not _is_routine(line))[-LINES:]


def _is_routine(line: str) -> bool:
    """By its level, which stands behind the time."""
    level = _LEVEL.search(line[:120])
    return level is not None and level[1] in _ROUTINE


def pattern_text(lines: Iterable[str]) -> str:
    """The lines as one text for patterns. Long lines are cut."""
    return "\n".join(line[:LINE_LENGTH] for line in lines)


@dataclass(frozen=True)
class LogMeaning:
    """What log lines mean. `reason` is set if the meaning is a cause of its own."""

    meaning: str
    hint: str
    reason: str = ""


def explain_log(lines: Sequence[str], patterns: Iterable[LogPattern]) -> LogMeaning | None:
    """What the last lines of a log mean, by `patterns` and GENERAL: those with a reason first, then the last match."""
    text = pattern_text(lines)
    found: list[tuple[bool, int, LogPattern, re.Match[str]]] = []
    for pattern in (*patterns, *GENERAL):
        for match in re.finditer(pattern.pattern, text):
            found.append((bool(pattern.reason), match.end(), pattern, match))
    if not found:
        return None
    _, _, pattern, match = max(found, key=lambda each: each[:2])
    words = [group for group in match.groups() if group] or ["a path"]
    rows = list(re.finditer(pattern.row_pattern, text))[:ROWS] if pattern.row_pattern else []
    details = "; ".join(pattern.row.format(*row.groups()) for row in rows)
    meaning = pattern.meaning.format(*words) + (f" ({details})" if details else "")
    return LogMeaning(meaning, pattern.hint, pattern.reason)
