"""Runs `ray start` for many raylets on one machine. A script in Ray's environment, with sys.argv = ray start …; places
where each member has its own address run plain `ray start`.

Differences from plain `ray start`:
- What is on the loopback address stays there. Ray would replace it by the machine's external address.
- The directory gets a short name: the path of a Unix socket has at most 107 characters.
- Workers on the head's machine share its directory, as in Ray's own tests: one log monitor serves all.
  Names in it contain the process id, because members that start at the same time would choose the same ones.
- A raylet joins before its agents run, and the head before its dashboard: their ports are known in advance.
- Without a dashboard, each raylet runs Ray's minimal agents.
- A worker notices at once that the head is up.
- A restarted head waits until drivers of the old one have given up (see delay_new_head).
- SIGTERM ends it immediately: the node is drained, or there is nothing to save.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

LOOPBACK = "127.0.0.1"  # the address of members if all are on one machine
POLL_SECONDS = 0.02
HEAD_WAIT_SECONDS = 600.0
RANDOM_LENGTH = 5  # not more: the names of Ray's sockets leave 33 characters for the link


def main() -> None:
    # Read the environment again: ray may have been imported before the fork.
    ray_module("_raylet").Config.initialize("")
    directory = take_option("--temp-dir")
    link = shorten(directory)
    ray_module("_private.services").resolve_ip_for_localhost = lambda host: host
    # Programs that tasks start keep the loopback address of RAY_ADDRESS, too. Ray itself has read the variable already:
    # with it `ray start` would refuse a second node.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_module("_private.ray_constants").RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S = 0
    add_pid_to_names()
    if os.environ.get("OARS_RAY_MINIMAL_AGENTS"):  # make Ray behave as in an installation without the dashboard
        error = ImportError("the dashboard is switched off")
        ray_module("_private.utils").get_dashboard_dependency_error = lambda: error
    announce_agent_ports()
    address = find_option("--address")
    if address is None:
        delay_new_head(directory)
        sys.argv.append(f"--temp-dir={link}")
        defer_dashboard()
        change_parameters(ray_client_server_port=None)
    else:
        if find_option("--node-ip-address") == LOOPBACK:
            change_parameters(include_log_monitor=False)
        else:
            sys.argv.append(f"--temp-dir={link}")
        wait_for_head(address)
    ray_module("scripts.scripts").main()


def ray_module(name: str) -> Any:
    """A module of Ray, mostly a private one: there are no official settings for what this script changes."""
    return importlib.import_module(f"ray.{name}")  # noqa: TID251 (a standalone script)


def find_option(name: str) -> str | None:
    """The value of an option; here options are always written --name=value."""
    values = [word.partition("=")[2] for word in sys.argv if word.startswith(f"{name}=")]
    return values[-1] if values else None


def take_option(name: str) -> str:
    value = find_option(name)
    sys.argv[:] = [word for word in sys.argv if not word.startswith(f"{name}=")]
    return value or os.getcwd()


def shorten(directory: str) -> str:
    """Create a symbolic link in /tmp to the directory; the place removes it. A part of its name is random, so that
    another user cannot take the name in advance."""
    while True:
        link = f"/tmp/oars-ray-{os.environ['OARS_TAG']}-{secrets.token_urlsafe(4)[:RANDOM_LENGTH]}"
        try:
            os.symlink(directory, link)
        except FileExistsError:
            continue
        os.environ["TMPDIR"] = link
        return link


def add_pid_to_names() -> None:
    node_class = ray_module("_private.node").Node
    name: Callable[..., str] = node_class._make_inc_temp

    def named(node: Any, suffix: str = "", prefix: str = "", directory_name: str | None = None) -> str:
        return name(node, suffix, f"{prefix}-{os.getpid()}", directory_name)

    node_class._make_inc_temp = named


def announce_agent_ports() -> None:
    """A raylet joins only after its agents, seconds later, have written their ports to files. Write them in advance."""
    raylet, node_class = ray_module("_raylet"), ray_module("_private.node").Node
    start: Callable[..., None] = node_class.start_raylet

    def start_announced(node: Any, *arguments: Any, **options: Any) -> None:
        given = node._ray_params
        ports = {
            raylet.METRICS_AGENT_PORT_NAME: given.metrics_agent_port,
            raylet.METRICS_EXPORT_PORT_NAME: given.metrics_export_port,
            raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME: given.dashboard_agent_listen_port,
            raylet.RUNTIME_ENV_AGENT_PORT_NAME: given.runtime_env_agent_port,
        }
        for name, port in ports.items():
            raylet.persist_port(node._session_dir, node._node_id, name, port)
        start(node, *arguments, **options)

    node_class.start_raylet = start_announced


def defer_dashboard() -> None:
    """Start the dashboard after the raylet, without waiting for it: it takes longer than all else. If the dashboard is
    switched off, do not start its server at all; Ray would start an empty one."""
    constants, node_class = ray_module("_private.ray_constants"), ray_module("_private.node").Node
    start, dashboard = node_class.__init__, node_class.start_api_server

    def announce(node: Any, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        node._webui_url = ""
        if include_dashboard is not False:
            node._webui_url = f"{node._ray_params.dashboard_host}:{node._ray_params.dashboard_port}"
            for name in (constants.DASHBOARD_ADDRESS.encode(), b"webui:url"):
                place = constants.KV_NAMESPACE_DASHBOARD
                node.get_gcs_client().internal_kv_put(name, node._webui_url.encode(), True, place)

    def start_in_order(node: Any, parameters: Any, **options: Any) -> None:
        start(node, parameters, **options)
        if node._webui_url:
            dashboard(node, include_dashboard=None, raise_on_failure=False)

    node_class.__init__ = start_in_order
    node_class.start_api_server = announce


def change_parameters(**changes: Any) -> None:
    """Set parameters of the node that have no command-line option."""
    node_class = ray_module("_private.node").Node
    start: Callable[..., None] = node_class.__init__

    def start_changed(node: Any, parameters: Any, **options: Any) -> None:
        for key, value in changes.items():
            setattr(parameters, key, value)
        start(node, parameters, **options)

    node_class.__init__ = start_changed


def delay_new_head(directory: str) -> None:
    """Wait until drivers of a previous head have failed. They cannot use the new head, but would wait forever if they
    reached it within their reconnect timeout."""
    seconds = float(os.environ.get("OARS_RAY_NEW_HEAD_DELAY", "0"))
    if seconds and os.path.lexists(os.path.join(directory, "session_latest")):
        time.sleep(seconds)


def wait_for_head(address: str) -> None:
    """Wait until the head's raylet has joined. Ray itself polls every two seconds and gives up after forty."""
    host, _, port = address.rpartition(":")
    wait_for(lambda: accepts(host, int(port)))
    client = ray_module("_raylet").GcsClient(address=address)
    wait_for(lambda: has_head(client))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HEAD_WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"Timed out after {HEAD_WAIT_SECONDS:.0f} s waiting for the head.")
        time.sleep(POLL_SECONDS)


def accepts(host: str, port: int) -> bool:
    """Ray's client would block for 40 seconds if nothing listens."""
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def has_head(client: Any) -> bool:
    return any(node.is_head_node for node in client.get_all_node_info(timeout=5).values())


if __name__ == "__main__":
    main()
