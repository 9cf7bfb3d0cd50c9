"""`oars completion`: print a script for completion of commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from oars.cli.output import write

VARIABLE = "_OARS_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script.

    \b
    bash:  eval "$(oars completion bash)"                             in ~/.bashrc
    zsh:   eval "$(oars completion zsh)"                              in ~/.zshrc
    fish:  oars completion fish > ~/.config/fish/completions/oars.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    complete = found(root, {}, "oars", VARIABLE)
    write(complete.source_template % complete.source_vars())
