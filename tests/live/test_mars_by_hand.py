"""The page "Run Mars workloads on kubernetes", part "Standalone Mode": its commands and its program, on machines that
are network namespaces. The program is that of the page; only its addresses change."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from oars import engines
from oars.base.settings import Settings
from oars.engines.mars.shape import PACKAGES
from oars.envs.build import Environments
from oars.spec.load import build
from tests.compat import edits
from tests.compat.blocks import MARS_BY_HAND, page, text
from tests.machines import Machine, machines, until

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(500),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

(PROGRAM,) = (code for language, code in page(MARS_BY_HAND) if language == "python")
COMMANDS = re.findall(r"`(mars-(?:scheduler|web|worker) .*?)`", text(MARS_BY_HAND))
BIN = Path(sys.executable).parent
SCHEDULER_PORT, WEB_PORT, WORKER_PORT = "7003", "7004", "7005"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[list[Machine]]:
    with machines(tmp_path, "main", "site", "one") as made:
        yield made


def addressed(words: str, net: list[Machine]) -> str:
    """A text of the page with the addresses of these machines."""
    main, site, one = net
    values = {
        "<scheduler_ip>": main.address, "<scheduler_port>": SCHEDULER_PORT,
        "<web_ip>": site.address, "<web_port>": WEB_PORT,
        "<worker_ip>": one.address, "<worker_port>": WORKER_PORT,
    }  # fmt: skip
    for name, value in values.items():
        words = words.replace(name, value)
    assert "<" not in words
    return words


def start(net: list[Machine], role: int, distribution: str) -> None:
    """Start the page's command for this machine: its program and its options as they are, and those that the migration
    page adds. pymars is the default."""
    program, *options = addressed(COMMANDS[role], net).split()
    added = edits.options(edits.BY_HAND, FILE=str(net[0].state / "join" / f"mars-{SCHEDULER_PORT}" / "join.token"))
    more = ["--token-file"] if role else ["--distribution"] if distribution == "xorbits" else []
    net[role].start(str(BIN / program), *options, *(word for option in more for word in (option, added[option])))


def python(distribution: str) -> str:
    """A Python with this distribution of Mars and without Oars, as the page's reader has it."""
    spec = build({"engine": "mars", "mars": {"distribution": distribution}}).spec
    environments = Environments(Settings.from_environ(os.environ).cache_dir)
    return str(environments.prepare("mars", engines.get("mars").needs(spec), (), lambda _: None).python)


def waits_for_token(machine: Machine) -> bool:
    return "there is no join token" in machine.log.read_text()


def started(net: list[Machine], distribution: str, order: tuple[int, int, int]) -> None:
    """`order`: of the roles, which are numbered as on the page."""
    main, site, one = net
    for position, role in enumerate(order):
        start(net, role, distribution)
        if 0 in order[position + 1 :]:  # the scheduler starts later, and has never run
            until("it waits for the token", partial(waits_for_token, net[role]))
    ready = "1 of 1 workers ready"
    until("the worker has joined", lambda: f"Ready, {ready}" in main.log.read_text(), 120)
    until("the web service is connected", lambda: "connected to the scheduler" in site.log.read_text())
    until("the worker knows", lambda: f"Ready, {ready}" in one.log.read_text())


def run_program(net: list[Machine], distribution: str, program: str, seconds: float = 300.0) -> str:
    """Type a program into the Python console on the machine of the web service, with Mars' own Python."""
    return net[1].run(python(distribution), "-i", typed=program, seconds=seconds)


READ_DASHBOARD = """
import re, sys, urllib.request
def read(path):
    with urllib.request.urlopen(sys.argv[1] + path, timeout=30) as reply:
        return reply.status, reply.headers["Content-Type"], reply.read().decode()
status, kind, html = read("/")
assert status == 200 and "text/html" in kind, (status, kind)
script, = re.findall(r'<script[^>]* src="([^"]*bundle.js)"', html)
status, kind, text = read("/" + script.lstrip("/"))
assert status == 200 and "javascript" in kind and len(text) > 10_000, (status, kind, len(text))
print("dashboard")
"""


def check_dashboard(net: list[Machine]) -> None:
    """Mars' page and its script, as a browser gets them from the web service."""
    assert net[2].run(sys.executable, "-c", READ_DASHBOARD, f"http://{net[1].address}:{WEB_PORT}") == "dashboard\n"


def test_the_page_has_three_commands() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["mars-scheduler", "mars-web", "mars-worker"]


def test_program_of_the_page_with_pymars(net: list[Machine]) -> None:
    started(net, "pymars", (2, 1, 0))
    check_dashboard(net)
    end = "print('inner', b.fetch()[0, 0], 'sum', df.fetch().iloc[0])\n"
    assert "inner 2000.0 sum 2000.0" in run_program(net, "pymars", addressed(PROGRAM, net) + end)


SMALL = """
from oars.compat.mars.session import new_session
new_session('http://{web}').as_default()
from {package} import tensor as mt
print('total', mt.ones((40, 40), chunk_size=20).sum().execute().fetch())
"""


@pytest.mark.parametrize("distribution", ["xorbits", pytest.param("pymars", marks=pytest.mark.long)])
def test_cluster_of_the_page_heals_and_ends(net: list[Machine], distribution: str) -> None:
    """Beyond the page: a dead worker is restarted, a scheduler that comes back regains its worker and its
    web service, Ctrl-C ends everything."""
    main, site, one = net
    started(net, distribution, (1, 0, 2))
    small = SMALL.format(web=f"{site.address}:{WEB_PORT}", package=PACKAGES[distribution])
    path = f"import sys; sys.path.append({str(Path('src').absolute())!r})\n"
    assert "total 1600" in run_program(net, distribution, path + small)
    (name,) = (each.name for each in (one.state / "clusters").iterdir())
    worker = one.pid(name, f"{name}-0")
    os.kill(worker, signal.SIGKILL)
    until(
        "another worker runs", lambda: one.ready(name) == ["head", f"{name}-0"] and one.pid(name, f"{name}-0") != worker
    )
    main.processes[0].kill()
    until("the scheduler has ended", lambda: not main.status(f"mars-{SCHEDULER_PORT}"))
    until("the web service notices", lambda: "waiting for the scheduler" in site.log.read_text())
    start(net, 0, distribution)
    everyone = ["head", f"{name}-0"]
    until("the scheduler regains its worker", lambda: main.ready(f"mars-{SCHEDULER_PORT}") == everyone, 120)
    until("the web service is back", lambda: site.log.read_text().count("connected to the scheduler") == 2)
    assert "total 1600" in run_program(net, distribution, path + small)
    for machine in (one, site, main):
        machine.processes[-1].send_signal(signal.SIGINT)
    assert [machine.processes[-1].wait(60) for machine in (one, site, main)] == [130] * 3
    assert [path for machine in net for path in (machine.state / "clusters").glob("*")] == []
