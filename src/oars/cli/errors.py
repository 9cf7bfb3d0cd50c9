"""Turn exceptions into messages on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterable

import click

from oars.base.errors import Interrupted, NotFound, OarsError

DENIED = 5
INTERRUPTED = 130
PIPE_CLOSED = 128 + signal.SIGPIPE
MAX_DETAILS = 40
RBAC_HINT = "Run `oars rbac` to print the permissions that Oars needs."


def guard(work: Callable[[], int]) -> int:
    """The exit code of `work`. Prints every exception, never a traceback."""
    try:
        return work()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as request:  # a group of commands without a command
        click.echo(request.ctx.get_help() if request.ctx else request.format_message())
        return 0
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        message = " ".join(error.format_message().split())  # click lists choices one per line
        print_error(OarsError(message, f"Run `{context.command_path} --help`." if context else ""))
        return error.exit_code
    except Interrupted as error:
        print_error(error, prefix="")
        return error.exit_code
    except OarsError as error:
        print_error(error)
        return error.exit_code
    except BrokenPipeError:
        # The reader is gone (`oars ls | head -1`). Python would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        say("Interrupted.")
        return INTERRUPTED
    except OSError as error:
        return _system_error(error) if error.strerror else _unexpected(error)
    except Exception as error:  # noqa: BLE001 (nothing may end in a traceback)
        return _unexpected(error)


def print_error(error: OarsError, prefix: str = "error: ") -> None:
    say(f"{click.style(prefix, fg='red', bold=True)}{error.message}")
    hint = error.hint or (RBAC_HINT if error.exit_code == DENIED else "")
    if hint:
        say(hint)
    for line in error.details[-MAX_DETAILS:]:
        say(f"  {line}")


def raise_worst(found: Iterable[OarsError | None]) -> None:
    """Raise the first of the most severe errors and print the others. What is missing is the least severe."""
    errors = sorted(filter(None, found), key=lambda error: error.exit_code == NotFound.exit_code)
    for error in errors[1:]:
        print_error(error)
    if errors:
        raise errors[0]


def _system_error(error: OSError) -> int:
    """Such as a full disk or an unreadable file."""
    _print_traceback(error)
    path = f": {error.filename}" if error.filename else ""
    print_error(OarsError(f"{error.strerror}{path}.", "Run `oars doctor` to check the directories that Oars uses."))
    return DENIED if error.errno in (errno.EPERM, errno.EACCES) else 1


def _unexpected(error: Exception) -> int:
    _print_traceback(error)
    text = " ".join(str(error).split())[:200]
    hint = "This is a bug in Oars; please report it. Set OARS_DEBUG=1 to see the traceback."
    print_error(OarsError(f"{type(error).__name__}: {text}", hint))
    return 1


def _print_traceback(error: Exception) -> None:
    if os.environ.get("OARS_DEBUG"):
        import traceback

        say("".join(traceback.format_exception(error)).rstrip())


def say(text: str) -> None:
    """Print a line on stderr, if that is still open."""
    try:
        click.echo(text, err=True, color=has_colour(sys.stderr))
    except OSError:
        return


def has_colour(stream: object) -> bool:
    """True for a terminal, unless NO_COLOR or TERM=dumb is set."""
    isatty = getattr(stream, "isatty", None)
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return bool(wanted and isatty and isatty())
