"""Stores what the tests need of the original pages: code blocks, names, and digests of the openings of sentences.

python -m tests.compat.store MARS_KUBERNETES MARS_BY_HAND RAY_KUBERNETES DASK_KUBERNETES_CLASSIC    # files of the pages
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.compat import blocks
from tests.compat.sentences import sentences

OPENING_WORDS = 10  # that a quote has at most
DIGEST_CHARACTERS = 6
SOURCES = {
    blocks.MARS_KUBERNETES: 'Mars (Apache License 2.0), "Run on Kubernetes"',
    blocks.MARS_BY_HAND: 'KubeDL (Apache License 2.0), "Run Mars workloads on kubernetes"',
    blocks.RAY_KUBERNETES: 'Ray (Apache License 2.0), "Deploying on Kubernetes"',
    blocks.DASK_KUBERNETES_CLASSIC: 'dask-kubernetes (BSD 3-Clause License), "KubeCluster (classic)"',
}
_ARGUMENT = re.compile(r"^\| (\w+_\w+) +\|", re.MULTILINE)  # the first cell of a row about an argument
_COMMAND = re.compile(r"`mars-\w+ .*?`")


def digests(text: str) -> list[str]:
    """Of the first word of a sentence, of the first two words, and so on."""
    words = re.findall(r"\w+", text)[:OPENING_WORDS]
    prefixes = (" ".join(words[: n + 1]) for n in range(len(words)))
    return [hashlib.sha256(each.encode()).hexdigest()[:DIGEST_CHARACTERS] for each in prefixes]


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of each block of a page in Markdown."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def reduced(name: str, text: str) -> str:
    """The code blocks of a page, the arguments in its tables and the commands in its sentences."""
    lines = [f"| {each} |" for each in _ARGUMENT.findall(text)] + [f"- {each}" for each in _COMMAND.findall(text)]
    found = fenced_blocks(text) or blocks.code_blocks(text)
    code = [f".. code-block:: {language}\n\n{textwrap.indent(body, '    ').rstrip()}" for language, body in found]
    source = f".. The code blocks of a page of {SOURCES[name]}. Made by tests/compat/store.py."
    return "\n\n".join([source, *(["\n".join(lines)] if lines else []), *code]) + "\n"


def stored(texts: Mapping[str, str]) -> dict[str, str]:
    """The files below tests/compat/pages, from the texts of the pages."""
    openings = {name: [" ".join(digests(each)) for each in sentences(text)] for name, text in texts.items()}
    pages = {name: reduced(name, text) for name, text in texts.items()}
    return {**pages, blocks.OPENINGS: json.dumps(openings, indent=1) + "\n"}


if __name__ == "__main__":
    originals = {name: Path(path).read_text() for name, path in zip(SOURCES, sys.argv[1:], strict=True)}
    for name, content in stored(originals).items():
        (blocks.PAGES / name).write_text(content)
