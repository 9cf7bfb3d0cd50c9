"""The words of messages, comments and pages: plain technical English (see the glossary in CONTRIBUTING.md), and hints
that name complete commands."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
TOOLS = sorted(
    path for part in ("tests", "lab", "bench", "examples") for path in (ROOT / part).rglob("*.py")
    if path.name != Path(__file__).name
)  # fmt: skip
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

BANNED = (
    "whoever",
    "is no valid",
    "of ours",
    "shall",
    "looked after",
    "looks after",
    "look after",
    "is told",
    "are told",
    "let in",
    "as wanted",
    "a mistake of ours",
)
WORDS = re.compile(r"\b(" + "|".join(BANNED).replace(" ", r"\s+") + r")\b", re.IGNORECASE)
# A name that the reader would have to fill in. Help texts may have it: they are written before there is a cluster.
PLACEHOLDER = re.compile(r"\b(?:oars|kubectl) [a-z][^`]*? (?:NAME(?:SPACE)?|CLUSTER|ENGINE|FILE|DIR|NODE|GROUP)\b")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


TEXT_TOKENS = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


def texts(source: str) -> Iterator[str]:
    """Comments and strings, docstrings among them."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXT_TOKENS:
            yield token.string


def messages(source: str) -> Iterator[str]:
    """Strings that are no docstrings."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented)
                  if node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def offences(path: Path) -> list[str]:
    source = path.read_text()
    if path.suffix != ".py":
        return WORDS.findall(source)
    found = [match for text in texts(source) for match in WORDS.findall(text)]
    return found + [match for text in messages(source) for match in PLACEHOLDER.findall(text)]


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=name)
def test_words_are_plain(path: Path) -> None:
    assert not offences(path), "see the glossary in CONTRIBUTING.md"


def test_words_of_tests_and_tools_are_plain() -> None:
    found = {name(path): [m for text in texts(path.read_text()) for m in WORDS.findall(text)] for path in TOOLS}
    assert not {path: words for path, words in found.items() if words}, "see the glossary in CONTRIBUTING.md"


@pytest.mark.parametrize("path", TESTS, ids=name)
def test_names_of_tests_are_plain(path: Path) -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)]
    found = [each for each in names if each.startswith("test_") and WORDS.search(each.replace("_", " "))]
    assert not found, "a test is named after the behaviour, in the words of the glossary"


LIBRARY = [path for path in SOURCES if path.parts[-2] in ("client", "kube", "envs", "plan")]


@pytest.mark.parametrize("path", LIBRARY, ids=name)
def test_messages_of_the_library_name_no_option_of_the_command_line(path: Path) -> None:
    """Users of Python read them, too. A whole command in backquotes is fine."""
    plain = [re.sub(r"`[^`]*(?:`|$)", "", text) for text in messages(path.read_text())]
    options = r"--(?:timeout|kubeconfig|context|namespace|place|mode|port|image)\b"
    found = [text for text in plain if " " in text and re.search(options, text)]
    assert not found, found


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parts[-2] in ("plan", "control")], ids=name)
def test_messages_for_all_places_use_no_word_of_kubernetes(path: Path) -> None:
    """Users of local clusters read them, too. Single words, such as the reason OOMKilled, are names and no messages."""
    words = r"\b(?:[Pp]ods?|kubelet|kubectl|Kubernetes|Deployments?|ReplicaSets?|ConfigMaps?|OOMKilled)\b"
    found = [text for text in messages(path.read_text()) if " " in text and re.search(words, text)]
    assert not found, found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Whoever asks."""\n', ["Whoever"]),
        ("x = 1  # it shall run\n", ["shall"]),
        ('x = f"{1} is no\\n valid name"\n', []),
        ('"""Objects that somebody\nlooks\nafter."""\n', ["looks\nafter"]),
        ('hint = "Run `oars logs NAME`."\n', ["oars logs NAME"]),
        ('hint = "Run `oars submit -f FILE`."\n', ["oars submit -f FILE"]),
        ('hint = "Run `kubectl uncordon NODE`."\n', ["kubectl uncordon NODE"]),
        ('hint = f"Run `oars logs {name}`."\n', []),
        ('def logs():\n    """`oars logs NAME` prints them."""\n', []),
        ("marshalled = shallow = letting = 1\n", []),
    ],
)
def test_offences_are_found(source: str, found: list[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert offences(path) == found
