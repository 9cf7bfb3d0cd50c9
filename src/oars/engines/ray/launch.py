"""`ray start` for many raylets on one machine. Run as a script in Ray's environment, with sys.argv = ray start …;
where every member has an address of its own, plain `ray start` is run instead.

What it changes, and why:
- Everything stays on the loopback address. Ray takes that for a mistake and puts the machine's outer one in its place.
- The head keeps its files in its own directory but knows it by a short name: Unix sockets have at most 107 characters.
- Workers share the head's directory, as nodes of one machine do in Ray's own tests: one log monitor serves all. Names
  in it carry the process id, because members that start at the same time would choose the same ones.
- Nobody waits for the dashboard, and a worker notices at once that the head is there.
- SIGTERM ends it at once: whoever sends it has drained the node or has nothing to save.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.02
HEAD_WAIT_SECONDS = 600.0


def main() -> None:
    import ray.scripts.scripts as scripts
    from ray._raylet import Config

    Config.initialize("")  # it was filled when ray was imported, perhaps in a parent with another environment
    address = option("--address")
    stay_on_loopback()
    do_not_wait_for_agents()
    if address is None:
        prepare_head()
    else:
        prepare_worker()
        await_head(address)
    end_at_once()
    scripts.main()


def option(name: str) -> str | None:
    """The value of an option of ours, always written as --name=value."""
    values = [word.partition("=")[2] for word in sys.argv if word.startswith(f"{name}=")]
    return values[-1] if values else None


def stay_on_loopback() -> None:
    import ray._private.services as services

    services.resolve_ip_for_localhost = lambda host: host


def prepare_head() -> None:
    link = f"/tmp/oars-ray-{os.getpid()}-{secrets.token_hex(3)}"
    os.symlink(os.getcwd(), link)
    sys.argv.append(f"--temp-dir={link}")
    change_parameters(ray_client_server_port=None)
    do_not_wait_for_dashboard()


def prepare_worker() -> None:
    change_parameters(include_log_monitor=False)


def change_parameters(**changes: Any) -> None:
    """Set what the command line cannot say, on the way from it to the node."""
    from ray._private.node import Node

    start: Callable[..., None] = Node.__init__
    name: Callable[..., str] = Node._make_inc_temp

    def changed_start(node: Any, parameters: Any, **options: Any) -> None:
        for key, value in changes.items():
            setattr(parameters, key, value)
        start(node, parameters, **options)

    def named_by_process(node: Any, suffix: str = "", prefix: str = "", directory_name: str | None = None) -> str:
        return name(node, suffix, f"{prefix}-{os.getpid()}", directory_name)

    Node.__init__ = changed_start
    Node._make_inc_temp = named_by_process


def do_not_wait_for_dashboard() -> None:
    """Its address is known beforehand; announced, it counts as started. It takes longer than all the rest together."""
    import ray._private.ray_constants as constants
    import ray._private.services as services
    from ray._raylet import GcsClient

    start: Callable[..., Any] = services.start_api_server

    def start_announced(wanted: bool | None, strict: bool, host: str, gcs: str, cluster: str, *rest: Any, **options: Any) -> Any:
        client = GcsClient(address=gcs, cluster_id=cluster)
        address = f"{host}:{options['port']}".encode()
        client.internal_kv_put(constants.DASHBOARD_ADDRESS.encode(), address, True, constants.KV_NAMESPACE_DASHBOARD)
        return start(wanted, strict, host, gcs, cluster, *rest, **options)

    services.start_api_server = start_announced


def do_not_wait_for_agents() -> None:
    """A raylet joins the cluster when its agents have written down their ports, seconds later. Ours are known."""
    import ray._raylet as names
    from ray._private.node import Node

    start: Callable[..., None] = Node.start_raylet

    def start_with_ports(node: Any, *arguments: Any, **options: Any) -> None:
        known = node._ray_params
        ports = {
            names.METRICS_AGENT_PORT_NAME: known.metrics_agent_port,
            names.METRICS_EXPORT_PORT_NAME: known.metrics_export_port,
            names.DASHBOARD_AGENT_LISTEN_PORT_NAME: known.dashboard_agent_listen_port,
            names.RUNTIME_ENV_AGENT_PORT_NAME: known.runtime_env_agent_port,
        }
        for name, port in ports.items():
            names.persist_port(node._session_dir, node._node_id, name, port)
        start(node, *arguments, **options)

    Node.start_raylet = start_with_ports


def await_head(address: str) -> None:
    """Until the head has a raylet. Ray itself would ask once in two seconds, and give up after forty."""
    host, _, port = address.rpartition(":")
    wait_for(lambda: accepts(host, int(port)))
    client = gcs_client(address)
    wait_for(lambda: has_head(client))


def wait_for(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HEAD_WAIT_SECONDS
    while not there():
        if time.monotonic() > deadline:
            sys.exit(f"No head within {HEAD_WAIT_SECONDS:.0f} s.")
        time.sleep(POLL_SECONDS)


def accepts(host: str, port: int) -> bool:
    """Ray's client must not be made before somebody listens: it would block for 40 seconds."""
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def gcs_client(address: str) -> Any:
    from ray._raylet import GcsClient

    return GcsClient(address=address)


def has_head(client: Any) -> bool:
    return any(node.is_head_node for node in client.get_all_node_info(timeout=5).values())


def end_at_once() -> None:
    import ray._private.ray_constants as constants

    constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S = 0


main()
