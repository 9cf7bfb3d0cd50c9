"""`oars run`: run a script on a cluster of its own."""

from __future__ import annotations

import os
import shlex
from typing import cast

import click

from oars.base.errors import NameInUse, UsageError
from oars.cli import completions, signals
from oars.cli.options import ClusterOptions, cluster_options, quiet_option
from oars.cli.progress import Progress


class ScriptCommand(click.Command):
    """Options may precede and follow SCRIPT, up to `--`. What follows SCRIPT and is not an option belongs to it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._options_first(args, ctx.help_option_names))

    def _options_first(self, args: list[str], help_names: list[str]) -> list[str]:
        """Move all options before SCRIPT. Unknown ones that precede SCRIPT stay there, for click to report."""
        options = cast("list[click.Option]", [each for each in self.params if each.param_type_name == "option"])
        known = {name for each in options for name in each.opts} | set(help_names)
        valued = {name for each in options if not each.is_flag for name in each.opts}
        repeatable = {name for each in options if each.multiple for name in each.opts}
        before: list[str] = []
        behind: list[str] = []
        script: list[str] = []
        rest, has_script = list(args), False
        while rest and rest[0] != "--":
            word = rest.pop(0)
            name = word.partition("=")[0]
            is_option = name in known if has_script else word.startswith("-")
            if not is_option:
                script.append(word)
                has_script = True
                continue
            if has_script and name in (*before, *behind) and name not in repeatable:
                hint = f"If one is for {script[0]}, put `--` before its arguments." if script else "Give it once."
                raise UsageError(f"{name} is given twice.", hint)
            has_script = has_script or name == "-m"
            (behind if script else before).extend([word, *(rest[:1] if word in valued else ())])
            del rest[: word in valued]
        return [*before, *behind, "--", *script, *rest[1:]]


@click.command(cls=ScriptCommand)
@cluster_options
@quiet_option
@click.option("-m", "module", metavar="MODULE", help="Run a module instead of SCRIPT, as `python -m` does.")
@click.argument(
    "script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...", shell_complete=completions.script
)
def run(script: tuple[str, ...], module: str | None, options: ClusterOptions, quiet: bool) -> int:
    """Create a cluster, run SCRIPT as its driver, stop the cluster. The exit code is the script's.

    The script connects with the engine's own API: distributed.Client(), ray.init(); for Mars oars.connect(). Its output
    is not changed. Options of Oars may precede and follow SCRIPT; other words after SCRIPT are its arguments, and so is
    everything after --.

    \b
    oars run train.py --engine ray --epochs 3          --epochs is the script's
    oars run train.py --engine ray -- --workers 8      --workers is the script's
    oars run -m package.train --engine ray             a module
    """
    from oars.service.scripts import FrontDoor, ScriptRun, module_directory
    from oars.service.specs import generate_name

    if not script and not module:
        raise UsageError("No script is named.", "Give a Python file, or -m MODULE.")
    modules = os.getcwd() if module else str(module_directory(script[0]))
    argv = ["-m", module, *script] if module else list(script)
    with Progress(quiet=quiet) as progress:
        name, spec = options.resolve(None, generate_name)
        cluster = options.service.new(
            name, spec, timeout=options.timeout, progress=progress, tied=True, modules=modules
        )
        progress(f"{name}: starting")
        caller = FrontDoor(
            progress,
            give_terminal=progress.close,
            take_terminal=progress.again,
            warn=lambda text: progress.say(f"warning: {text}"),
            has_sent_interrupt=_shares_terminal,
        )
        script_run = ScriptRun(cluster, argv, caller)
        try:
            return signals.run(script_run.run(), script_run.on_signal)
        except NameInUse as error:
            reference = options.service.reference(name)
            error.hint = f"Run it there with `oars exec {reference} -- python {shlex.join(argv)}`. {error.hint}"
            raise


def _shares_terminal() -> bool:
    """True if Ctrl-C at the terminal reaches the script, too: it is sent to the whole foreground process group."""
    for descriptor in (0, 1, 2):
        if os.isatty(descriptor):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False
