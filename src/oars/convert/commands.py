"""Start commands of containers: shell lines as words, words as options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence

from oars.convert.fields import Fields

_SHELLS = ("sh", "bash", "dash")
_ENDS = frozenset((";", "&&", "||", "|", "&"))
_LAUNCHERS = frozenset(("tini", "-g", "--", "prepare.sh", "exec", "dumb-init"))


def words(container: Fields) -> list[str]:
    """Command and arguments of a container. The line of a shell is split into its words."""
    found = [*container.texts("command"), *container.texts("args")]
    while found and _base(found[0]) in _LAUNCHERS:
        found = found[1:]
    if len(found) > 1 and _base(found[0]) in _SHELLS and re.fullmatch(r"-[a-z]*c[a-z]*", found[1]):
        line = next((word for word in found[2:] if word != "--"), "")
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        try:
            found = list(lexer)
        except ValueError:  # a quote is never closed
            return found
    return found[1:] if found[:1] == ["exec"] else found


def find(found: Sequence[str], program: Sequence[str]) -> tuple[list[str], list[str], list[str]] | None:
    """The words before a program, its arguments, and the words after it; None: it is not there."""
    size = len(program)
    for start in range(len(found) - size + 1):
        if [_base(found[start]), *found[start + 1 : start + size]] == list(program):
            rest = list(found[start + size :])
            end = next((index for index, word in enumerate(rest) if word in _ENDS), len(rest))
            return list(found[:start]), rest[:end], rest[end:]
    return None


def options(
    arguments: Sequence[str], flags: Collection[str], repeated: Collection[str] = ()
) -> dict[str, str | list[str]]:
    """Options by name, without their dashes. flags: options without a value. repeated: options whose values are
    collected; of others the last one counts. Other words are left out."""
    given: list[tuple[str, str]] = []
    waiting = False
    for word in arguments:
        name, joined, value = word.partition("=")
        if word.startswith("--") and len(word) > 2:
            given.append((name[2:], value if joined else "true"))
            waiting = not joined and name[2:] not in flags
        elif waiting:
            given[-1] = given[-1][0], word
            waiting = False
    single: dict[str, str | list[str]] = {name: value for name, value in given if name not in repeated}
    return single | {name: [v for n, v in given if n == name] for name, _ in given if name in repeated}


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]
