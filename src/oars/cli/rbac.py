"""`oars rbac`: print the Kubernetes permissions that each mode needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import UsageError
from oars.cli.output import as_yaml, write

if TYPE_CHECKING:
    from oars.operator.rbac import Subject

MODES = click.Choice(("direct", "user", "operator"))


def _subject(name: str, help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(f"--{name}", name.replace("-", "_"), metavar="NAME", help=help_text)


@click.command()
@click.option("--mode", type=MODES, default="direct", show_default=True, help="direct, user or operator.")
@click.option("-n", "--namespace", metavar="NAME", help="Default: default; for the operator: all namespaces.")
@_subject("service-account", "Who gets the permissions: NAME or NAMESPACE:NAME.")
@_subject("user", "Who gets the permissions.")
@_subject("group", "Who gets the permissions.")
@click.option("--minimal", is_flag=True, help="direct: omit the rules that are marked optional.")
@click.option("--nodes", is_flag=True, help="direct, user: allow listing nodes, so that `oars why` can compare them.")
@click.option("--create-namespace", is_flag=True, help="direct: in all namespaces, and create them.")
def rbac(mode: str, namespace: str | None, minimal: bool, nodes: bool, create_namespace: bool, **who: Any) -> None:
    """Print the permissions that a mode needs, as YAML for kubectl, with the reason for each rule.

    direct: you create clusters without an operator. user: you create clusters that an operator runs. operator: the
    operator itself.
    """
    from oars.operator import NAMESPACE
    from oars.operator import rbac as rights

    if mode == "operator":
        objects = rights.operator_roles(NAMESPACE, (namespace,) if namespace else ())
    else:
        subject = chosen(namespace or "default", **who)
        objects = _user_roles(mode, namespace or "default", subject, minimal, create_namespace)
        objects += rights.nodes_role(subject) if nodes else []
    write("\n---\n".join(map(explained, objects)))


def _user_roles(mode: str, namespace: str, subject: Subject, minimal: bool, everywhere: bool) -> list[dict[str, Any]]:
    from oars.operator import rbac as rights

    if mode == "user":
        return rights.user_role(namespace, subject)
    if everywhere:
        return rights.namespaces_role(subject)
    return rights.direct_role(namespace, subject, minimal=minimal)


def chosen(namespace: str, service_account: str | None, user: str | None, group: str | None) -> Subject:
    """Who gets the permissions; by default the namespace's default service account, which pods use."""
    from oars.operator.rbac import Subject

    given = {"User": user, "Group": group, "ServiceAccount": service_account}
    named = [(kind, name) for kind, name in given.items() if name]
    if len(named) > 1:
        raise UsageError("Several subjects are given.", "Use one of --service-account, --user and --group.")
    kind, name = named[0] if named else ("ServiceAccount", "default")
    if kind != "ServiceAccount":
        return Subject(kind, name)
    own_namespace, _, account = name.rpartition(":")
    return Subject(kind, account, own_namespace or namespace)


def explained(obj: dict[str, Any]) -> str:
    """YAML with each rule on one line, below a comment with its reason."""
    import yaml

    from oars.operator.rbac import why

    lines = [as_yaml({key: value for key, value in obj.items() if key != "rules"})]
    if "rules" in obj:
        lines.append("rules:")
    for rule in obj.get("rules", ()):
        flow = yaml.safe_dump(rule, default_flow_style=True, sort_keys=False, width=1000).rstrip()
        lines += [f"# {why(rule)}", f"- {flow}"]
    return "\n".join(lines)
