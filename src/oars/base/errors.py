"""The exception tree. Every error says what happened and what to do; each has the exit code of the command line.

OarsError                1   something failed
├── UsageError           2   the call itself is wrong
│   └── SpecError        2   the cluster's description is wrong (knows the path and the place in the file)
├── NotFound             3   no such cluster, member, file
│   └── Replaced         3   the cluster is gone, and another one has its name
├── TimedOut             4   a deadline passed (carries why and the log lines that matter)
├── Denied               5   a right is missing
├── NameInUse            1   a cluster of that name exists
├── StartFailed          1   a cluster or process did not start
├── EngineMissing        1   this Python cannot import the engine
├── EnvironmentFailed    1   an engine environment could not be built
├── EngineUnreachable    1   the running head does not answer
├── ClusterLost          1   the cluster went away while it was in use
└── Interrupted        130   Ctrl-C
"""

from __future__ import annotations


class OarsError(Exception):
    """Something failed. `message` is one sentence; `hint` says what to do; `details` are lines worth showing."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "", details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        lines = [self.message]
        if self.hint:
            lines.append(self.hint)
        lines.extend(f"  {line}" for line in self.details)
        return "\n".join(lines)


class UsageError(OarsError):
    """The call itself is wrong."""

    exit_code = 2


class SpecError(UsageError):
    """The description of a cluster is wrong; the message names the path and, for files, line and column."""


class NotFound(OarsError):
    """No such cluster, member or file."""

    exit_code = 3


class Replaced(NotFound):
    """The cluster was removed, and its name is another's by now. To that one nothing is done."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The cluster {name!r} is gone, and another one has its name.", "Connect anew to use the other one."
        )


class TimedOut(OarsError):
    """A deadline passed; `details` hold the log lines that matter."""

    exit_code = 4


class Denied(OarsError):
    """A right is missing, in the file system or in the cluster."""

    exit_code = 5


class NameInUse(OarsError):
    """A cluster of that name exists already."""


class StartFailed(OarsError):
    """A cluster or one of its processes did not start."""


class EngineMissing(OarsError):
    """This Python cannot import the engine."""


class VersionMismatch(OarsError):
    """This Python, or the engine in it, is of another version than the cluster's."""


class EnvironmentFailed(OarsError):
    """An engine's environment could not be built."""


class EngineUnreachable(OarsError):
    """The running head does not answer."""


class ClusterLost(OarsError):
    """The cluster went away while it was in use."""


class Interrupted(OarsError):
    """Ctrl-C."""

    exit_code = 130
