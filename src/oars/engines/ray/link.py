"""This process's connection to one Ray cluster: made, watched and undone.

Ray left alone ends the whole process when the head is gone for a while, or lets calls wait for ever when a new head
comes soon enough. So a thread holds a connection to the head; when that breaks, Ray is shut down in this process and
every call in flight fails with ClusterLost.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from oars.base.errors import ClusterLost, EngineMissing, EngineUnreachable, UsageError
from oars.engines.base import Access
from oars.engines.versions import PYTHON, mismatch

CONNECT_SECONDS = 5.0
PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
NEVER = str(10**6)  # seconds after which Ray may end the user's process; the watch is there before
AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
GUARDED = ("get", "wait")
# What Ray says when the versions of cluster and program differ: first the cluster's, then ours.
MISMATCH = re.compile(r"(?s)mismatch.*?Ray: (\S+).*?Python: (\S+).*?Ray: (\S+).*?Python: (\S+)")
# Ray knows one connection at a time, and is not done with one as soon as it says so: the next waits for its end.
_ONE_AT_A_TIME = threading.Lock()
OUTSIDE = "ray://"  # through a server beside the head, where nodes cannot dial this program


class Link:
    """A connected ray module. `lost` is set, and what is in `on_loss` is called, when the head has gone."""

    def __init__(self, access: Access) -> None:
        self.name = access.name
        self.address = access.address
        self._from_outside = access.address.startswith(OUTSIDE)
        self.users = 0
        self.lost = threading.Event()
        self.on_loss: set[Callable[[ClusterLost], None]] = set()
        self.ray: Any = _import_ray()
        self._closing = False
        self._changes = Changes(self.ray)
        with _ONE_AT_A_TIME:
            self._own = not self.ray.is_initialized()
            try:
                self._socket = _dial(access)
                self._connect(access)
            except BaseException:
                self._changes.undo()
                raise
        self._cluster = None if self._from_outside else self.ray._private.worker._global_node.cluster_id
        threading.Thread(target=self._watch, name="oars-ray-watch", daemon=True).start()

    def _connect(self, access: Access) -> None:
        if self._own:
            self._changes.set_environment(access)
            # Not the main thread's, perhaps, of which Ray warns; other warnings are for the user.
            self._init(access)
            logging.getLogger("ray").setLevel(logging.WARNING)
        elif self._from_outside or self.ray.get_runtime_context().gcs_address != access.address:
            hint = "Call ray.shutdown() first, or use another process."
            raise UsageError("This process is connected to another Ray cluster already.", hint)
        for name in GUARDED:
            self._changes.set(self.ray, name, self._guard(getattr(self.ray, name)))

    def _init(self, access: Access) -> None:
        try:
            self.ray.init(address=access.address, logging_level=logging.ERROR)
        except RuntimeError as error:
            told = MISMATCH.search(str(error))
            if told is None:
                raise
            there, here = (
                dict(zip(("Ray", PYTHON), pair, strict=True)) for pair in (told.groups()[:2], told.groups()[2:])
            )
            raise mismatch(access.name, here, there) from error

    @property
    def usable(self) -> bool:
        return not self.lost.is_set() and bool(self.ray.is_initialized())

    def error(self) -> ClusterLost:
        return ClusterLost(
            f"The head of the Ray cluster {self.name!r} is gone, and with it what was running.",
            "The cluster heals itself: connect again and repeat the calls. `oars why` says what happened.",
        )

    def close(self) -> None:
        """Disconnect, unless somebody else had connected before us."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with _ONE_AT_A_TIME:
            if self._own and self.ray.is_initialized():
                self.ray.shutdown()
            self._changes.undo()

    # the watch

    def _watch(self) -> None:
        while not self._closing:
            self._wait_for_end()
            if self._closing:
                return
            if not self._same_head():
                self._lose()
                return

    def _wait_for_end(self) -> None:
        try:
            while self._socket.recv(4096):
                pass
        except OSError:
            pass  # reset: an end like any other

    def _same_head(self) -> bool:
        """The head also hangs up on those who say nothing for two minutes; then it is still there."""
        host, port = _split(self.address)
        try:
            self._socket = socket.create_connection((host, port), CONNECT_SECONDS)
            self._socket.settimeout(None)
            if self._from_outside:
                return bool(self.ray.util.client.ray.get_context().client_worker.ping_server(CONNECT_SECONDS))
            return bool(self.ray._raylet.GcsClient(address=self.address).cluster_id == self._cluster)
        except Exception:  # noqa: BLE001 (whatever goes wrong here, there is no head that knows us)
            return False

    def _lose(self) -> None:
        with _ONE_AT_A_TIME:
            self.lost.set()
            self._changes.set(self.ray._private.auto_init_hook, "enable_auto_connect", False)
        for callback in list(self.on_loss):  # these may close us
            callback(self.error())
        with _ONE_AT_A_TIME:
            if not self._closing:
                self.ray.shutdown()

    def _guard(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Ray shut down under a waiting call raises SystemExit there, which would end the program without a word."""

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
    """What is changed in this process while it is connected, and put back afterwards."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._attributes: list[tuple[Any, str, Any]] = []
        self._variables: dict[str, str | None] = {}

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._attributes.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def set_environment(self, access: Access) -> None:
        """Ray reads these when it connects; what it remembers of an earlier cluster, its token above all, must go."""
        wanted = {name: access.env.get(name) for name in AUTH} | {PATIENCE: NEVER}
        self._variables = {name: os.environ.get(name) for name in wanted}
        self._apply(wanted)
        if _split(access.address)[0] in LOOPBACK:
            # Or Ray would call the machine's outer address instead, where nobody listens.
            self.set(self._ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)

    def undo(self) -> None:
        for owner, name, value in reversed(self._attributes):
            setattr(owner, name, value)
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
    """Look before Ray does: where nobody listens it blocks for most of a minute."""
    host, port = _split(access.address)
    try:
        connection = socket.create_connection((host, port), CONNECT_SECONDS)
    except OSError as error:
        raise EngineUnreachable(
            f"The head of the Ray cluster {access.name!r} does not answer at {access.address}: {error}.",
            f"`oars why {access.name}` says what is the matter with it.",
        ) from error
    connection.settimeout(None)
    return connection


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix(OUTSIDE).rpartition(":")
    return host, int(port)
