"""What the `$(…)` of templates stand for on this machine."""

from __future__ import annotations

from oars.model import HEAD, Process
from oars.places.ledger import Entry, Ledger
from oars.places.local.store import ClusterDir

HOST = "127.0.0.1"


def member_values(directory: ClusterDir, book: Ledger, entry: Entry, process: Process) -> dict[str, str]:
    scratch = directory.members / entry.id
    head = book.entries.get(HEAD)
    values = {"host": HOST, "head.host": HOST, "bind": HOST, "member": entry.id, "dir": str(scratch)}
    values["incarnation"] = str(entry.incarnation)
    values |= {f"port.{name}": str(port) for name, port in entry.ports.items()}
    values |= {f"head.{name}": str(port) for name, port in (head.ports if head else {}).items()}
    values |= {f"secret.{path.name}": str(path) for path in directory.secrets.glob("*")}
    values |= {f"file.{name}": str(scratch / "files" / name) for name in process.files}
    return values
