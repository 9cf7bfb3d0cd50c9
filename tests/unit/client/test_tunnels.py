"""Tunnels of a client: endpoints of a Service that may be reachable, and files with the cluster's secrets."""

from __future__ import annotations

import asyncio
import base64
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oars.base.errors import OarsError
from oars.client import tunnels as module
from oars.client.tunnels import Tunnels, endpoints, make_forwarder, owned_directory
from oars.kube.kinds import SECRET, SERVICE, Object
from oars.kube.port_forward import Forwarder
from oars.model import Port
from oars.places.kube import names
from oars.places.kube.render.values import secret_files
from oars.spec.load import build
from tests.unit.client.test_kube_backend import Server
from tests.unit.places.clusters import cluster

SERVED = (Port("scheduler", 8786), Port("dashboard", 8787))
USUAL = {"scheduler": 8786, "dashboard": 8787}


def service(*node_ports: int, ingress: tuple[dict[str, str], ...] = (), ip: str = "10.0.0.1") -> dict[str, Any]:
    ports: list[dict[str, Any]] = [{"port": port.default} for port in SERVED]
    for port, number in zip(ports, node_ports, strict=False):
        port["nodePort"] = number
    return {"spec": {"clusterIP": ip, "ports": ports}, "status": {"loadBalancer": {"ingress": list(ingress)}}}


def test_cluster_ip_is_the_only_endpoint() -> None:
    assert endpoints(service(), SERVED, "") == [("10.0.0.1", USUAL)]
    assert endpoints(service(ip="None"), SERVED, "") == []


def test_node_ports_come_before_the_cluster_ip() -> None:
    first, second = endpoints(service(30001, 30002), SERVED, "192.168.1.5")
    assert first == ("192.168.1.5", {"scheduler": 30001, "dashboard": 30002})
    assert second == ("10.0.0.1", USUAL)
    assert endpoints(service(30001), SERVED, "192.168.1.5") == [("10.0.0.1", USUAL)], "one port has no node port"


def test_load_balancer_comes_first() -> None:
    made = service(ingress=({"hostname": "lb.example.org"}, {"ip": "1.2.3.4"}))
    assert [host for host, _ in endpoints(made, SERVED, "")] == ["lb.example.org", "1.2.3.4", "10.0.0.1"]


async def no_head() -> Object | None:
    return None


def make_tunnels(*missing: str, engine: str = "dask", **spec: Any) -> Tunnels:
    """Tunnels to a cluster whose Secret lacks these keys. Its Service has no address: ports are forwarded."""
    demo, server = cluster(engine, **spec), Server()
    keys = [key for key in secret_files(demo.shape) if key not in missing]
    server.put(SECRET, names.root("demo"), data={key: base64.b64encode(key.encode()).decode() for key in keys})
    server.put(SERVICE, names.head("demo"), spec={"type": "ClusterIP", "clusterIP": "None", "ports": []})
    return Tunnels(server, build({"engine": engine}).spec, demo, no_head)


def test_two_tunnels_have_their_own_private_directories(tmp_path: Path) -> None:
    async def open_two() -> None:
        one, two = make_tunnels(), make_tunnels()
        await one.open(tmp_path)
        await two.open(tmp_path)
        assert one.directory != two.directory
        for path in (one.directory, *one.directory.iterdir()):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        await one.close()
        assert not one.directory.exists()
        assert (two.directory / "ca.pem").read_text() == "ca.pem"
        await two.close()

    asyncio.run(open_two())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("engine", "ports"), [("dask", [8786, 8787]), ("mars", [7104])])
def test_only_ports_for_clients_are_forwarded(
    engine: str, ports: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but members reaches the Mars supervisor, so it cannot show whether the Service is reachable either."""
    forwarded = []

    def forwarder(client: Any, find_head: Any, port: int) -> Forwarder:
        forwarded.append(port)
        return make_forwarder(client, find_head, port)

    async def story() -> None:
        tunnels = make_tunnels(engine=engine)
        await tunnels.open(tmp_path)
        await tunnels.close()

    monkeypatch.setattr(module, "make_forwarder", forwarder)
    asyncio.run(story())
    assert forwarded == ports


def test_client_of_a_scheduler_with_jupyter_has_the_token(tmp_path: Path) -> None:
    async def body() -> None:
        tunnels = make_tunnels(dask={"jupyter": True})
        await tunnels.open(tmp_path)
        access = tunnels.access()
        assert access.env["OARS_TOKEN_FILE"] == str(tunnels.directory / "token")
        assert (tunnels.directory / "token").read_text() == "token"
        assert access.dashboard.startswith("http://127.0.0.1:") and access.dashboard.endswith("/status")
        await tunnels.close()

    asyncio.run(body())


def test_failed_open_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(OarsError, match=r"has no key 'ca.pem'") as raised:
        asyncio.run(make_tunnels("ca.pem").open(tmp_path))
    assert "`oars why demo -n " in raised.value.hint
    assert list(tmp_path.iterdir()) == []


CODE = """
import sys
from pathlib import Path
from oars.client.tunnels import owned_directory
with owned_directory(Path(sys.argv[1]), "n-demo-") as path:
    (path / "token").write_text("secret")
    print(path, flush=True)
    sys.stdin.read()
"""


@contextmanager
def owner(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a directory."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CODE, str(parent)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_directory_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    """It contains secrets."""
    state = tmp_path / "kubernetes"
    with owner(state) as (alive, theirs), owner(state) as (killed, left):
        killed.kill()
        killed.wait()
        assert (left / "token").exists()
        (state / "n-incomplete-x").mkdir()  # of a process that was killed at the very beginning
        with owned_directory(state, "n-demo-") as mine:
            assert sorted(state.iterdir()) == sorted([theirs, mine]) and (theirs / "token").exists()
        assert alive.poll() is None
    assert list(state.iterdir()) == []


def test_names_that_end_alike_do_not_share_a_directory(tmp_path: Path) -> None:
    """Namespace a-b with cluster c, and a with b-c."""
    with owned_directory(tmp_path / "k", "a-b-c-") as first, owned_directory(tmp_path / "k", "a-b-c-") as second:
        assert first != second
