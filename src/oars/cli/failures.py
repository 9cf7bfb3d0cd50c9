"""From an exception to words on stderr and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import click

from oars.base.errors import Interrupted, OarsError

DENIED = 5
INTERRUPTED = 130
PIPE_CLOSED = 128 + signal.SIGPIPE
MOST_DETAILS = 40


def guard(work: Callable[[], int]) -> int:
    """The exit code of `work`, whatever happens in it."""
    try:
        return work()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        return usage(error)
    except OarsError as error:
        tell(error)
        return error.exit_code
    except BrokenPipeError:
        # Nobody reads on (`oars ls | head -1`): end silently; Python would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        say("Interrupted.")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 (the front door: nothing may end in a traceback)
        return unexpected(error)


def usage(error: click.ClickException) -> int:
    """click's own complaints: the sentence, and where the help is."""
    say(f"{label('error:')} {error.format_message()}")
    context = getattr(error, "ctx", None)
    if context is not None:
        say(f"Try `{context.command_path} --help`.")
    return error.exit_code


def tell(error: OarsError) -> None:
    say(error.message if isinstance(error, Interrupted) else f"{label('error:')} {error.message}")
    if error.hint:
        say(error.hint)
    shown = error.details[-MOST_DETAILS:]
    for line in shown:
        say(f"  {line}")


def unexpected(error: Exception) -> int:
    """The disk may be full or a file unreadable; anything else is our fault."""
    if os.environ.get("OARS_DEBUG"):
        import traceback

        say("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        say(f"{label('error:')} {error.strerror}{where}.")
        say("`oars doctor` checks the directories that Oars uses.")
        return DENIED if isinstance(error, PermissionError) else 1
    what = " ".join(str(error).split())[:200]
    say(f"{label('error:')} {type(error).__name__}: {what}")
    say("This is a bug in Oars; please report it. OARS_DEBUG=1 shows where it happened.")
    return 1


def say(text: str) -> None:
    """A line on stderr; one that cannot be written is nobody's loss."""
    try:
        click.echo(text, err=True, color=colour(sys.stderr))
    except OSError:
        return


def label(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def colour(stream: object) -> bool:
    """Is it a terminal, and are colours wanted?"""
    isatty = getattr(stream, "isatty", None)
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return bool(wanted and isatty and isatty())
