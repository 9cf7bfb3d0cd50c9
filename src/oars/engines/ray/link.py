"""This process's connection to one Ray cluster.

Without it, Ray ends the whole process when the head is gone for a while, or lets calls wait forever when a new head
starts soon enough. So a thread holds a connection to the head; when it breaks, Ray is shut down in this process and
every call in flight fails with ClusterLost.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from oars.base.errors import ClusterLost, EngineMissing, EngineUnreachable, UsageError
from oars.engines.base import Access
from oars.engines.sessions import PYTHON, version_mismatch

CONNECT_SECONDS = 5.0
RECONNECT_TIMEOUT = "RAY_gcs_rpc_server_reconnect_timeout_s"
NEVER = str(10**6)  # seconds after which Ray ends the user's process; this module notices long before
AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
GUARDED = ("get", "wait")
ALIVE = 0  # GcsNodeInfo.GcsNodeState
# Ray's error message for different versions: first the cluster's, then this process's.
MISMATCH = re.compile(r"(?s)mismatch.*?Ray: (\S+).*?Python: (\S+).*?Ray: (\S+).*?Python: (\S+)")
# Ray allows one connection at a time, and closes it asynchronously.
_RAY_LOCK = threading.Lock()
RAY_CLIENT = "ray://"  # scheme of the Ray Client server, for programs that nodes cannot connect to


class Link:
    """A connected ray module. When the head is gone, `lost` is set and the callbacks in `on_loss` are called."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.address = access.address
        self._is_ray_client = access.address.startswith(RAY_CLIENT)
        self.users = 0
        self.lost = threading.Event()
        self.on_loss: set[Callable[[ClusterLost], None]] = set()
        self.ray: Any = _import_ray()
        self._closing = False
        self._changes = Changes(self.ray)
        with _RAY_LOCK:
            self._is_owner = not self.ray.is_initialized()
            try:
                self._socket = _dial(access)
                self._connect(access)
            except BaseException:
                self._changes.undo()
                raise
        self._cluster = None if self._is_ray_client else self.ray._private.worker._global_node.cluster_id
        threading.Thread(target=self._watch, name="oars-ray-watch", daemon=True).start()

    def _connect(self, access: Access) -> None:
        if self._is_owner:
            self._changes.set_environment(access)
            # Ray warns if this is not the main thread; later warnings are for the user.
            self._init(access)
            logging.getLogger("ray").setLevel(logging.WARNING)
        elif self._is_ray_client or self.ray.get_runtime_context().gcs_address != access.address:
            hint = "Call ray.shutdown() first, or use another process."
            raise UsageError("This process is connected to another Ray cluster already.", hint)
        for name in GUARDED:
            self._changes.set(self.ray, name, self._guard(getattr(self.ray, name)))
        worker = self.ray._private.worker
        if sys.excepthook is worker.custom_excepthook:
            # Ray's hook reports the error to the head before it prints it, and waits without limit for a lost head.
            self._changes.set(sys, "excepthook", worker.normal_excepthook)

    def _init(self, access: Access) -> None:
        try:
            self.ray.init(address=access.address, logging_level=logging.ERROR)
        except RuntimeError as error:
            found = MISMATCH.search(str(error))
            if found is None:
                raise
            there, here = (
                dict(zip(("Ray", PYTHON), pair, strict=True)) for pair in (found.groups()[:2], found.groups()[2:])
            )
            raise version_mismatch(access, here, there) from error

    @property
    def usable(self) -> bool:
        return not self.lost.is_set() and bool(self.ray.is_initialized())

    def error(self) -> ClusterLost:
        return ClusterLost(
            f"The head of the Ray cluster {self.access.name!r} died, and its running tasks are lost.",
            f"Oars restarts the head: connect again and repeat the calls. "
            f"`{self.access.command('why')}` shows the cause.",
        )

    def processors(self) -> float:
        """The CPUs of the cluster's nodes. ray.cluster_resources() would abort this process if the head has just been
        replaced; the GCS client raises an error."""
        if self._is_ray_client:  # the server next to the head makes the call
            return float(self.ray.cluster_resources().get("CPU", 0.0))
        nodes = self.ray._private.worker.global_worker.gcs_client.get_all_node_info(timeout=CONNECT_SECONDS)
        return float(sum(n.resources_total.get("CPU", 0.0) for n in nodes.values() if n.state == ALIVE))

    def close(self) -> None:
        """Disconnect, unless the program had called ray.init() itself."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with _RAY_LOCK:
            if self._is_owner and self.ray.is_initialized():
                self.ray.shutdown()
            self._changes.undo()

    # Watching the head.

    def _watch(self) -> None:
        while not self._closing:
            with contextlib.suppress(OSError):  # a reset ends the connection too
                while self._socket.recv(4096):
                    pass
            if not self._closing and not self._same_head():
                self._lose()
                return

    def _same_head(self) -> bool:
        """True if the head still runs: it closes connections that are silent for two minutes."""
        try:
            self._socket = socket.create_connection(_split(self.address), CONNECT_SECONDS)
            self._socket.settimeout(None)
            if self._is_ray_client:
                return bool(self.ray.util.client.ray.get_context().client_worker.ping_server(CONNECT_SECONDS))
            return bool(self.ray._raylet.GcsClient(address=self.address).cluster_id == self._cluster)
        except Exception:  # noqa: BLE001 (any error means that this head is not ours)
            return False

    def _lose(self) -> None:
        with _RAY_LOCK:
            self.lost.set()
            self._changes.set(self.ray._private.auto_init_hook, "enable_auto_connect", False)
        for callback in list(self.on_loss):  # a callback may close this link
            callback(self.error())
        with _RAY_LOCK:
            if not self._closing:
                self.ray.shutdown()

    def _guard(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Raise ClusterLost instead of SystemExit, which Ray raises in waiting calls when it is shut down."""

        @functools.wraps(call)
        def guarded(*arguments: Any, **options: Any) -> Any:
            if self.lost.is_set():
                raise self.error()
            try:
                return call(*arguments, **options)
            except SystemExit:
                if self.lost.is_set():
                    raise self.error() from None
                raise

        return guarded


class Changes:
    """Changes to this process while it is connected; undo() reverts them, except those that others changed again."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._attributes: list[tuple[Any, str, Any, Any]] = []  # owner, name, value before, value now
        self._variables: dict[str, str | None] = {}

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._attributes.append((owner, name, getattr(owner, name), value))
        setattr(owner, name, value)

    def set_environment(self, access: Access) -> None:
        """Set the variables that Ray reads when it connects, in place of those of an earlier cluster."""
        variables = {name: access.env.get(name) for name in AUTH} | {RECONNECT_TIMEOUT: NEVER}
        self._variables = {name: os.environ.get(name) for name in variables}
        self._apply(variables)
        if _split(access.address)[0] in LOOPBACK:
            # Otherwise Ray connects to the machine's external address, where nothing listens.
            self.set(self._ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)

    def undo(self) -> None:
        for owner, name, before, now in reversed(self._attributes):
            if getattr(owner, name) is now:
                setattr(owner, name, before)
        self._apply(self._variables)
        self._attributes, self._variables = [], {}

    def _apply(self, variables: Mapping[str, str | None]) -> None:
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._ray._raylet.Config.initialize("")
        self._ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise EngineMissing(
            f"This Python cannot import ray: {error}.", "Install it with `pip install 'oars[ray]'`, or use `oars run`."
        ) from error
    return ray


def _dial(access: Access) -> socket.socket:
    """Connect before Ray does: Ray blocks for most of a minute if nothing listens."""
    try:
        connection = socket.create_connection(_split(access.address), CONNECT_SECONDS)
    except OSError as error:
        raise EngineUnreachable(
            f"The head of the Ray cluster {access.name!r} does not reply at {access.address}: {error}.",
            f"Run `{access.command('why')}`.",
        ) from error
    connection.settimeout(None)
    return connection


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix(RAY_CLIENT).rpartition(":")
    return host, int(port)
