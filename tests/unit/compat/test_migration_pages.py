"""The tables "Each sentence of the page" quote every sentence of the documents, and each row names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.compat import blocks
from tests.compat.store import digests

ROOT = Path(__file__).parents[3]
# Page, and the file of the tests that are named without one.
PAGES = {
    "docs/migrate/mars.md": "tests/e2e/test_compat_mars.py",
    "docs/migrate/dask-kubernetes-classic.md": "tests/e2e/test_compat_dask.py",
    "docs/migrate/ray.md": "tests/e2e/test_rendered.py",
    "docs/migrate/mars-by-hand.md": "tests/live/test_mars_by_hand.py",
    "docs/migrate/marsjob.md": "tests/e2e/contract.py",
}
# Document → the migration pages with its sentences.
DOCUMENTS = {
    blocks.MARS_KUBERNETES: ["docs/migrate/mars.md"],
    blocks.MARS_BY_HAND: ["docs/migrate/mars-by-hand.md", "docs/migrate/marsjob.md"],
    blocks.RAY_KUBERNETES: ["docs/migrate/ray.md"],
    blocks.DASK_KUBERNETES_CLASSIC: ["docs/migrate/dask-kubernetes-classic.md"],
}
NAME = re.compile(r"`((?:tests/[\w/]+(?:\.py)?)|(?:(?:test|check)_\w+(?:\[\w+\])?))`")
NOTHING = "nothing to show: "  # sentences about the project itself


def rows(page: str) -> list[tuple[str, str]]:
    """What the page says, and what shows it."""
    table = (ROOT / page).read_text().partition("## Each sentence of the page")[2].partition("\n## ")[0]
    lines = [line.strip("|\n ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    return [(says, shown) for says, shown in lines]


def quotes(page: str) -> list[str]:
    """The first words of sentences."""
    return [quote for says, _ in rows(page) for quote in re.findall(r'"([^"]+) …"', says)]


def source(path: str) -> str:
    """Of a file, or of all files of a folder."""
    where = ROOT / path
    assert where.exists(), f"there is no {path}"
    return "".join(each.read_text() for each in ([where] if where.is_file() else sorted(where.glob("test_*.py"))))


@pytest.mark.parametrize("page", PAGES)
def test_every_named_test_exists(page: str) -> None:
    for says, shown in rows(page):
        found, where = 0, PAGES[page]
        for name in NAME.findall(shown):
            if name.startswith("tests/"):
                where = name
                assert source(where)
            else:
                assert f"def {name.partition('[')[0]}(" in source(where) + source(PAGES[page]), (name, says)
                found += 1
        assert found or shown.startswith(NOTHING), f"no test: {says}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_sentence_is_quoted(document: str) -> None:
    quoted = [(quote, digests(quote)) for page in DOCUMENTS[document] for quote in quotes(page)]
    openings = blocks.openings(document)
    assert len(openings) > 30
    missing = [n for n, each in enumerate(openings) if not any(each[: len(quote)] == quote for _, quote in quoted)]
    assert not missing, "no row quotes the sentences with these numbers"
    found = {tuple(each[: n + 1]) for each in openings for n in range(len(each))}
    assert [text for text, quote in quoted if tuple(quote) not in found] == [], "not on the page"


# The blocks that are programs and manifests. Blocks of shell lines are compared by test_ray_page.py and by sentences.
@pytest.mark.parametrize(
    ("document", "languages", "count"),
    [
        (blocks.MARS_KUBERNETES, ("python",), 4),
        (blocks.MARS_BY_HAND, ("python",), 1),
        (blocks.RAY_KUBERNETES, ("python",), 1),
        (blocks.DASK_KUBERNETES_CLASSIC, ("python", "yaml"), 8),
    ],
)
def test_every_code_block_of_a_document_has_a_row(document: str, languages: tuple[str, ...], count: int) -> None:
    found = [each for each, _ in blocks.page(document) if each in languages]
    assert len(found) == count
    said = "\n".join(says for name in DOCUMENTS[document] for says, _ in rows(name))
    ordinals = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    assert [number for number in ordinals[:count] if f"{number} block" not in said] == []
