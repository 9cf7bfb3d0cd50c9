"""Takes the screenshots of the pages: runs a notebook with a real cluster and shows its output in headless Chromium, in
a light and a dark theme.

    python docs/screenshots.py [DIRECTORY]     default: docs/images

It needs the program `chromium` (Debian: `apt-get install chromium`) and the development dependencies.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent / "images"
THEMES = {"light": 1, "dark": 0}  # Chromium's numbers of the colour schemes that a user prefers
WIDTH = 900
SECONDS = 60  # for one picture
BUDGET = 15000  # milliseconds of the page's own time, until its widgets are there
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--allow-file-access-from-files",
)  # fmt: skip
WIDGET = "application/vnd.jupyter.widget-view+json"
START = 'from oars import Cluster\n\ncluster = Cluster("dask", name="demo", workers=1, cpu=0.5, memory="512Mi")'
WORK = """import time

def work(n):
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        n += 1
    return n

client = cluster.client()
cluster.adapt(1, 3)
sum(client.gather(client.map(work, range(200), pure=False)))"""
# The widgets as the kernel has them: nbclient only follows those of the present cell.
READ_WIDGETS = "import json, ipywidgets\nprint(json.dumps(ipywidgets.Widget.get_manager_state()))"
CELLS = (START, "cluster", WORK, "cluster", READ_WIDGETS, "cluster.close()")
LIVE, STATIC = (0, 1), (2, 3)  # cells of the pictures


@dataclass(frozen=True)
class Notebook:
    """A notebook that has run: its cells, their outputs by mime type, and the state of the widgets."""

    cells: tuple[str, ...]
    outputs: tuple[tuple[Mapping[str, Any], ...], ...]
    widgets: Mapping[str, Any]


def run_notebook(cells: Sequence[str] = CELLS) -> Notebook:
    """Run cells in a Jupyter kernel; the last but one prints the state of the widgets."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    outputs = [cell.outputs for cell in notebook.cells]
    shown = tuple(tuple(each.data for each in cell if "data" in each) for cell in outputs)
    return Notebook(tuple(cells), shown, json.loads(outputs[-2][0].text)["state"])


PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>
:root{color-scheme:light dark}
body{margin:0;padding:16px 20px;font:14px system-ui,sans-serif;background:Canvas;color:CanvasText;
--jp-ui-font-color1:CanvasText;--jp-border-color2:color-mix(in srgb,CanvasText 25%,Canvas);
--jp-layout-color2:color-mix(in srgb,CanvasText 12%,Canvas);--jp-widgets-color:CanvasText;
--jp-widgets-label-color:CanvasText;--jp-widgets-input-color:CanvasText;--jp-widgets-font-size:13px;
--jp-widgets-input-background-color:Canvas;
--jp-widgets-input-border-color:color-mix(in srgb,CanvasText 35%,Canvas)}
.in{font:13px/1.5 monospace;white-space:pre-wrap;padding:8px 12px;margin:14px 0 8px;border-radius:4px;
background:color-mix(in srgb,CanvasText 7%,Canvas)}
.jupyter-widgets-disconnected::before{display:none!important}
</style></head><body><div hidden><i><i id="help_menu"></i></i></div>CELLS
<script>STUBS</script><script src="widgets.js"></script><script>SCRIPT</script></body></html>"""

# The widgets of ipywidgets come with its extension of the classic notebook. It gets what it uses
# of that page.
STUBS = """
const anything = new Proxy(function () {}, { get: () => anything, apply: () => anything });
window.Jupyter = { version: "6.5.0", notification_area: anything, menubar: anything, notebook: anything };
const kernel = { comm_manager: anything, is_connected: () => false };
const page = { notebook: { kernel, container: anything, keyboard_manager: anything, metadata: {}, events: anything } };
const output = { OutputArea: function () {} };
output.OutputArea.prototype.register_mime_type = (mime, show) => { window.showWidget = show; };
window.requirejs = (names, ready) => ready(page, anything, output);
window.requirejs.config = () => {};
window.define = (names, make) => { window.extension = make({ uri: document.location.href, id: "widgets" }); };
"""
SHOW = """
(async () => {
  await window.extension.load_ipython_extension();
  kernel.widget_manager._get_comm_info = async () => ({});  // no widget is in a kernel any more
  await kernel.widget_manager.set_state({ version_major: 2, version_minor: 0, state: STATE });
  for (const place of document.querySelectorAll("[data-model]")) {
    const area = { keyboard_manager: anything, handle_output() {}, handle_clear_output() {} };
    area.create_output_subarea = () => [place];
    window.showWidget.call(area, { model_id: place.dataset.model }, {}, { append() {} });
  }
})();
"""


def page(notebook: Notebook, chosen: Sequence[int], *, live: bool) -> str:
    """A page with these cells and their outputs; live: as widgets, where there are some."""
    parts = []
    for index in chosen:
        parts.append(f'<div class="in">{html.escape(notebook.cells[index])}</div>')
        for data in notebook.outputs[index]:
            if live and WIDGET in data:
                parts.append(f'<div data-model="{data[WIDGET]["model_id"]}"></div>')
            else:
                parts.append(data.get("text/html") or f"<pre>{html.escape(data['text/plain'])}</pre>")
    state = json.dumps(notebook.widgets).replace("</", "<\\/")
    script = SHOW.replace("STATE", state) if live else ""
    return PAGE.replace("CELLS", "".join(parts)).replace("STUBS", STUBS).replace("SCRIPT", script)


def take(page: str, target: Path, theme: str, height: int) -> None:
    """Save a picture of a page."""
    with tempfile.TemporaryDirectory(prefix="oars-chromium-") as directory:
        work = Path(directory)
        (work / "page.html").write_text(page)
        shutil.copy(
            Path(sys.prefix) / "share/jupyter/nbextensions/jupyter-js-widgets/extension.js", work / "widgets.js"
        )
        argv = [
            _chromium(), *FLAGS, f"--user-data-dir={work / 'profile'}", f"--window-size={WIDTH},{height}",
            f"--blink-settings=preferredColorScheme={THEMES[theme]}", f"--virtual-time-budget={BUDGET}",
            f"--screenshot={work / 'page.png'}", (work / "page.html").as_uri(),
        ]  # fmt: skip
        env = {**os.environ, "HOME": directory, "TMPDIR": directory}
        done = subprocess.run(argv, env=env, timeout=SECONDS, capture_output=True, text=True, check=False)
        if not (work / "page.png").exists():
            raise RuntimeError(f"Chromium made no picture (exit code {done.returncode}):\n{done.stderr[-2000:]}")
        shutil.copy(work / "page.png", target)


def _chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise RuntimeError("There is no Chromium on this machine. On Debian: `apt-get install chromium`.")
    return found


def take_all(directory: Path) -> list[Path]:
    """The pictures of docs/how-to/notebooks.md."""
    directory.mkdir(parents=True, exist_ok=True)
    notebook, taken = run_notebook(), []
    for name, cells, live, height in (("notebook-live", LIVE, True, 720), ("notebook-static", STATIC, False, 740)):
        for theme in THEMES:
            target = directory / f"{name}-{theme}.png"
            take(page(notebook, cells, live=live), target, theme, height)
            taken.append(target)
    return taken


if __name__ == "__main__":
    for picture in take_all(Path(sys.argv[1]) if sys.argv[1:] else IMAGES):
        sys.stdout.write(f"{picture}\n")
