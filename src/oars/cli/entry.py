"""The console script. The help page needs nothing; everything else is in main."""

from __future__ import annotations

import sys

from oars.cli.table import HELP_WORDS, help_page


def main() -> None:
    if sys.argv[1:] in HELP_WORDS:
        sys.stdout.write(help_page() + "\n")
        return
    from oars.cli.main import main as run

    run()
