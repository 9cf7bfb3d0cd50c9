"""The cluster's Secret: certificates and tokens. Its content is replaced only if it is lost or its certificates expire;
then the head and all workers, which have the old content in memory, are replaced too."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from oars.base.errors import EngineUnreachable, OarsError
from oars.base.log import get_logger, pairs
from oars.engines.base import Wire
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import SECRET, Object
from oars.model import Cause, Desired
from oars.places.base import PlaceError
from oars.places.kube import names
from oars.places.kube.render import objects
from oars.places.kube.render.values import CONTROL_TOKEN, SECRETS, secret_files
from oars.places.kube.state import ownership
from oars.places.kube.state.owned_objects import OwnedObjects
from oars.secure import expiry
from oars.secure.secrets import cluster_secrets, new_token

RESTORE_SECONDS = 60.0  # for which a busy head is asked for its copy of a lost Secret
# Runs in the helper: the head's pod keeps the files of a Secret that was deleted.
READ_FILES = f"""
import base64, json, os, sys
for _ in sys.stdin:
    names = [name for name in os.listdir("{SECRETS}") if not name.startswith(".")]
    files = {{name: base64.b64encode(open(os.path.join("{SECRETS}", name), "rb").read()).decode() for name in names}}
    print(json.dumps({{"ok": files}}), flush=True)
"""

FindWire = Callable[[], Wire | None]  # to the head, if it runs

log = get_logger(__name__)


def make_secrets(name: str, kinds: Sequence[str]) -> dict[str, bytes]:
    """New content for the Secret: what the engine needs, and the helper's token."""
    return {CONTROL_TOKEN: new_token().encode(), **cluster_secrets(name, kinds)}


class ClusterSecret:
    """The Secret of one cluster, as last read. It is not watched: that would require the right to read all Secrets."""

    def __init__(self, client: Client, owned: OwnedObjects, clock: Callable[[], float]) -> None:
        self._client = client
        self._owned = owned
        self._clock = clock
        self._found: Object | None = None
        self._expires_at: float | None = None
        self._lost_at: float | None = None
        self.files: Mapping[str, bytes] = {}  # its content, which is kept when it is lost
        self.epoch = 0  # how often the content was replaced

    async def read(self, desired: Desired) -> None:
        """Read the Secret of a cluster that has a head, which cannot start without it. If it was read before, an error
        is ignored until the next time."""
        if not objects.secret_keys(desired):
            return
        try:
            found = await find_secret(self._client, desired.name, desired.namespace)
        except OarsError as error:
            if not self.files:
                raise
            log.info(pairs("secret not read", cluster=desired.name, error=error.message))
            return
        owner = self._owned.owner
        if found is None or not ownership.is_of(found, owner) or ownership.is_left(found, owner):
            self._lost_at = self._clock() if self._lost_at is None else self._lost_at
        else:
            self._use(found)

    def _use(self, found: Object) -> None:
        self._found, self._lost_at = found, None
        self.files = content(found)
        self._expires_at = expiry.expires_at(self.files)
        epoch = str((found["metadata"].get("annotations") or {}).get(names.SECRET_EPOCH, ""))
        self.epoch = int(epoch) if epoch.isdecimal() else 0

    @property
    def is_lost(self) -> bool:
        return self._lost_at is not None

    def causes(self, desired: Desired) -> tuple[Cause, ...]:
        if self._lost_at is None:
            return ()
        message = f"Secret {names.root(desired.name)}, with the cluster's certificates and tokens, was deleted."
        hint = "Oars restores it from the running head or, if that fails, replaces it with the head and all workers."
        return (Cause("SecretLost", message, hint),)

    def remarks(self, desired: Desired) -> tuple[Cause, ...]:
        delete = f"kubectl delete secret {names.root(desired.name)} -n {desired.namespace}"
        hint = f"To do it at a time of your choice, save your results and run `{delete}`."
        return expiry.announcement(self._expires_at, self._clock(), hint)

    async def ensure(self, desired: Desired, head_epoch: int | None = None, find_wire: FindWire = lambda: None) -> None:
        """Create the Secret unless it exists; restore one that was lost; replace its certificates before they expire.
        `head_epoch`: the epoch of the secrets that the head was started with; None: there is no head."""
        if not objects.secret_keys(desired):
            return
        if head_epoch is None:
            if self._found is None or self.is_lost:
                await self._create(desired, make_secrets(desired.name, desired.shape.secrets), self.epoch)
        elif self.is_lost:
            await self._restore(desired, head_epoch, find_wire)
        elif expiry.is_due(self._expires_at, self._clock()):
            await self._renew(desired, head_epoch + 1)
        elif self._found is not None and not objects.secret_keys(desired) <= self.files.keys():  # made by an older Oars
            await self._create(desired, make_secrets(desired.name, desired.shape.secrets), head_epoch)

    async def _create(self, desired: Desired, files: Mapping[str, bytes], epoch: int) -> None:
        """Create the Secret, or adopt the one that an interrupted start left, and add keys that it lacks."""
        obj = objects.secret(desired, files)
        obj["metadata"]["ownerReferences"] = [self._owned.owner]
        if epoch:
            obj["metadata"].setdefault("annotations", {})[names.SECRET_EPOCH] = str(epoch)
        try:
            found = await self._client.create(obj)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await self._owned.existing(obj)
            missing = {key: value for key, value in obj["data"].items() if key not in found.get("data", {})}
            if missing:
                found = await self._client.patch(SECRET, obj["metadata"]["name"], desired.namespace, {"data": missing})
        self._use(found)

    async def _restore(self, desired: Desired, head_epoch: int, find_wire: FindWire) -> None:
        """Create the Secret again, with the files that the head's pod still has. If the head cannot be asked, create
        one with new content."""
        is_kept = bool(self.files) and not expiry.is_announced(self._expires_at, self._clock())
        wire = find_wire() if is_kept else None
        files = await self._read_files(desired, wire) if wire is not None else {}
        if files:
            log.info(pairs("secret restored", cluster=desired.name))
            await self._create(desired, files, head_epoch)
            return
        # Without files for the engine only the helper uses the Secret, and it reads new content by itself.
        epoch = head_epoch + 1 if secret_files(desired.shape) else head_epoch
        log.warning(pairs("secret replaced", cluster=desired.name, epoch=epoch))
        await self._create(desired, make_secrets(desired.name, desired.shape.secrets), epoch)

    async def _read_files(self, desired: Desired, wire: Wire) -> dict[str, bytes]:
        """The files of the lost Secret; empty if the head has not been able to send them for RESTORE_SECONDS."""
        wanted = {CONTROL_TOKEN, *secret_files(desired.shape)}
        reason = "its files are incomplete"
        with suppress(ValueError, TypeError, AttributeError):  # an unexpected reply
            try:
                reply = await wire.ask(READ_FILES, {})
                files = {str(name): base64.b64decode(text) for name, text in reply.items()}
                if wanted <= files.keys():
                    return {name: files[name] for name in wanted}
            except EngineUnreachable as error:
                reason = error.message
        if self._lost_at is not None and self._clock() - self._lost_at < RESTORE_SECONDS:
            (cause,) = self.causes(desired)
            message = f"{cause.message} The head cannot be asked for it yet ({reason})."
            raise PlaceError(Cause(cause.reason, message, cause.hint))
        return {}

    async def _renew(self, desired: Desired, epoch: int) -> None:
        """Replace the certificates, unless another process did so since they were read (409)."""
        assert self._found is not None  # `_expires_at` was read from it
        version = self._found["metadata"]["resourceVersion"]
        new = objects.secret(desired, cluster_secrets(desired.name, ("tls",)))["data"]
        metadata = {"resourceVersion": version, "annotations": {names.SECRET_EPOCH: str(epoch)}}
        log.warning(pairs("certificates replaced", cluster=desired.name, epoch=epoch))
        body = {"metadata": metadata, "data": new}
        self._use(await self._client.patch(SECRET, names.root(desired.name), desired.namespace, body))


def content(secret: Object) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}


async def read_secrets(client: Client, cluster: str, namespace: str) -> dict[str, bytes]:
    """The Secret's content, for a client of the cluster; empty if there is no Secret."""
    try:
        found = await find_secret(client, cluster, namespace)
    except ApiError as error:
        raise OarsError(
            f"The secrets of {cluster!r} cannot be read: {error.message}",
            "Ask for the right to get this Secret; `oars rbac --mode user` prints it.",
        ) from error
    return content(found or {})


async def find_secret(client: Client, cluster: str, namespace: str) -> Object | None:
    """The cluster's Secret, if there is one."""
    try:
        return await client.get(SECRET, names.root(cluster), namespace)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
