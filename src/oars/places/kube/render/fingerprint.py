"""Fingerprint: identifies what a Deployment was last applied from. It is stored as an annotation, so that nothing is
applied twice. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from oars.base.version import VERSION
from oars.places.kube import names
from oars.places.kube.names import Object


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of the rendered object and of the spec behind it, an epoch, and the version of Oars. The epoch is that of
    the head or, in the head's fingerprint, that of its secrets. The head's has a hash of the network objects too: a
    change of them must be applied whatever version created the head."""

    rendered: str
    spec: str
    epoch: int = 0
    version: str = VERSION
    network: str = ""

    @classmethod
    def of(cls, deployment: Object | None) -> Fingerprint:
        metadata = deployment["metadata"] if deployment else {}
        text = (metadata.get("annotations") or {}).get(names.APPLIED, "")
        rendered, spec, epoch, version, network = (*text.split(" "), "", "", "", "", "")[:5]
        return cls(rendered, spec, int(epoch) if epoch.isdigit() else 0, version, network)

    def __str__(self) -> str:
        return f"{self.rendered} {self.spec} {self.epoch} {self.version} {self.network}".rstrip()

    def covers(self, wanted: Fingerprint) -> bool:
        """True if the Deployment need not be applied."""
        return self.rendered == wanted.rendered or (self.same_spec_older_oars(wanted) and self.epoch == wanted.epoch)

    def same_spec_older_oars(self, wanted: Fingerprint) -> bool:
        """True if another version of Oars applied the same spec. It may render the spec differently, but that alone
        must not replace pods: an upgrade would replace every head, and so lose all work."""
        return self.spec == wanted.spec and self.version != wanted.version
