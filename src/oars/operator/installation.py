"""Install the operator, show its status, and uninstall it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from oars.base.errors import NotFound, OarsError, TimedOut
from oars.kube import kinds
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_expired, is_not_found
from oars.kube.kinds import Kind, Object
from oars.kube.lease import find_holder
from oars.operator import ADOPTABLE, MARS_JOB, NAME, admission, crd, kubedl, manifests
from oars.operator.manifests import InstallOptions
from oars.places.kube.kinds import COMPUTE_CLUSTER

T = TypeVar("T")
Progress = Callable[[str], None]
MAX_NAMES = 5
PART_OF_OARS = "app.kubernetes.io/part-of=oars"


async def install(client: Client, options: InstallOptions, seconds: float, progress: Progress) -> str:
    """Apply all objects and wait for a leader. Returns its identity, or '' if the operator has no replicas here."""
    namespace = options.namespace
    try:
        async with asyncio.timeout(seconds):
            if MARS_JOB in options.adopt:
                await kubedl.check_absent(client)
            for obj in manifests.install(options):
                kind, name = kinds.kind_of(obj), obj["metadata"]["name"]
                if name in crd.MARS_JOB_NAMES and await kubedl.has_defined(client, name):
                    progress(f"{kind.kind} {name} is KubeDL's: it stays as it is")
                    continue
                if kind == kinds.NAMESPACE:
                    found = await _or_none(client.get(kinds.NAMESPACE, name))
                    if found is not None and not _is_created_by_install(found):
                        continue  # somebody else created it: neither label nor delete it
                progress(f"{kind.kind} {name}")
                try:
                    await (admission.apply(client, obj) if kind in admission.KINDS else client.apply(obj))
                except ApiError as error:
                    if kind not in admission.KINDS or not is_not_found(error):
                        raise
                    progress(f"{kind.kind} needs Kubernetes 1.30: the operator refuses fields that it would check")
            if not options.replicas:
                return ""
            progress("waiting for a pod of the operator")
            await _until(client, kinds.DEPLOYMENT, namespace, lambda: _is_rolled_out(client, namespace))
            progress("waiting for a leader")
            return await _until(client, kinds.LEASE, namespace, lambda: find_holder(client, namespace, NAME))
    except TimeoutError:
        pods = await client.list(kinds.POD, namespace, labels="app.kubernetes.io/component=operator")
        raise TimedOut(
            f"Timed out after {seconds:.0f} s waiting for an operator to lead in namespace {namespace}.",
            f"Check the image (--image), and run `kubectl -n {namespace} describe pods`.",
            tuple(line for pod in pods.items for line in _pod_problems(pod)),
        ) from None


async def uninstall(client: Client, namespace: str, seconds: float, progress: Progress, *, force: bool = False) -> None:
    """Delete all objects; with `force`, also the clusters."""
    running = [*await clusters(client), *await kubedl.adopted_jobs(client, await _adopting(client, namespace))]
    names = [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in running]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    listed = ", ".join(names[:MAX_NAMES]) + more
    if running and not force:
        hint = "Delete them first, or use --force to delete them with all their pods."
        raise OarsError(f"The operator still runs clusters: {listed}.", hint)
    try:
        async with asyncio.timeout(seconds):
            if running:  # first, while the operator can still handle their deletion
                progress(f"deleting {listed}")
                await _delete_clusters(client, running)
            await _delete_objects(client, namespace, progress)
    except TimeoutError:
        message = f"Timed out after {seconds:.0f} s uninstalling the operator from namespace {namespace}."
        raise TimedOut(message, "Run the command again with a longer --timeout; it continues.") from None


async def status(client: Client, namespace: str) -> Object:
    """The installation and its leader."""
    found = await _deployment(client, namespace)
    if found is None:
        hint = "Run `oars operator install`, or `oars operator run` to run one in this process."
        raise NotFound(f"There is no operator in namespace {namespace}.", hint)
    arguments = _arguments(found)
    return {
        "namespace": namespace,
        "image": found["spec"]["template"]["spec"]["containers"][0]["image"],
        "replicas": found["spec"].get("replicas", 1),
        "ready": found.get("status", {}).get("readyReplicas", 0),
        "leader": await find_holder(client, namespace, NAME),
        "watches": [value for name, value in arguments if name == "--namespace"],
        "authors": await admission.state(client, trust_authors=any(name == "--trust-authors" for name, _ in arguments)),
        "clusters": len(await clusters(client)),
    }


async def _deployment(client: Client, namespace: str) -> Object | None:
    """The operator's, by its labels: the Helm chart may give it another name."""
    labels = ",".join(f"{key}={value}" for key, value in manifests.SELECTOR.items())
    found = (await client.list(kinds.DEPLOYMENT, namespace, labels=labels)).items
    return found[0] if found else None


def _arguments(deployment: Object) -> list[tuple[str, str]]:
    """Names and values of the operator's options."""
    given = deployment["spec"]["template"]["spec"]["containers"][0].get("args", ())
    return [(name, value) for name, _, value in (each.partition("=") for each in given)]


async def _adopting(client: Client, namespace: str) -> Callable[[Object], bool]:
    """Whether the installed operator serves a MarsJob."""
    found = await _deployment(client, namespace)
    arguments = _arguments(found) if found is not None else []
    watched = {value for name, value in arguments if name == "--namespace"}
    is_adopting = ("--adopt", MARS_JOB) in arguments
    return lambda job: is_adopting and (not watched or job["metadata"]["namespace"] in watched)


async def clusters(client: Client) -> list[Object]:
    """All ComputeClusters; empty if the CRD is not installed."""
    try:
        return (await client.list(COMPUTE_CLUSTER)).items
    except ApiError as error:
        if is_not_found(error):
            return []
        raise


def _is_created_by_install(namespace: Object) -> bool:
    labels: dict[str, str] = namespace["metadata"].get("labels", {})
    return manifests.CREATED_BY_INSTALL.items() <= labels.items()


async def _is_rolled_out(client: Client, namespace: str) -> bool:
    """True if no old replica is left and one new replica is ready."""
    found = await _deployment(client, namespace)
    if found is None:
        return False
    state = found.get("status", {})
    updated = state.get("updatedReplicas", 0)
    observed = state.get("observedGeneration", 0) >= found["metadata"]["generation"]
    return bool(observed and updated and state.get("replicas", 0) == updated and state.get("readyReplicas", 0))


async def _until(client: Client, kind: Kind, namespace: str | None, check: Callable[[], Awaitable[T | None]]) -> T:
    """The first true result of `check`, which is called after every change of such objects. Has no timeout."""
    while True:
        listing = await client.list(kind, namespace)
        if result := await check():
            return result
        try:
            async for _ in client.watch(kind, namespace, resource_version=listing.resource_version):
                if result := await check():
                    return result
        except ApiError as error:
            if not is_expired(error):
                raise


def _pod_problems(pod: Object) -> list[str]:
    name, state = pod["metadata"]["name"], pod.get("status", {})
    waiting = [each["state"]["waiting"] for each in state.get("containerStatuses", ()) if "waiting" in each["state"]]
    lines = [f"{name}: {each.get('reason', '')} {each.get('message', '')}".rstrip() for each in waiting]
    unmet = [each for each in state.get("conditions", ()) if each["status"] != "True" and each.get("message")]
    return lines or [f"{name}: {each['message']}" for each in unmet[:1]] or [f"{name}: {state.get('phase', '')}"]


async def _delete_clusters(client: Client, running: list[Object]) -> None:
    for each in running:
        kind = kinds.kind_of(each) if "kind" in each else COMPUTE_CLUSTER
        await client.delete(kind, each["metadata"]["name"], each["metadata"]["namespace"])

    async def are_deleted() -> bool:
        return not await clusters(client)

    await _until(client, COMPUTE_CLUSTER, None, are_deleted)


async def _delete_objects(client: Client, namespace: str, progress: Progress) -> None:
    """Delete in reverse order of the installation, then the roles in watched namespaces, then the namespace."""
    for obj in reversed(manifests.install(InstallOptions(namespace=namespace, adopt=ADOPTABLE))):
        kind, name = kinds.kind_of(obj), obj["metadata"]["name"]
        is_of_kubedl = name in crd.MARS_JOB_NAMES and await kubedl.has_defined(client, name)
        if kind != kinds.NAMESPACE and not is_of_kubedl:
            progress(f"deleting {kind.kind} {name}")
            await client.delete(kind, name, obj["metadata"].get("namespace"))
    for kind in (kinds.ROLE_BINDING, kinds.ROLE):
        for each in (await client.list(kind, labels=PART_OF_OARS)).items:
            if (name := each["metadata"]["name"]) in (NAME, f"{NAME}-{crd.MARS_JOB_PLURAL}"):
                await client.delete(kind, name, each["metadata"]["namespace"])
    for kind in (kinds.CLUSTER_ROLE_BINDING, kinds.CLUSTER_ROLE):
        await client.delete(kind, f"{NAME}-nodes")
        await client.delete(kind, f"{NAME}-queues")
    found = await _or_none(client.get(kinds.NAMESPACE, namespace))
    if found is not None and _is_created_by_install(found):
        progress(f"deleting Namespace {namespace}")
        await client.delete(kinds.NAMESPACE, namespace)
        await _until_deleted(client, kinds.NAMESPACE, namespace, progress)
    ours = [name for name in crd.MARS_JOB_NAMES if not await kubedl.has_defined(client, name)]
    for name in (*ours, crd.JOB_NAME, crd.NAME):
        await _until_deleted(client, kinds.CRD, name, progress)


async def _until_deleted(client: Client, kind: Kind, name: str, progress: Progress) -> None:
    """An installation that starts before this would use objects that are being deleted."""

    async def is_deleted() -> bool:
        return await _or_none(client.get(kind, name)) is None

    if not await is_deleted():
        progress(f"waiting until {kind.kind} {name} is deleted")
        await _until(client, kind, None, is_deleted)


async def _or_none(request: Coroutine[Any, Any, Object]) -> Object | None:
    try:
        return await request
    except ApiError as error:
        if is_not_found(error):
            return None
        raise
