"""The sentences of a page in reStructuredText or Markdown, without code, headings and markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

_INLINE = (
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # links
    (re.compile(r":\w+(?::\w+)?:`~?([^`<]*?)\s*(?:<[^`]*>)?`"), r"\1"),  # roles
    (re.compile(r"`([^`<]*?)\s*<[^`]*>`__?"), r"\1"),
    (re.compile(r"(?<!`)`([^`]+)`_"), r"\1"),
    (re.compile(r"<[^>\n]+>"), " "),  # HTML
    (re.compile(r"[`*]"), ""),
)
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
_UNDERLINE = re.compile(r"([=~^\"#-])\1{2,}$")
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z(])")
_CODE = (".. code-block::", ".. autosummary::", ".. autoclass::", ".. autofunction::")


def sentences(text: str) -> list[str]:
    """In the order of the page. A row of a table is one sentence."""
    paragraphs = (_plain(each) for each in _paragraphs(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)))
    found = [sentence.strip() for each in paragraphs for sentence in _END.split(each)]
    return [each for each in found if re.search(r"\w", each)]


def _plain(text: str) -> str:
    for pattern, instead in _INLINE:
        text = pattern.sub(instead, text)
    return " ".join(text.split())


def _paragraphs(text: str) -> Iterator[str]:
    lines = [*_without_code(text), ""]
    paragraph: list[str] = []
    for number, line in enumerate(lines):
        is_heading = _UNDERLINE.match(line) or _UNDERLINE.match(lines[min(number + 1, len(lines) - 1)])
        row = re.fullmatch(r"\|(.*)\|", line)
        is_rule = re.fullmatch(r"\+[-=+]+\+", line)
        ends = not line.strip() or is_heading or is_rule or line.startswith((".. ", "#")) or _ITEM.match(line)
        if ends and paragraph:
            yield _cells(paragraph)
            paragraph = []
        if not ends or (_ITEM.match(line) and not is_heading):
            item = _ITEM.match(line)
            paragraph.append(row[1] if row else line[item.end() :] if item else line)


def _cells(lines: list[str]) -> str:
    """A paragraph, or a row of a table whose cells have several lines."""
    if not all("|" in line for line in lines):
        return "\n".join(lines)
    return "\n".join(" ".join(cell) for cell in zip(*(line.split("|") for line in lines), strict=True))


def _without_code(text: str) -> Iterator[str]:
    indent: int | None = None  # of the directive whose body is left out
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if indent is not None and (not line.strip() or depth > indent):
            continue
        indent = None
        if line.strip().startswith(_CODE):
            indent = depth
            yield ""
        elif line.rstrip().endswith("::") and not line.strip().startswith(".. "):
            indent = depth  # a literal block
            yield line.rstrip()[:-1]
            yield ""
        else:
            yield line
