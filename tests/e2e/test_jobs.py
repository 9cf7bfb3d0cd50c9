"""Jobs on Kubernetes with real pods: submitted from the command line, run by the operator."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.faultproxy import FaultProxy
from lab.kube import Kube

from tests.e2e.contract import until
from tests.e2e.test_cli_kube import SMALL, Line, Shown

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("operator")]

MARS = """
import os
from xorbits._mars import tensor as mt
from xorbits._mars.deploy.oscar.session import new_session
new_session(os.environ["OARS_ADDRESS"])
print(int(mt.ones(42).sum().execute(show_progress=False).fetch()))
"""
PROGRAMS = {
    "dask": "from distributed import Client; print(Client().submit(sum, (20, 22)).result())",
    "ray": "import ray; ray.init(); print(ray.get(ray.remote(lambda: 42).remote()))",
    "mars": MARS,
}
IMAGES = {"mars": "mars-xorbits"}
# The first attempt waits to be stopped; later ones end at once.
WAIT_ONCE = """
import os, time
print("attempt", os.environ["OARS_ATTEMPT"], flush=True)
if os.environ["OARS_ATTEMPT"] == "1":
    time.sleep(600)
"""
# Counts until the test ends it.
COUNT = """
import os, time
number = 0
while not os.path.exists("/tmp/end"):
    print("line", number, flush=True)
    number += 1
    time.sleep(0.02)
print("end")
"""
CUTS = 20


@pytest.fixture
def oars(home: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.chdir(tmp_path)
    return Line(home, tmp_path / "state")


def status(oars: Line, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(oars("jobs", "status", name, *oars.at, "-o", "json").stdout)
    return found


def wait_until(condition: Callable[[], object]) -> None:
    until(condition, 240)


class TestJobs:
    @pytest.mark.parametrize("engine", PROGRAMS)
    def test_job_of_each_engine(self, oars: Line, home: Kube, tmp_path: Path, engine: str) -> None:
        (tmp_path / "helper.py").write_text("print('helper')")
        (tmp_path / "job.py").write_text(f"import helper\n{PROGRAMS[engine]}\nraise SystemExit(3)\n")
        options = [
            "--engine",
            engine,
            "--image",
            home.image(IMAGES.get(engine, engine)),
            "--name",
            engine,
            *SMALL[:4],
            *oars.at,
        ]
        options += ["--set", "cluster.head.cpu=0.3", "--set", "cluster.head.memory=1Gi", "--set", "driver.cpu=0.2"]
        options += ["--memory", "1Gi", "--detach"]
        oars("submit", *options, "--", "python", "job.py")
        following = oars.begin("jobs", "logs", "-f", engine, *oars.at)
        wait_until(lambda: status(oars, engine)["state"] in ("Succeeded", "Failed"))
        output, errors = following.communicate(timeout=60)
        found = status(oars, engine)
        assert (found["state"], found["exit_code"], found["attempt"]) == ("Failed", 3, 1), (found, output, errors)
        assert [output.splitlines()[0], output.splitlines()[-1]] == ["helper", "42"]
        oars("jobs", "wait", engine, *oars.at, code=3)
        kept = oars("jobs", "logs", engine, *oars.at).stdout
        assert kept.splitlines() == output.splitlines()
        shown = home.kubectl("get", "computejobs", engine).splitlines()[1].split()
        assert (shown[1], shown[-2], shown[-1]) == ("Failed", engine, f"{engine}-1")
        oars("jobs", "rm", engine, *oars.at)

    def test_killed_head_gives_another_attempt(self, oars: Line, home: Kube, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_text(WAIT_ONCE)
        options = ["--engine", "dask", "--image", home.image("dask"), "--name", "lost", *SMALL[:4], *oars.at]
        options += ["--set", "cluster.head.cpu=0.3", "--set", "cluster.head.memory=512Mi", "--set", "backoff.first=1s"]
        oars("submit", *options, "--detach", "--", "python", "job.py")
        wait_until(lambda: status(oars, "lost")["state"] == "Running")
        wait_until(lambda: oars("jobs", "logs", "lost", *oars.at).stdout == "attempt 1\n")
        home.kubectl("delete", "pod", "-l", "oars.dev/cluster=lost-1,oars.dev/group=head", "--wait=false")
        wait_until(lambda: status(oars, "lost")["state"] == "Succeeded")
        found = status(oars, "lost")
        assert [each["reason"] for each in found["attempts"]] == ["HeadLost", ""]
        assert oars("jobs", "logs", "lost", "--attempt", "1", *oars.at).stdout == "attempt 1\n"
        assert oars("jobs", "logs", "lost", *oars.at).stdout == "attempt 2\n"
        oars("jobs", "rm", "lost", *oars.at)

    def test_followed_output_is_complete_though_its_connection_is_cut(
        self, oars: Line, home: Kube, tmp_path: Path, fault_proxy: Callable[..., FaultProxy]
    ) -> None:
        """It is cut twenty times, for the last time just before the driver ends."""
        (tmp_path / "job.py").write_text(COUNT)
        options = ["--engine", "dask", "--image", home.image("dask"), "--name", "cut", *SMALL[:4], *oars.at]
        options += ["--set", "cluster.head.cpu=0.3", "--set", "cluster.head.memory=512Mi", "--set", "driver.cpu=0.2"]
        oars("submit", *options, "--detach", "--", "python", "job.py")
        proxy = fault_proxy()
        proxied = Line(home, tmp_path / "proxied")
        proxied.env["KUBECONFIG"] = str(proxy.kubeconfig)
        process = proxied.begin("jobs", "logs", "-f", "cut", *oars.at)
        shown = Shown(process)

        def has_more(than: int) -> bool:
            return len(shown.text) > than

        try:
            for _ in range(CUTS):
                wait_until(partial(has_more, len(shown.text)))
                proxy.hang_up()
            home.kubectl("exec", "job/cut-1", "-c", "driver", "--", "touch", "/tmp/end")
            wait_until(lambda: process.poll() is not None)
        finally:
            process.kill()
            shown.end()
        lines = shown.text.splitlines()
        assert lines == [*(f"line {number}" for number in range(len(lines) - 1)), "end"]
        assert proxy.count(subresource="log") > CUTS
        assert oars("jobs", "logs", "cut", *oars.at).stdout == shown.text
        oars("jobs", "rm", "cut", *oars.at)
