"""The fields for which the pods of a group are replaced. Pure."""

from __future__ import annotations

from oars.model import Desired, Group
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import objects
from oars.places.kube.render.pod import mounted_files, template
from oars.plan.changes import lines_between
from oars.plan.desired import digest


def head_replacement(before: Desired, after: Desired) -> tuple[str, ...] | None:
    """The fields of the head's pod that differ; None if it stays."""
    return replacement(before, after, before.shape.head, after.shape.head)


def replacement(before: Desired, after: Desired, old: Group, new: Group) -> tuple[str, ...] | None:
    """The fields of the group that differ, if its pods are replaced; None if they stay."""
    if objects.revision_of(before, old) == objects.revision_of(after, new):
        return None
    return lines_between(_pod_and_files(before, old), _pod_and_files(after, new))


def _pod_and_files(desired: Desired, group: Group) -> Object:
    """The pod template and the files of a group, to compare. Each file is replaced by a hash of its content, as whole
    files would hide the other differences. The annotation with the hash of all files is redundant then."""
    pod = template(desired, group)
    pod["metadata"].get("annotations", {}).pop(names.FILES, None)
    return {**pod, "files": {name: digest({name: text}) for name, text in mounted_files(desired, group).items()}}
