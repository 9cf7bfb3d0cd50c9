"""The documentation is checked like code: pages made from the program are current, links lead somewhere, commands exist
and have the options that are shown, Python compiles."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from docs.recordings import PROMPT, Recording

from oars import convert
from oars.base.errors import SpecError
from oars.cli.main import cli
from oars.spec.load import build
from oars.spec.load_job import build_job
from oars.spec.text import Document
from tests import pages
from tests.e2e.test_docs_kubernetes import SESSIONS as ON_KUBERNETES
from tests.live.test_docs_local import SESSIONS as LOCAL

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"(?<!`)`(oars [^`]+)`(?!`)")
ENDS_A_COMMAND = {"|", "||", "&&", ";", ">", "2>", "&"}

SITE_ENV = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for language, text in BLOCK.findall(page.read_text()):
        if language in languages:
            yield text


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text())


def commands(page: Path) -> Iterator[list[str]]:
    """The words after `$ oars` in examples, up to a pipe or a comment."""
    for block in blocks(page, "console", "bash", "sh"):
        for line in block.splitlines():
            for part in re.findall(r"(?:^\$ |\| |&& |\$\()(oars .*)", line):
                yield words(part)


def words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    found = []
    for word in lexer:
        if word in ENDS_A_COMMAND or word.startswith(")"):
            break
        found.append(word)
    return found[1:]


def find(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and the words that are left."""
    command: click.Command = cli
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        inner = command.get_command(click.Context(command), arguments[0])
        assert inner is not None, f"there is no command {arguments[0]!r} in {command.name}"
        command, arguments = inner, arguments[1:]
    return command, arguments


def parse(arguments: list[str]) -> None:
    """As click would, without carrying it out."""
    command, rest = find(arguments)
    try:
        command.make_context(command.name, list(rest), help_option_names=["-h", "--help"])
    except click.exceptions.Exit:
        return  # --help, --version


def missing_options(command: click.Command, arguments: list[str]) -> list[str]:
    """The required options that are not there. A command that is only named needs none, nor does one with `…`, or with
    an option that has no value, which the sentence is about."""
    if not arguments or "…" in arguments or arguments[-1] in options(command):
        return []
    required = [each for each in command.params if isinstance(each, click.Option) and each.required]
    return [each.opts[0] for each in required if not {*each.opts} & {*arguments}]


def options(command: click.Command) -> set[str]:
    named = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return {*named, "-h", "--help", "--version"}


@pytest.fixture(autouse=True)
def _no_terminal_output(capsys: pytest.CaptureFixture[str]) -> None:
    """--help prints."""


def test_generated_pages_are_current() -> None:
    pages: dict[Path, str] = runpy.run_path(str(ROOT / "docs/generate.py"))["pages"]()
    stale = [str(path.relative_to(ROOT)) for path, text in pages.items() if path.read_text() != text]
    assert not stale, "run `make docs`"


def test_site_builds_and_all_its_links_lead_somewhere(tmp_path: Path) -> None:
    """mkdocs.yml makes every warning an error."""
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=ROOT, env=SITE_ENV, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")} >= pages


def test_a_page_of_benchmarks_can_be_made_of_no_results_and_of_some() -> None:
    module = runpy.run_path(str(ROOT / "docs/generate.py"))
    rows = [
        {"name": "start", "ours": 1.5, "theirs": 2.0, "ratio": 0.75, "limit": 1.0, "ok": True},
        {"name": "help", "ours": 0.2, "limit": 0.15, "ok": False},
    ]
    record = {"part": "start", "when": "now", "oars": "1", "python": "3", "cores": 2, "load": [1.0], "rows": rows}
    assert "Nothing has been measured yet" in module["bench_page"]([])
    page = module["bench_page"]([record])
    assert "| start | 1.50 | 2.00 | 0.750 | 1.00 | ok |" in page
    assert "| help | 0.200 | – | – | 0.150 | missed |" in page


def test_architecture_fits_on_two_pages() -> None:
    """Of 66 lines with 120 columns."""
    text = (ROOT / "docs/architecture.md").read_text()
    assert sum(max(1, -(-len(line) // 120)) for line in text.splitlines()) <= 2 * 66


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_commands_in_examples_can_be_parsed(page: Path) -> None:
    for arguments in commands(page):
        try:
            parse(arguments)
        except click.ClickException as error:
            pytest.fail(f"oars {' '.join(arguments)}: {error.format_message()}")


@each_page
def test_commands_in_text_exist(page: Path) -> None:
    for text in INLINE.findall(prose(page)):
        command, rest = find(text.split("|")[0].split()[1:])
        rest = rest[: rest.index("--")] if "--" in rest else rest
        unknown = {word.strip("[],") for word in rest if word.startswith("-")} - options(command)
        assert not unknown, f"{text}: no such option: {unknown}"
        absent = missing_options(command, rest)
        assert not absent, f"{text}: cannot be run without {absent}"


@each_page
def test_python_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@each_page
def test_no_path_of_a_machine_is_shown(page: Path) -> None:
    assert not re.findall(r"(?<![\w.])/(?:root|work|home/\w+|tmp)/\S*", page.read_text())


def test_every_shell_line_and_program_runs_in_a_test_or_has_a_reason_not_to() -> None:
    sessions = [*LOCAL, *(session for each in ON_KUBERNETES.values() for session in each)]
    run = {(step.page, step.line) for session in sessions for step in session.steps}
    steps = [step for page in pages.pages() for step in pages.steps(page)]
    left = [str(step) for step in steps if (step.page, step.line) not in run and step.bare not in pages.CANNOT_RUN]
    assert not left, "\n".join(left)
    unknown = [step for step in steps if not step.shown and not pages.expected(step)]
    assert not [str(step) for step in unknown if step.bare not in pages.CANNOT_RUN]
    programs = [step.command for step in steps if step.program]
    assert len(programs) == len(set(programs)) > 20
    unused = set(pages.CANNOT_RUN) - {step.bare for step in steps}
    assert not unused, "in CANNOT_RUN, but in no page"


def test_output_of_a_page_is_compared_line_by_line() -> None:
    shown = ("Name: demo", "Client:    tls://127.0.0.1:1", "", "demo is ready after 1.0 s.", "    …", "a … z")
    printed = "demo: starting\nName:      demo\nClient:    tls://127.0.0.1:31121\ndemo is ready after 12.5 s.\na b z\n"
    assert pages.missing(shown, printed) == ""
    assert pages.missing(("Workers: 3/3 ready",), "Workers:   2/3 ready") != ""
    assert pages.missing(("second", "first"), "first\nsecond") != ""
    pods = ("ray-head-5455bb66c9-6bxvz 1/1 Running 0 20s",)
    assert pages.missing(pods, "ray-head-7d9f8b6c5d-x2x9z   1/1   Running   0  9s") == ""
    assert pages.missing(pods, "ray-head-7d9f8b6c5d-x2x9z   0/1   Running   0  9s") != ""


def test_effect_of_a_line_is_checked() -> None:
    def line(command: str) -> str:
        return pages.effect(pages.Step("", 0, "", command, ()))

    gone = "2>&1 || true) | grep 'There is no cluster '"
    assert (
        line("oars down demo --drain")
        == line("oars why demo; oars down demo  # the end")
        == f"(oars status demo {gone}"
    )
    assert line("oars down demo -n team") == f"(oars status demo -n team {gone}"
    assert line("oars cp train.py demo:x -n team") == "oars exec demo -n team -- cat x | diff - train.py"
    assert line("oars ls") == ""
    quiet = [step for page in pages.pages() for step in pages.steps(page) if re.match("oars (down|cp) ", step.command)]
    assert len(quiet) > 10 and all(map(pages.effect, quiet))


# Text of YAML that is not a manifest of Oars → where it is checked.
OTHER_YAML = {
    "kind: Job\n": "tests/e2e/test_docs_kubernetes.py applies it",
    "{oars.dev/web-auth: none}": "metadata of a MarsJob; tests/e2e/test_marsjob.py has it",
    "downwardAPI: ": "a volume of a pod of a MarsJob",
}


@each_page
def test_yaml_is_valid(page: Path) -> None:
    for block in blocks(page, "yaml"):
        if not any(text in block for text in OTHER_YAML):
            load_manifest(yaml.safe_load(block))


def load_manifest(data: dict[str, Any]) -> None:
    """Raises SpecError if a cluster or a job is not valid. A page may show a part of one."""
    match data:
        case {"kind": "ComputeCluster"}:
            build(data)
        case {"kind": "ComputeJob"}:
            build_job({}, manifest=data)
        case {"kind": _}:
            for each in convert.convert([Document("the page", data)]).objects:
                load_manifest(dict(each))
        case {"secrets": _}:
            build_job({"cluster": {"engine": "dask"}, "entrypoint": ["true"], **data})
        case _:
            build({"engine": "dask", **data["spec"]})


def test_yaml_that_is_not_checked_is_on_a_page() -> None:
    shown = "".join(block for page in PAGES for block in blocks(page, "yaml"))
    assert [text for text in OTHER_YAML if text not in shown] == []


@pytest.mark.parametrize(
    "text",
    [
        "spec: {workes: 3}",
        "{kind: ComputeJob, apiVersion: oars.dev/v1alpha1, spec: {cluster: {engine: dask}, entrypoints: [a]}}",
        "secrets: [{name: hf, kye: token}]",
        "{kind: DaskCluster, apiVersion: kubernetes.dask.org/v1, spec: {worker: {replicas: many}}}",
    ],
)
def test_wrong_yaml_is_found(text: str) -> None:
    with pytest.raises(SpecError):
        load_manifest(yaml.safe_load(text))


def test_the_checks_find_mistakes() -> None:
    with pytest.raises(click.ClickException):
        parse(words("oars up demo --engin dask"))
    with pytest.raises(AssertionError, match="no command"):
        parse(words("oars strat demo"))
    assert missing_options(*find(words("oars head --engine dask"))) == ["--listen"]
    assert missing_options(*find(words("oars head --engine dask --listen 10.0.0.1:8700"))) == []
    assert missing_options(*find(words("oars head --listen"))) == missing_options(*find(words("oars head"))) == []
    assert words("oars ls -o name | xargs -n1 oars why  # all") == ["ls", "-o", "name"]


def test_recording_shows_lines_as_they_stay() -> None:
    """With colours, without what progress has overwritten, and with short pauses only."""
    made = Recording(
        [(0.1, f"{PROMPT}ls\r\n"), (5.0, "\r\x1b[Kstarting 1"), (9.0, "\r\x1b[K<\x1b[32mdone\x1b[0m>\r\n")]
    )
    assert made.lines() == [(0.1, "$ ls"), (3.1, "<\x1b[32mdone\x1b[0m>")]
    assert "&lt;<tspan fill=" in made.svg() and "starting" not in made.svg()
    assert made.asciicast().count("\n") == 4
