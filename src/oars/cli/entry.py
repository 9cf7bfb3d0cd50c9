"""The console script. Prints the help page without importing anything else."""

from __future__ import annotations

import os
import sys

from oars.cli.commands import COMPLETION_VARIABLE, HELP_WORDS, help_page


def main() -> None:
    if sys.argv[1:] in HELP_WORDS and COMPLETION_VARIABLE not in os.environ:
        sys.stdout.write(help_page() + "\n")
        return
    from oars.cli.main import main as run

    run()
