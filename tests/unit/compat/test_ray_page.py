"""The guide "Run Ray with kubectl only" has the lines and the program of Ray's page, with the changes that the
migration page lists. tests/e2e run the guide."""

from __future__ import annotations

import re

from tests.compat import edits
from tests.compat.blocks import RAY_KUBERNETES, page
from tests.pages import blocks, steps

GUIDE = "docs/how-to/ray-by-kubectl.md"
ADDRESS = '"$RAY_HEAD_SERVICE_HOST:$RAY_HEAD_SERVICE_PORT_REDIS_PRIMARY"'


CHANGES = edits.edits(edits.RAY, *(first for first, *_ in edits.table(edits.RAY)))


def edited(text: str) -> str:
    """The text of the page with the changes that the migration page lists."""
    return edits.edited(text, CHANGES)


def test_guide_has_every_kubectl_line_of_the_page_in_its_order() -> None:
    shell = [code for language, code in page(RAY_KUBERNETES) if language == "shell"]
    lines = [edited(line) for code in shell for line in re.findall(r"^(?:\$ )?(kubectl .*)$", code, re.MULTILINE)]
    assert len(lines) == 24
    guide = iter(step.bare for step in steps(GUIDE))
    missing = [line for line in lines if line not in guide]  # consumes the guide up to the line
    assert not missing


def test_lines_of_the_page_s_remote_shell_are_in_the_guide() -> None:
    shell = "".join(code for language, code in page(RAY_KUBERNETES) if language == "shell")
    typed = re.findall(r"^root@\S+# (.*)$", shell, re.MULTILINE)
    assert typed == ["python example.py", "ipython"]
    assert re.findall(r"# there: (.*)", "\n".join(step.command for step in steps(GUIDE))) == typed


def test_program_of_the_page_is_that_of_the_guide() -> None:
    (program,) = (code for language, code in page(RAY_KUBERNETES) if language == "python")
    assert f"ray.init(address={ADDRESS})" in program
    expected = edited(program).replace("ray.init(", "import os\nray.init(")
    assert blocks(GUIDE, "ipython") == [expected]


def test_outputs_of_the_page_are_in_the_guide() -> None:
    """Names of pods, numbers of replicas and ages differ."""
    shell = [edited(code) for language, code in page(RAY_KUBERNETES) if language == "shell"]
    said = re.findall(r"^(service/\S+ \w+|deployment\S+ \w+|job\S+ created)$", "\n".join(shell), re.MULTILINE)
    assert len(said) == 4
    shown = [line for step in steps(GUIDE) for line in step.shown]
    assert [line for line in said if line not in shown] == []
