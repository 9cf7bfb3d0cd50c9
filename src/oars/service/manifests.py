"""A cluster as plain Kubernetes manifests, which need nothing of Oars in Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oars import engines
from oars.base.errors import NameInUse, OarsError, TimedOut
from oars.base.settings import Settings
from oars.client.backend import Location
from oars.client.backends import is_kubernetes_configured
from oars.client.cluster import checked_name
from oars.client.kubernetes import KubeBackend
from oars.places.kube import names
from oars.places.kube.render import objects as rendering
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.values import secret_files
from oars.places.kube.state.secrets import find_secret, make_secrets
from oars.plan.desired import build
from oars.spec.cluster import ClusterSpec
from oars.spec.load import check_packages_in_image

FIND_SECONDS = 3.0  # for the API server to answer whether there is a Secret


@dataclass(frozen=True)
class Rendered:
    """Manifests, and the name of the Secret that they need; empty: none. namespace None: that of the context. notes:
    what they cannot do."""

    name: str
    namespace: str | None
    objects: Sequence[dict[str, Any]]
    secret: str
    notes: Sequence[str] = ()


NO_LOOP = "{} no effect on rendered manifests: nobody runs their loop. Use the operator or direct mode."


def render(
    name: str, spec: ClusterSpec, namespace: str | None, *, create_namespace: bool = False, secrets: str = "inline"
) -> Rendered:
    """secrets: "inline" includes a Secret with new content, "reference" leaves it out, "only" makes just that. Without
    a namespace, in arguments or spec, the objects name none. Raises SpecError for packages that no image has."""
    check_packages_in_image(spec)
    create = spec.namespace.create or create_namespace
    spec = spec.model_copy(update={"namespace": spec.namespace.model_copy(update={"create": create})})
    chosen = spec.namespace_for(checked_name(name), namespace)
    # Without a controller the helper has no peer.
    cluster = replace(build(name, spec, engines.get(spec.engine), DEFAULTS, namespace=chosen or ""), helper=False)
    files = secret_files(cluster.shape)
    objects: list[dict[str, Any]] = []
    if files and secrets != "reference":
        made = make_secrets(cluster.name, cluster.shape.secrets)
        # Running members use the first content, so applying another one must fail.
        objects.append({**rendering.secret(cluster, {key: made[key] for key in files}), "immutable": True})
    if secrets != "only":
        rest = rendering.manifests(cluster)
        first = 1 if cluster.create_namespace else 0
        objects = [*rest[:first], *objects, *rest[first:]]
    if not chosen:
        for obj in objects:
            del obj["metadata"]["namespace"]
    notes = [NO_LOOP.format("lifetime has")] if cluster.lifetime.is_limited else []
    notes += [NO_LOOP.format(f"min and max of group {group} have") for group in spec.autoscaled]
    return Rendered(name, chosen, objects, names.root(name) if files else "", notes)


async def complete_secret(rendered: Rendered, secrets: str, location: Location, environ: Mapping[str, str]) -> str:
    """Keep the content of a Secret that exists. Returns what the user must know about it. `secrets`: see render.
    Raises NameInUse if the Secret belongs to a cluster that Oars tracks."""
    if not rendered.secret:
        return f"{rendered.name} needs no Secret." if secrets == "only" else ""
    if secrets == "reference":
        return (
            f"These manifests need the Secret {rendered.secret}, which is not printed. Create it once: run the same "
            "command with `--secrets only` and pipe it to `kubectl apply -f -`."
        )
    problem = ""
    try:
        kind = "the existing" if await _keep_secret(rendered, location, environ) else "a new"
    except NameInUse:
        raise
    except OarsError as error:
        kind, problem = "a new", f" Whether there is one already is unknown: {error.message}"
    advice = " To keep it out of git, use `--secrets reference`." if secrets == "inline" else ""
    return f"The output includes {kind} Secret, {rendered.secret}.{advice}{problem}"


async def _keep_secret(rendered: Rendered, location: Location, environ: Mapping[str, str]) -> bool:
    """Put the content of the Secret that is in the namespace into the manifests: running members use it. False: there
    is none, or no kubeconfig. Raises OarsError if that cannot be known, and NameInUse if it belongs to a cluster that
    Oars tracks."""
    if not is_kubernetes_configured(replace(location, namespace=None), environ):
        return False
    location = replace(location, place="kubernetes", namespace=rendered.namespace)
    backend = KubeBackend(Settings.from_environ(environ), environ, location)
    try:
        await backend.login()
        async with asyncio.timeout(FIND_SECONDS):
            found = await find_secret(backend.client, rendered.name, backend.namespace)
        if found is None:
            return False
        if found["metadata"].get("ownerReferences"):
            message = f"Cluster {rendered.name!r} {backend.where()} exists and is not a rendered one."
            raise NameInUse(message, "Choose another name or namespace: the manifests would change its objects.")
    except TimeoutError:
        raise TimedOut(f"The API server did not answer within {FIND_SECONDS:.0f} s.") from None
    finally:
        await backend.close()
    data = found.get("data") or {}
    is_kept = False
    for obj in rendered.objects:
        if obj["kind"] == "Secret" and obj["data"].keys() <= data.keys():
            obj["data"] = {key: data[key] for key in obj["data"]}
            is_kept = True
    return is_kept
