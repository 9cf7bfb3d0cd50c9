"""Who can use the web servers of real heads: programs with the token, and a browser through `oars dashboard`."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from oars import Cluster
from oars.spec.load import build
from oars.testing.driver import run_driver
from oars.testing.leaks import assert_nothing_left, files
from tests.e2e.test_compat_jupyter import EXTENSION

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

OARS = str(Path(sys.executable).with_name("oars"))
MARS = {
    "xorbits": """
import os, xorbits, xorbits.numpy as np
xorbits.init(os.environ["OARS_ADDRESS"])
print("result", float(np.ones((3, 3)).sum().to_numpy()))
xorbits.shutdown()
""",
    "pymars": """
import os, mars, mars.tensor as mt
mars.new_session(os.environ["OARS_ADDRESS"])
print("result", float(mt.ones((3, 3)).sum().execute(show_progress=False).fetch()))
""",
}


class Bomb:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def reply(url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and content."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}), timeout=60) as found:
            return found.status, found.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@contextmanager
def dashboard(cluster: Cluster) -> Iterator[str]:
    """The URL that `oars dashboard` prints, while the command runs."""
    directory = Path(cluster.driver().env["PYTHONPATH"].split(os.pathsep)[0])  # STATE/clusters/NAME/python
    env = {**os.environ, "OARS_STATE_DIR": str(directory.parents[2])}
    words = [OARS, "dashboard", cluster.name, "--no-open"]
    process = subprocess.Popen(words, env=env, text=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


@contextmanager
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For all tests of a class."""
    path, before = tmp_path_factory.mktemp("web") / "state", files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OARS_STATE_DIR", str(path))
        yield path
    assert_nothing_left(path, before)


@pytest.mark.parametrize("distribution", ["xorbits", "pymars"], scope="class")
class TestMars:
    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, distribution: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        data = {"engine": "mars", "workers": [{"replicas": 1, "memory": "1Gi"}], "mars": {"distribution": distribution}}
        with state(tmp_path_factory), Cluster(build(data).spec, name="demo", timeout="180s") as found:
            yield found

    @pytest.fixture
    def token(self, cluster: Cluster) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {Path(cluster.driver().env['OARS_TOKEN_FILE']).read_text()}"}

    def test_pickle_runs_only_with_the_token(
        self, cluster: Cluster, token: Mapping[str, str], tmp_path: Path, distribution: str
    ) -> None:
        made = tmp_path / "made"
        content = pickle.dumps(Bomb(made))
        body, url = struct.pack("Q", len(content)) + content, f"{cluster.address}/api/session/x/task"
        site = {"Content-Type": "text/plain", "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        for headers, status in [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            (site, 403),
            ({**token, "Origin": "https://evil.example"}, 403),
            ({**token, "Sec-Fetch-Site": "cross-site"}, 403),
            ({**token, "Host": "evil.example"}, 403),
        ]:
            assert reply(url, headers, body)[0] == status, headers
        assert not made.exists()
        assert reply(url, token, body)[0] == 500  # it is no graph, which Mars notices too late
        assert made.exists(), "the request is the one that must be refused"

    @pytest.mark.parametrize(
        "path", ["/", "/api/cluster/nodes", "/api/oars/nodes", "/static/bundle.js", "/api/session", "/missing"]
    )
    def test_every_page_but_health_needs_the_token(self, cluster: Cluster, path: str, distribution: str) -> None:
        assert reply(cluster.address + path)[0] == 401
        assert reply(f"{cluster.address}/api/oars/health") == (200, b"{}")

    def test_mars_own_api_needs_no_more_than_the_address(self, cluster: Cluster, distribution: str) -> None:
        assert "result 9.0" in run_driver(cluster, MARS[distribution])

    def test_error_of_a_program_without_the_token_has_a_hint(self, cluster: Cluster, distribution: str) -> None:
        driver = cluster.driver()
        env = {**driver.env, "PYTHONPATH": ""}
        done = subprocess.run(
            [driver.python, "-c", MARS[distribution]], env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode != 0
        assert "HTTP 401: This server requires the cluster's token; start programs with `oars run`" in done.stderr

    def test_browser_sees_the_page_through_the_proxy(self, cluster: Cluster, distribution: str) -> None:
        with dashboard(cluster) as url:
            assert url.endswith("/") and urlsplit(url).path != "/"
            if distribution == "pymars":  # the package of xorbits lacks the page
                assert b"<title>Mars UI</title>" in reply(url)[1]
                assert reply(f"{url}static/bundle.js")[0] == 200
            status, content = reply(f"{url}api/cluster/nodes?role=1&resource=1", {"Sec-Fetch-Site": "same-origin"})
            assert status == 200 and len(json.loads(content)["nodes"]) == 1
            host = f"http://{urlsplit(url).netloc}"
            assert [reply(f"{host}{path}")[0] for path in ("/", "/api/cluster/nodes", "/x/api/cluster/nodes")] == [
                403
            ] * 3
            assert reply(f"{url}api/cluster/nodes", {"Origin": "https://evil.example"})[0] == 403
            assert reply(f"{url}api/cluster/nodes", {"Host": "evil.example"})[0] == 403


class TestDask:
    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        data = {"engine": "dask", "workers": 1, "dask": {"dashboardAuth": "token"}}
        with state(tmp_path_factory), Cluster(build(data).spec, name="demo", timeout="120s") as found:
            yield found

    def test_dashboard_requires_the_token(self, cluster: Cluster) -> None:
        page = cluster.dashboard_link
        for path in ("/status", "/info/main/workers.html", "/metrics", "/oars/members.json", "/sitemap.json", "/"):
            assert reply(page.replace("/status", path))[0] == 401
        assert reply(page.replace("/status", "/health")) == (200, b"ok")
        assert asyncio.run(connect(page.replace("http:", "ws:") + "/ws", "")) == 401

    def test_clients_need_no_token(self, cluster: Cluster) -> None:
        source = "from distributed import Client\nprint('result', Client().submit(pow, 2, 5).result())"
        assert "result 32" in run_driver(cluster, source)

    def test_browser_sees_page_and_live_data_through_the_proxy(self, cluster: Cluster) -> None:
        with dashboard(cluster) as url:
            status, content = reply(url)
            assert status == 200 and b"<title>Dask Diagnostic UI</title>" in content
            assert reply(url.replace("/status", "/statics/css/base.css"))[0] == 200
            (key,) = set(re.findall(rb'"token":"([^"]+)"', content))
            socket = url.replace("http:", "ws:") + "/ws"
            assert "ACK" in str(asyncio.run(connect(socket, key.decode())))
            assert asyncio.run(connect(socket, key.decode(), "https://evil.example")) == 403
            assert asyncio.run(connect(re.sub(r"(:\d+)/[^/]+", r"\1/wrong", socket), key.decode())) == 403


def test_ray_dashboard_needs_no_prompt_through_the_proxy(tmp_path: Path) -> None:
    with (
        Cluster(build({"engine": "ray", "workers": 0}).spec, name="demo", timeout="120s") as cluster,
        dashboard(cluster) as url,
    ):
        status = 502
        while status == 502:  # a cluster is ready before its dashboard
            status, _ = reply(f"{url}api/version")
        assert status == 200
        assert reply(f"{cluster.dashboard_link}/api/version")[0] == 401
        assert b"<title>Ray Dashboard</title>" in reply(url)[1]


async def connect(url: str, key: str, origin: str = "") -> str | int:
    """The first message of Bokeh's WebSocket; or the status with which the connection was refused."""
    headers = {"Origin": origin or f"http://{urlsplit(url).netloc}"}
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        try:
            async with session.ws_connect(url, protocols=["bokeh", key] if key else [], headers=headers) as socket:
                return await socket.receive_str()
        except aiohttp.WSServerHandshakeError as error:
            return error.status


def test_jupyter_in_a_scheduler_runs_code_only_with_the_token(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Dask starts it without one. The extension brings Jupyter, in an environment that other tests use, too."""
    folders = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    data = {
        "engine": "dask", "workers": 0, "environment": {"packages": [EXTENSION]}, "dask": {"jupyter": True},
        "head": {"env": {**folders, "IPYTHONDIR": str(tmp_path / "ipython")}},
    }  # fmt: skip
    with state(tmp_path_factory), Cluster(build(data).spec, name="demo", timeout="180s") as cluster:
        token = Path(cluster.driver().env["OARS_TOKEN_FILE"]).read_text().strip()
        base = cluster.dashboard_link.removesuffix("/status")
        kernels, json_type = f"{base}/jupyter/api/kernels", {"Content-Type": "application/json"}
        for headers, status in [
            ({}, 403),
            ({"Authorization": "token wrong"}, 403),
            ({"Authorization": "token "}, 403),
            ({"Authorization": f"token {token}"}, 201),
        ]:
            assert reply(kernels, {**json_type, **headers}, b"{}")[0] == status, headers
        assert reply(f"{base}/jupyter/lab?token={token}")[0] == 200
        assert (
            reply(f"{base}/jupyter/api/contents")[0] == 403 and reply(f"{base}/jupyter/api/shutdown", {}, b"")[0] == 403
        )
        assert reply(f"{base}/status")[0] == 200, "the other pages are as they were"
