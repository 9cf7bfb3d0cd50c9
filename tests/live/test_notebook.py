"""Clusters in a real Jupyter kernel, and the pictures of the documentation in a real browser."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from docs import screenshots

from tests import pages

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(400),
    # Of nbclient and jupyter_client, about their own event loops and ports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Proactor event loop", "ignore::UserWarning"),
]

CREATE = 'from oars import Cluster\ncluster = Cluster("toy", workers=2)'
UNTIL = """
import time
def until(check):
    end = time.monotonic() + 30
    while not check():
        assert time.monotonic() < end, view._state.value
        time.sleep(0.05)
view = cluster._cluster._view
parts = {each.description: each for each in view._controls}
"""
CLICK = """
parts["Workers"].value = 3
parts["Scale"].click()
until(lambda: "3/3 workers ready" in view._state.value)
parts["Maximum"].value = 5
parts["Adapt"].click()
until(lambda: "0–5" in view._state.value)
view._member.value = "worker-0"
until(lambda: "toy worker worker-0 starts" in view._log.value)
until(lambda: "CPU:" in view._state.value)
cluster.close()
print("Stopped" in view._state.value, parts["Scale"].disabled)
"""
ASYNC = """
from oars import AsyncCluster
import asyncio
cluster = await AsyncCluster("toy", workers=1)
"""
ASYNC_WAIT = """
view = cluster._view
async with asyncio.timeout(30):
    while "CPU:" not in view._state.value:
        await asyncio.sleep(0.05)
await cluster.close()
print("Stopped" in view._state.value)
"""


def run(*cells: str) -> list[list[dict[str, Any]]]:
    """The outputs of cells in a new kernel."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


def test_view_is_live_and_its_controls_work_in_a_kernel() -> None:
    created, shown, _, clicked = run(CREATE, "cluster", UNTIL, CLICK)
    assert "Ready after" in created[0]["data"]["text/html"] and len(created) == 1, "one output, which is updated"
    assert set(shown[0]["data"]) == {"text/plain", "text/html", screenshots.WIDGET}
    assert "2/2 workers ready" in shown[0]["data"]["text/html"] and "worker-1" in shown[0]["data"]["text/html"]
    assert clicked[-1]["text"] == "True True\n"


def test_view_of_an_async_cluster_is_live_in_a_kernel() -> None:
    created, shown, waited = run(ASYNC, "cluster", ASYNC_WAIT)
    assert "Ready after" in created[0]["data"]["text/html"] and screenshots.WIDGET in shown[0]["data"]
    assert waited[-1]["text"] == "True\n"


def test_without_ipywidgets_the_view_is_html() -> None:
    hide = "import sys\nsys.modules['ipywidgets'] = None"  # importing it fails
    created, shown, _ = run(f"{hide}\n{CREATE}", "cluster", "cluster.close()")
    assert "Ready after" in created[0]["data"]["text/html"]
    assert set(shown[0]["data"]) == {"text/plain", "text/html"} and "worker-1" in shown[0]["data"]["text/html"]


def test_cells_of_the_page_run_in_a_kernel() -> None:
    shown, used, _ = run(*pages.blocks("docs/how-to/notebooks.md", "python"))
    assert "Ready after" in shown[0]["data"]["text/html"] and "3/3 workers ready" in shown[-1]["data"]["text/html"]
    assert used[-1]["data"]["text/plain"] == "45"


def test_pictures_of_the_documentation_can_be_taken(tmp_path: Path) -> None:
    """In both themes, with the widgets. `make live` installs Chromium if it may."""
    if shutil.which("chromium") is None and os.getuid() != 0:
        pytest.skip("Chromium is not installed, and only root can install it")
    from PIL import Image

    taken = screenshots.take_all(tmp_path)
    committed = {path.name for path in screenshots.IMAGES.glob("notebook-*.png")}
    assert {path.name for path in taken} == committed, "run `make screenshots`"
    for path in taken:
        picture = Image.open(path).convert("L")
        background = picture.getpixel((5, 5))
        assert isinstance(background, int) and (background > 200) == ("light" in path.name), path.name
        rows = [picture.crop((0, y, picture.width, y + 1)).getextrema() for y in range(picture.height)]
        written = sum(isinstance(low, int) and isinstance(high, int) and high - low > 100 for low, high in rows)
        assert written > 250, f"{path.name}: only {written} rows have text"
