"""Fingerprint: identifies what a Deployment was last applied from. It is stored as an annotation, so that nothing is
applied twice. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from oars.base.version import VERSION
from oars.places.kube import names
from oars.places.kube.names import Object


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of the rendered object and of the spec behind it, the head epoch, and the version of Oars."""

    rendered: str
    spec: str
    epoch: int = 0
    version: str = VERSION

    @classmethod
    def of(cls, deployment: Object) -> Fingerprint:
        text = (deployment["metadata"].get("annotations") or {}).get(names.APPLIED, "")
        rendered, spec, epoch, version = (*text.split(" "), "", "", "", "")[:4]
        return cls(rendered, spec, int(epoch) if epoch.isdigit() else 0, version)

    def __str__(self) -> str:
        return f"{self.rendered} {self.spec} {self.epoch} {self.version}"

    def covers(self, wanted: Fingerprint) -> bool:
        return self.rendered == wanted.rendered or (self.same_spec_older_oars(wanted) and self.epoch == wanted.epoch)

    def same_spec_older_oars(self, wanted: Fingerprint) -> bool:
        """True if another version of Oars applied the same spec. It may render the spec differently, but that alone
        must not replace pods: an upgrade would replace every head, and so lose all work."""
        return self.spec == wanted.spec and self.version != wanted.version
