"""`oars rbac`: the rights each way of using Kubernetes needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import UsageError
from oars.cli import show

if TYPE_CHECKING:
    from oars.operator.rbac import Subject

MODES = click.Choice(("direct", "user", "operator"))


def _subject(name: str, said: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(f"--{name}", name.replace("-", "_"), metavar="NAME", help=said)


@click.command()
@click.option("--mode", type=MODES, default="direct", show_default=True, help="direct, user or operator.")
@click.option("-n", "--namespace", metavar="NAME", help="Where. Default: default; for the operator: everywhere.")
@_subject("service-account", "Who gets the rights: NAME, or NAMESPACE:NAME.")
@_subject("user", "Who gets the rights.")
@_subject("group", "Who gets the rights.")
@click.option("--minimal", is_flag=True, help="direct: without the rules that are marked optional.")
@click.option("--nodes", is_flag=True, help="direct, user: list nodes, too, so that why says what the best one has.")
@click.option("--create-namespace", is_flag=True, help="direct: in all namespaces, and make them.")
def rbac(mode: str, namespace: str | None, minimal: bool, nodes: bool, create_namespace: bool, **who: Any) -> None:
    """Print the rights that a mode needs, as YAML for kubectl, with the reason for each rule.

    direct: you make clusters, and no operator is there. user: an operator runs the clusters that you make. operator:
    what the operator itself needs.
    """
    from oars.operator import NAMESPACE
    from oars.operator import rbac as rights

    if mode == "operator":
        objects = rights.operator_roles(NAMESPACE, (namespace,) if namespace else ())
    else:
        subject = chosen(namespace or "default", **who)
        objects = _for_people(mode, namespace or "default", subject, minimal, create_namespace)
        objects += rights.nodes_role(subject) if nodes else []
    show.write("\n---\n".join(map(explained, objects)))


def _for_people(mode: str, namespace: str, subject: Subject, minimal: bool, everywhere: bool) -> list[dict[str, Any]]:
    from oars.operator import rbac as rights

    if mode == "user":
        return rights.user_role(namespace, subject)
    if everywhere:
        return rights.namespaces_role(subject)
    return rights.direct_role(namespace, subject, minimal=minimal)


def chosen(namespace: str, service_account: str | None, user: str | None, group: str | None) -> Subject:
    """Who gets the rights; nobody named: the namespace's default account, which a pod has when it says nothing."""
    from oars.operator.rbac import Subject

    given = {"User": user, "Group": group, "ServiceAccount": service_account}
    named = [(kind, name) for kind, name in given.items() if name]
    if len(named) > 1:
        raise UsageError("Several are named to get the rights.", "Say one of --service-account, --user and --group.")
    kind, name = named[0] if named else ("ServiceAccount", "default")
    if kind != "ServiceAccount":
        return Subject(kind, name)
    home, _, account = name.rpartition(":")
    return Subject(kind, account, home or namespace)


def explained(obj: dict[str, Any]) -> str:
    """YAML, with a comment over each rule, and each rule on a line."""
    import yaml

    from oars.operator.rbac import why

    lines = [show.as_yaml({key: value for key, value in obj.items() if key != "rules"})]
    if "rules" in obj:
        lines.append("rules:")
    for rule in obj.get("rules", ()):
        flow = yaml.safe_dump(rule, default_flow_style=True, sort_keys=False, width=1000).rstrip()
        lines += [f"# {why(rule)}", f"- {flow}"]
    return "\n".join(lines)
