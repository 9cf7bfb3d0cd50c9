"""What the tests need of the pages whose interfaces oars.compat offers: their code blocks, below tests/compat/pages."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

PAGES = Path(__file__).parent / "pages"
MARS_KUBERNETES = "mars_kubernetes.rst"
MARS_BY_HAND = "mars_by_hand.rst"
RAY_KUBERNETES = "ray_kubernetes.rst"
DASK_KUBERNETES_CLASSIC = "dask_kubernetes_classic.rst"
OPENINGS = "openings.json"


def code_blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of each `.. code-block::`, in the order of the page."""
    found: list[tuple[str, str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith(".. code-block::"):
            continue
        body = []
        for following in lines[number + 1 :]:
            if following.strip() and not following.startswith(" "):
                break
            body.append(following)
        found.append((line.split()[-1], textwrap.dedent("\n".join(body)).strip() + "\n"))
    return found


def text(name: str) -> str:
    """The stored part of a page."""
    return (PAGES / name).read_text()


def page(name: str) -> list[tuple[str, str]]:
    """The blocks of a page."""
    return code_blocks(text(name))


def openings(name: str) -> Sequence[Sequence[str]]:
    """For each sentence of a page the digests of its first word, its first two words, and so on."""
    found: dict[str, list[str]] = json.loads(text(OPENINGS))
    return [each.split() for each in found[name]]
