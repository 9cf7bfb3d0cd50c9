"""`ray start` for many raylets on one machine. Run as a script in Ray's environment, with sys.argv = ray start …;
where every member has an address of its own, plain `ray start` is run instead.

What it changes, and why:
- Everything stays on the loopback address. Ray takes that for a mistake and puts the machine's outer one in its place.
- The directory goes by a short name: the path of a Unix socket has at most 107 characters.
- Workers share the head's directory, as the nodes of one machine do in Ray's own tests: one log monitor serves all.
  Names in it carry the process id, because members that start at the same time would choose the same ones.
- A raylet joins before its agents run, and the head is there before its dashboard: their ports are known beforehand.
- Without a dashboard its agents, one beside each raylet, are Ray's small ones.
- A worker notices at once that the head is there.
- A head that comes back waits until those who knew the old one have given up (see linger).
- SIGTERM ends it at once: whoever sends it has drained the node or has nothing to save.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.02
HEAD_WAIT_SECONDS = 600.0


def main() -> None:
    of_ray("_raylet").Config.initialize(
        ""
    )  # it was filled when ray was imported, perhaps in a parent with another environment
    directory = take_option("--temp-dir")
    link = shorten(directory)
    stay_on_loopback()
    end_at_once()
    name_by_process()
    if os.environ.get("OARS_RAY_LIGHT"):
        use_small_agents()
    announce_agents()
    address = find_option("--address")
    if address is None:
        linger(directory)
        sys.argv.append(f"--temp-dir={link}")
        put_off_dashboard()
        change_parameters(ray_client_server_port=None)
    else:
        change_parameters(include_log_monitor=False)
        await_head(address)
    of_ray("scripts.scripts").main()


def of_ray(name: str) -> Any:
    """A module of Ray's, most of which are private: what we change has no official switch."""
    return importlib.import_module(f"ray.{name}")  # noqa: TID251 (a script of its own, not part of the package)


def find_option(name: str) -> str | None:
    """The value of an option, always written as --name=value here."""
    values = [word.partition("=")[2] for word in sys.argv if word.startswith(f"{name}=")]
    return values[-1] if values else None


def take_option(name: str) -> str:
    value = find_option(name)
    sys.argv[:] = [word for word in sys.argv if not word.startswith(f"{name}=")]
    return value or os.getcwd()


def shorten(directory: str) -> str:
    """A name in /tmp for the directory; whoever started us removes it."""
    link = f"/tmp/oars-ray-{os.environ['OARS_TAG']}"
    os.symlink(directory, link)
    os.environ["TMPDIR"] = link
    return link


def stay_on_loopback() -> None:
    of_ray("_private.services").resolve_ip_for_localhost = lambda host: host


def end_at_once() -> None:
    of_ray("_private.ray_constants").RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S = 0


def name_by_process() -> None:
    node_class = of_ray("_private.node").Node
    name: Callable[..., str] = node_class._make_inc_temp

    def named(node: Any, suffix: str = "", prefix: str = "", directory_name: str | None = None) -> str:
        return name(node, suffix, f"{prefix}-{os.getpid()}", directory_name)

    node_class._make_inc_temp = named


def use_small_agents() -> None:
    """Without a dashboard nobody asks its agents for more than they do in an installation that has no dashboard."""
    of_ray("_private.utils").get_dashboard_dependency_error = lambda: ImportError("there shall be no dashboard")


def announce_agents() -> None:
    """A raylet joins when its agents, seconds after it, have written down which ports they took. Ours are given."""
    raylet, node_class = of_ray("_raylet"), of_ray("_private.node").Node
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


def put_off_dashboard() -> None:
    """The dashboard and the monitor are started after the raylet, and nobody waits for them: together they take longer
    than all the rest. Without a dashboard Ray would still run its server, empty; we do not."""
    constants, node_class = of_ray("_private.ray_constants"), of_ray("_private.node").Node
    start, dashboard, monitor = node_class.__init__, node_class.start_api_server, node_class.start_monitor

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
        monitor(node)

    node_class.__init__ = start_in_order
    node_class.start_api_server = announce
    node_class.start_monitor = lambda node: None


def change_parameters(**changes: Any) -> None:
    """Set what the command line cannot say, on the way from there to the node."""
    node_class = of_ray("_private.node").Node
    start: Callable[..., None] = node_class.__init__

    def start_changed(node: Any, parameters: Any, **options: Any) -> None:
        for key, value in changes.items():
            setattr(parameters, key, value)
        start(node, parameters, **options)

    node_class.__init__ = start_changed


def linger(directory: str) -> None:
    """Drivers of a head that died cannot work with the next one, but those that find it in time wait for ever. They
    give up, with an error, when nobody has answered for as long as their environment says."""
    seconds = float(os.environ.get("OARS_RAY_LINGER", "0"))
    if seconds and os.path.lexists(os.path.join(directory, "session_latest")):
        time.sleep(seconds)


def await_head(address: str) -> None:
    """Until the head has a raylet. Ray itself would ask every two seconds, and give up after forty."""
    host, _, port = address.rpartition(":")
    wait_for(lambda: accepts(host, int(port)))
    client = of_ray("_raylet").GcsClient(address=address)
    wait_for(lambda: has_head(client))


def wait_for(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HEAD_WAIT_SECONDS
    while not there():
        if time.monotonic() > deadline:
            sys.exit(f"There was no head within {HEAD_WAIT_SECONDS:.0f} s.")
        time.sleep(POLL_SECONDS)


def accepts(host: str, port: int) -> bool:
    """Ray's client must not be made before somebody listens: it would block for 40 seconds."""
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def has_head(client: Any) -> bool:
    return any(node.is_head_node for node in client.get_all_node_info(timeout=5).values())


if __name__ == "__main__":
    main()
