"""What a Deployment was last asked to be. It is written on it, so that nothing is asked for twice. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oars.base.version import VERSION
from oars.model import Group
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render.pod import Cluster, revision
from oars.places.kube.state import observe

# Not seen by pods, or not by all of them.
_BESIDE = {"workers", "head", "replicas", "min_ready", "drain", "lifetime", "expose", "place"}


@dataclass(frozen=True)
class Fingerprint:
    """A rendering, the user's words that it was made from, and the Oars that made it."""

    mark: str
    words: str
    version: str = VERSION

    @classmethod
    def of(cls, deployment: Object) -> Fingerprint:
        mark, words, version = (*observe.annotation(deployment, names.APPLIED).split(" "), "", "")[:3]
        return cls(mark, words, version)

    def __str__(self) -> str:
        return f"{self.mark} {self.words} {self.version}"

    def covers(self, wanted: Fingerprint) -> bool:
        return self.mark == wanted.mark or self.same_spec_older_oars(wanted)

    def same_spec_older_oars(self, wanted: Fingerprint) -> bool:
        """Another Oars may put the same words in another form. Nobody asked for other pods: a head that is replaced
        loses all work, and an upgrade would replace them all."""
        return self.words == wanted.words and self.version != wanted.version


def head_fingerprint(cluster: Cluster) -> str:
    """Short for all that the user said about the head's pod."""
    head = cluster.spec.head.model_dump(mode="json")
    return revision({**_common(cluster), "head": head, "alone": not cluster.spec.workers})


def group_fingerprint(cluster: Cluster, group: Group, head_changes: int) -> str:
    """The same about the pods of a group. A new head is a reason to replace them anyway."""
    said = next(entry for entry in cluster.spec.workers if entry.name == group.name)
    return revision(
        {**_common(cluster), "group": said.model_dump(mode="json", exclude={"replicas"}), "head": head_changes}
    )


def _common(cluster: Cluster) -> dict[str, Any]:
    return {**cluster.spec.model_dump(mode="json", exclude=_BESIDE), "helped": cluster.helped}
