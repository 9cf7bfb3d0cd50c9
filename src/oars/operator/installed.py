"""Putting the operator into a cluster, looking at it, and taking it out again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from oars.base.errors import NotFound, OarsError, TimedOut
from oars.kube import kinds
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_expired, is_not_found
from oars.kube.kinds import Kind
from oars.kube.lease import holder
from oars.operator import NAME, crd, manifests
from oars.operator.manifests import InstallOptions

T = TypeVar("T")
Object = dict[str, Any]
Tell = Callable[[str], None]
SHOWN_NAMES = 5
PART = "app.kubernetes.io/part-of=oars"


async def install(client: Client, options: InstallOptions, seconds: float, tell: Tell) -> str:
    """Apply everything and wait until an operator leads: who. Nobody, if it has no replicas: it runs elsewhere."""
    where = options.namespace
    try:
        async with asyncio.timeout(seconds):
            await _apply(client, options, tell)
            if not options.replicas:
                return ""
            tell("waiting for a pod of the operator")
            await _until(client, kinds.DEPLOYMENT, where, lambda: _rolled_out(client, where))
            tell("waiting for a leader")
            return await _until(client, kinds.LEASE, where, lambda: holder(client, where, NAME))
    except TimeoutError:
        raise await _late(client, where, seconds) from None


async def uninstall(client: Client, where: str, seconds: float, tell: Tell, *, force: bool = False) -> None:
    """Remove everything, the clusters too if that is what `force` asks for."""
    running = await clusters(client)
    if running and not force:
        hint = "Delete them first, or say --force: that deletes them with all their pods."
        raise OarsError(f"There are clusters that the operator runs: {_some(running)}.", hint)
    try:
        async with asyncio.timeout(seconds):
            await _delete_clusters(client, running, tell)
            await _delete_all(client, where, tell)
    except TimeoutError:
        hint = "Run it again with a longer --timeout; what is gone stays gone."
        raise TimedOut(f"The operator was not removed within {seconds:.0f} s.", hint) from None


async def status(client: Client, where: str) -> Object:
    """What there is, and who leads."""
    found = await _found(client.get(kinds.DEPLOYMENT, NAME, where))
    if found is None:
        hint = "`oars operator install` installs one; `oars operator run` runs one here."
        raise NotFound(f"There is no operator in namespace {where}.", hint)
    container = found["spec"]["template"]["spec"]["containers"][0]
    arguments = [argument.partition("=") for argument in container.get("args", ())]
    return {
        "namespace": where,
        "image": container["image"],
        "replicas": found["spec"].get("replicas", 1),
        "ready": found.get("status", {}).get("readyReplicas", 0),
        "leader": await holder(client, where, NAME),
        "watches": [value for name, _, value in arguments if name == "--namespace"],
        "clusters": len(await clusters(client)),
    }


async def clusters(client: Client) -> list[Object]:
    """All clusters; none where nobody knows the kind."""
    try:
        return (await client.list(kinds.COMPUTE_CLUSTER)).items
    except ApiError as error:
        if is_not_found(error):
            return []
        raise


# installing


async def _apply(client: Client, options: InstallOptions, tell: Tell) -> None:
    for obj in manifests.install(options):
        kind, name = kinds.of(obj), obj["metadata"]["name"]
        if kind == kinds.NAMESPACE and await _foreign(client, name):
            continue
        tell(f"{kind.kind} {name}")
        await client.apply(obj)


async def _foreign(client: Client, namespace: str) -> bool:
    """A namespace that somebody else made: its labels are not ours to set, and it stays when we go."""
    found = await _found(client.get(kinds.NAMESPACE, namespace))
    return found is not None and not _made(found)


def _made(namespace: Object) -> bool:
    labels: dict[str, str] = namespace["metadata"].get("labels", {})
    return manifests.MADE.items() <= labels.items()


async def _rolled_out(client: Client, where: str) -> bool:
    """Whether none of the old is left and one of the new is ready. Its fellows may take their time."""
    found = await client.get(kinds.DEPLOYMENT, NAME, where)
    state = found.get("status", {})
    new = state.get("updatedReplicas", 0)
    seen = state.get("observedGeneration", 0) >= found["metadata"]["generation"]
    return bool(seen and new and state.get("replicas", 0) == new and state.get("readyReplicas", 0))


async def _until(client: Client, kind: Kind, where: str | None, ask: Callable[[], Awaitable[T | None]]) -> T:
    """What `ask` answers once it is something; asked again at every change of such objects. Callers have deadlines."""
    while True:
        listing = await client.list(kind, where)
        if answer := await ask():
            return answer
        try:
            async for _ in client.watch(kind, where, resource_version=listing.resource_version):
                if answer := await ask():
                    return answer
        except ApiError as error:
            if not is_expired(error):
                raise


async def _late(client: Client, where: str, seconds: float) -> OarsError:
    """The deadline passed: what its pods say."""
    pods = await client.list(kinds.POD, where, labels="app.kubernetes.io/component=operator")
    details = tuple(line for pod in pods.items for line in _troubles(pod))
    hint = f"See `kubectl -n {where} describe pods`; --image names the image."
    return TimedOut(f"No operator leads in namespace {where} after {seconds:.0f} s.", hint, details)


def _troubles(pod: Object) -> list[str]:
    name, state = pod["metadata"]["name"], pod.get("status", {})
    waiting = [each["state"]["waiting"] for each in state.get("containerStatuses", ()) if "waiting" in each["state"]]
    lines = [f"{name}: {each.get('reason', '')} {each.get('message', '')}".rstrip() for each in waiting]
    unmet = [each for each in state.get("conditions", ()) if each["status"] != "True" and each.get("message")]
    return lines or [f"{name}: {each['message']}" for each in unmet[:1]] or [f"{name}: {state.get('phase', '')}"]


# removing


def _some(found: Sequence[Object]) -> str:
    names = [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in found]
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


async def _delete_clusters(client: Client, found: Sequence[Object], tell: Tell) -> None:
    """While the operator still lives, so that it can end them well."""
    if not found:
        return
    tell(f"deleting {_some(found)}")
    for each in found:
        await client.delete(kinds.COMPUTE_CLUSTER, each["metadata"]["name"], each["metadata"]["namespace"])

    async def gone() -> bool:
        return not await clusters(client)

    await _until(client, kinds.COMPUTE_CLUSTER, None, gone)


async def _delete_all(client: Client, where: str, tell: Tell) -> None:
    """In reverse, so that nothing loses what it needs while it runs."""
    for obj in reversed(manifests.install(InstallOptions(namespace=where))):
        kind, name = kinds.of(obj), obj["metadata"]["name"]
        if kind == kinds.NAMESPACE:
            continue
        tell(f"deleting {kind.kind} {name}")
        await client.delete(kind, name, obj["metadata"].get("namespace"))
    await _delete_grants(client)
    found = await _found(client.get(kinds.NAMESPACE, where))
    if found is not None and _made(found):
        tell(f"deleting Namespace {where}")
        await client.delete(kinds.NAMESPACE, where)
        await _await_gone(client, kinds.NAMESPACE, where, tell)
    await _await_gone(client, kinds.CRD, crd.NAME, tell)


async def _await_gone(client: Client, kind: Kind, name: str, tell: Tell) -> None:
    """Whoever installs it again at once would build on what is about to vanish."""

    async def is_gone() -> bool:
        return await _found(client.get(kind, name)) is None

    if not await is_gone():
        tell(f"waiting until {kind.kind} {name} is gone")
        await _until(client, kind, None, is_gone)


async def _delete_grants(client: Client) -> None:
    """What an operator that watches some namespaces has there."""
    for kind in (kinds.ROLE_BINDING, kinds.ROLE):
        for each in (await client.list(kind, labels=PART)).items:
            if each["metadata"]["name"] == NAME:
                await client.delete(kind, NAME, each["metadata"]["namespace"])
    for kind in (kinds.CLUSTER_ROLE_BINDING, kinds.CLUSTER_ROLE):
        await client.delete(kind, f"{NAME}-nodes")


async def _found(request: Coroutine[Any, Any, Object]) -> Object | None:
    try:
        return await request
    except ApiError as error:
        if is_not_found(error):
            return None
        raise
