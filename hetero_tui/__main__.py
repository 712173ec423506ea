"""The console script: straight into the terminal app when no command is given, else into the command line.

The app's first frame does not wait for what only commands need (Typer, JSON reports).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hetero_tui.launcher import INVENTORY, INVENTORY_VARIABLE, open_app


def main() -> None:
    """The console script ``hetero-tui``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a letter that the terminal lacks must not end the program
    inventory = inventory_of(sys.argv[1:])
    if inventory is not None:
        sys.exit(open_app(inventory))
    from hetero_tui.cli import application

    application()


def inventory_of(arguments: Sequence[str]) -> Path | None:
    """The inventory to open the app on; None when the arguments ask for anything but the app."""
    match arguments:
        case []:
            return Path(os.environ.get(INVENTORY_VARIABLE) or INVENTORY)
        case ["--inventory" | "-i", path]:
            return Path(path)
        case _:
            return None


if __name__ == "__main__":
    main()
