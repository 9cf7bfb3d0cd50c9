"""`oars render`: a cluster as plain manifests, for kubectl and GitOps; nothing of Oars is needed to run them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from oars.cli import show
from oars.cli.failures import say
from oars.cli.options import ClusterOptions, description_options, namespace_option, optional_name

if TYPE_CHECKING:
    from oars.places.kube.render.pod import Cluster
    from oars.spec.cluster import ClusterSpec

SECRETS = click.Choice(("reference", "inline", "only"))


@click.command()
@optional_name
@description_options
@namespace_option
@click.option("--create-namespace", is_flag=True, help="Print the Namespace, too.")
@click.option(
    "--secrets", type=SECRETS, default="reference", show_default=True, help="inline and only: new ones, once."
)
def render(name: str | None, options: ClusterOptions, secrets: str, **namespace: Any) -> None:
    """Print a cluster as YAML manifests for `kubectl apply -f -`.

    Certificates and tokens are not printed: the manifests name a Secret that must be there. `--secrets only` prints
    that Secret with fresh content, `--secrets inline` all together: each is for the first time. A cluster that runs
    keeps its Secret, and kubectl refuses another; render what has changed with `--secrets reference`. Without -n the
    manifests name no namespace.
    """
    cluster = _cluster(name, options, **namespace)
    objects = _objects(cluster, secrets)
    if not namespace["namespace"] and not cluster.spec.namespace.name and not cluster.spec.namespace.create:
        for obj in objects:
            del obj["metadata"]["namespace"]
    if objects:
        show.write("\n---\n".join(map(show.as_yaml, objects)))
    _tell(cluster, secrets)


def _cluster(name: str | None, options: ClusterOptions, namespace: str | None, create_namespace: bool) -> Cluster:
    from oars import engines
    from oars.client.backends import Where
    from oars.places.kube.render.describe import describe

    options = replace(options, where=Where("kubernetes", namespace=namespace))
    chosen, manifest = options.named(name)
    spec = _with_namespace(manifest.spec, create_namespace)
    engine = engines.get(spec.engine)
    called = _checked(chosen or spec.engine)
    home = spec.namespace_for(called, namespace) or "default"
    # Nobody looks after it, so our helper beside the head would have nobody to answer.
    return replace(describe(called, home, spec, engine), helped=False)


def _with_namespace(spec: ClusterSpec, create: bool) -> ClusterSpec:
    block = spec.namespace.model_copy(update={"create": spec.namespace.create or create})
    return spec.model_copy(update={"namespace": block})


def _checked(name: str) -> str:
    from oars.base.errors import SpecError
    from oars.spec.cluster import check_name

    try:
        return check_name(name)
    except ValueError as error:
        raise SpecError(f"{error}.", "Example: demo-1.") from error


def _objects(cluster: Cluster, secrets: str) -> list[dict[str, Any]]:
    from oars.places.kube.render import objects as rendering

    content = _content(cluster) if secrets != "reference" else {}
    # Members that run know the first content: applying another must fail, not go unnoticed until they are restarted.
    made = [{**rendering.secret(cluster, content), "immutable": True}] if content else []
    if secrets == "only":
        return made
    objects = rendering.manifests(cluster)
    first = 1 if cluster.spec.namespace.create else 0
    return [*objects[:first], *made, *objects[first:]]


def _content(cluster: Cluster) -> dict[str, bytes]:
    """Fresh, and only what the engine itself uses."""
    from oars.places.kube.render.values import secret_files
    from oars.places.kube.state.secrets import make_secrets

    wanted = secret_files(cluster.shape)
    made = make_secrets(cluster.name, cluster.shape.secrets) if wanted else {}
    return {name: made[name] for name in wanted}


def _tell(cluster: Cluster, secrets: str) -> None:
    from oars.places.kube import names
    from oars.places.kube.render.values import secret_files

    if not secret_files(cluster.shape):
        if secrets == "only":
            say(f"{cluster.name} needs no Secret.")
        return
    if secrets != "reference":
        return
    say(
        f"These manifests need the Secret {names.root(cluster.name)}, which is not printed. Make it once: the same "
        "command with `--secrets only`, piped to `kubectl apply -f -`."
    )
