"""`oars render`: print a cluster as plain manifests, for kubectl and GitOps."""

from __future__ import annotations

import click

from oars.cli.errors import say
from oars.cli.options import ClusterOptions, namespace_option, optional_name, spec_options
from oars.cli.output import as_yaml, write

SECRETS = click.Choice(("reference", "inline", "only"))


@click.command()
@optional_name
@spec_options
@namespace_option
@click.option("--create-namespace", is_flag=True, help="Print the Namespace, too.")
@click.option(
    "--secrets", type=SECRETS, default="reference", show_default=True, help="inline, only: print a new Secret."
)
def render(
    name: str | None, options: ClusterOptions, namespace: str | None, create_namespace: bool, secrets: str
) -> None:
    """Print a cluster as YAML manifests for `kubectl apply -f -`.

    By default certificates and tokens are not printed: the manifests refer to a Secret that must exist. `--secrets
    only` prints that Secret with new content, `--secrets inline` prints it with the manifests. Use these only once: the
    Secret is immutable, and kubectl refuses to change it. Without -n the manifests name no namespace.
    """
    from oars.service import manifests

    options = options.in_namespace(namespace)
    chosen, spec = options.name_and_spec(name)
    rendered = manifests.render(
        chosen or spec.engine, spec, namespace, create_namespace=create_namespace, secrets=secrets
    )
    if rendered.objects:
        write("\n---\n".join(map(as_yaml, rendered.objects)))
    if secrets == "only" and not rendered.secret:
        say(f"{rendered.name} needs no Secret.")
    if secrets == "reference" and rendered.secret:
        say(
            f"These manifests need the Secret {rendered.secret}, which is not printed. Create it once: run the same "
            "command with `--secrets only` and pipe it to `kubectl apply -f -`."
        )
