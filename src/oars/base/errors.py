"""The exceptions of Oars. Every error says what happened and what to do; `exit_code` is that of the command line."""

from __future__ import annotations


class OarsError(Exception):
    """Something failed. `message` is one sentence, `hint` says what to do, `details` are log lines and the like."""

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
    """The cluster spec is invalid; the message names the path and, for files, line and column."""


class NotFound(OarsError):
    """There is no such cluster, member or file."""

    exit_code = 3


class Replaced(NotFound):
    """The cluster was deleted, and another one has its name. The other one is not touched."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The cluster {name!r} was deleted, and another one has its name.", "Connect again to use the other one."
        )


class TimedOut(OarsError):
    """A deadline passed; `details` are the relevant log lines."""

    exit_code = 4


class Denied(OarsError):
    """A permission is missing, in the file system or in Kubernetes."""

    exit_code = 5


class NameInUse(OarsError):
    """A cluster of that name already exists."""


class OtherHost(OarsError):
    """The cluster belongs to another host or user. It is not touched."""

    def __init__(self, name: str, host: str, path: object) -> None:
        super().__init__(
            f"Cluster {name!r} belongs to {host}, which shares this state directory.",
            f"Run the command there. If that host no longer exists, remove the cluster's files: `rm -r {path}`.",
        )


class StartFailed(OarsError):
    """A cluster or one of its processes did not start."""


class EngineMissing(OarsError):
    """This Python cannot import the engine."""


class VersionMismatch(OarsError):
    """This Python or its engine has another version than the cluster."""


class EnvironmentFailed(OarsError):
    """An engine's environment could not be built."""


class EngineUnreachable(OarsError):
    """The running head does not answer."""


class ClusterLost(OarsError):
    """The cluster disappeared while in use."""


class Interrupted(OarsError):
    """Ctrl-C."""

    exit_code = 130
