"""What the last lines of a log mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_DNS = re.compile(
    r"Name or service not known|Temporary failure in name resolution|No address associated with hostname|"
    r"Name does not resolve|DNS resolution failed|Could not resolve host|no such host"
)
_HOST = re.compile(r"(?:tcp|tls|http|https|ws)://([A-Za-z][\w.-]*)|DNS resolution failed for ([\w.-]+)")
_MISMATCH = re.compile(r"Version mismatch|Mismatched versions|The cluster was started with:", re.IGNORECASE)
# Ray's words, over several lines: "The cluster was started with:", "Ray: 2.60.0", "Python: 3.11.7", "This process …"
_RAY = re.compile(
    r"The cluster was started with:\s*Ray: (\S+)\s*Python: (\S+)\s*"
    r"This process .{0,200}?was started with:\s*Ray: (\S+)\s*Python: (\S+)",
    re.DOTALL,
)
# Dask's, a table: | package | this one | the scheduler | workers |
_DASK = re.compile(r"^\|\s*([\w.-]+)\s*\|\s*([^|\s]+)\s*\|\s*([^|\s]+)\s*\|", re.MULTILINE)

# The first match wins, from the last line up.
_SIGNS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"ModuleNotFoundError: No module named '?([\w.]+)"), "the image lacks the Python module {0}",
     "Use an image that has it, or add it with `environment.packages`."),
    (re.compile(r"(?i)no space left on device"), "the disk is full", "Give it more ephemeral-storage or a volume."),
    (re.compile(r"(?i)read-only file system: '?([^'\s]+)"), "{0} cannot be written", "Mount a volume there."),
    (re.compile(r"(?i)permission denied: '?([^'\s]+)"), "it may not read or write {0}",
     "Set runAsUser and fsGroup so that it may, or mount a volume there."),
    (re.compile(r"(?i)\bMemoryError\b|cannot allocate memory"), "it ran out of memory", "Give it more `memory`."),
    (re.compile(r"(?i)no such option:? '?(-[\w-]+)|unrecognized arguments:? '?(-[\w-]+)"),
     "the engine in the image does not know the option {0}", "Use an image with a version that Oars knows."),
    (re.compile(r"authentication error|UNAUTHENTICATED|(?i:handshake fail|certificate verify failed)"),
     "the head did not accept it: it was started for another head, token or certificate",
     "It is replaced when the head is; else start the cluster anew."),
)  # fmt: skip


@dataclass(frozen=True)
class Sign:
    """What lines mean. `reason` is set where the meaning is a cause of its own kind."""

    meaning: str
    hint: str
    reason: str = ""


def sign(lines: Sequence[str], namespace: str) -> Sign | None:
    """The meaning of the last lines, if we know it."""
    text = "\n".join(lines)
    if _MISMATCH.search(text):
        return _mismatch(text)
    if _DNS.search(text):
        return _dns(text, namespace)
    for line in reversed(lines):
        for pattern, meaning, hint in _SIGNS:
            match = pattern.search(line)
            if match:
                words = [group for group in match.groups() if group]
                return Sign(meaning.format(*words or ["a path"]), hint)
    return None


def _mismatch(text: str) -> Sign:
    found = _RAY.search(text)
    figures = f"head: Ray {found[1]}, Python {found[2]}; here: Ray {found[3]}, Python {found[4]}" if found else ""
    if not figures:
        rows = [row for row in _DASK.findall(text) if row[0] != "Package"]
        figures = "; ".join(f"{package}: head {head}, here {here}" for package, here, head in rows[:3])
    hint = "Use the same image for the head, all workers and the driver, and the same versions in the client."
    shown = f" ({figures})" if figures else ""
    return Sign(f"its versions differ from those of the head{shown}", hint, "VersionMismatch")


def _dns(text: str, namespace: str) -> Sign:
    host = next((found[1] or found[2] for found in _HOST.finditer(text)), "")
    hint = (
        "Check that the cluster's DNS runs (`kubectl get pods -n kube-system -l k8s-app=kube-dns`) "
        f"and that the Service is there (`kubectl get service -n {namespace}`)."
    )
    return Sign(f"the name {host or 'of the head'} cannot be resolved by DNS", hint, "NoDns")
