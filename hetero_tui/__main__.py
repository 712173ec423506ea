"""The console script: straight into the terminal app when no command is given, else into the command line.

The app's first frame does not wait for what only commands need (Typer, JSON reports).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hetero_tui.launcher import INTERRUPTED, INVENTORY, INVENTORY_VARIABLE, open_app

COMPLETION = "_HETERO_TUI_COMPLETE"
"""Environment variable with which a shell asks what could come next; see `hetero-tui --show-completion`."""


NAMED = ("-i", "--inventory")

HAND_ON = ("run", "ray")
"""Commands after which options are a script's, or Ray's."""


def main() -> None:
    """The console script ``hetero-tui``."""
    if sys.stdout is None or sys.stderr is None:  # a shell closed it (`>&-`): what is said goes nowhere
        nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays to the end
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a letter that the terminal lacks must not end the program
    inventory = inventory_of(sys.argv[1:]) if COMPLETION not in os.environ else None
    if inventory is not None:
        sys.exit(open_app(inventory))
    try:
        from hetero_tui.cli import application
    except KeyboardInterrupt:  # later on, the command itself says what goes on
        print("hetero-tui: interrupted before anything was done", file=sys.stderr)
        sys.exit(INTERRUPTED)
    application(args=inventory_first(sys.argv[1:]), prog_name="hetero-tui")


def inventory_of(arguments: Sequence[str]) -> Path | None:
    """The inventory to open the app on; None when the arguments ask for anything but the app."""
    match arguments:
        case []:
            return Path(os.environ.get(INVENTORY_VARIABLE) or INVENTORY)
        case ["--inventory" | "-i", path]:
            return Path(path)
        case _:
            return None


def inventory_first(words: Sequence[str]) -> list[str]:
    """The same words with ``-i FILE`` at their beginning: those who add it to a line that is there add it at the end.

    What follows ``--`` is left as it is, and what follows a command whose words are another program's.
    """
    first: list[str] = []
    others = list(words)
    command = next(
        (at for at, word in enumerate(others) if word in HAND_ON and others[at - 1] not in NAMED), len(others)
    )
    end = min(others.index("--") if "--" in others else len(others), command)
    others, left = others[:end], others[end:]
    kept: list[str] = []
    while others:
        word = others.pop(0)
        if word in NAMED:
            first += [word, *others[:1]]
            del others[:1]
        elif word.startswith("--inventory="):
            first.append(word)
        else:
            kept.append(word)
    return [*first, *kept, *left]


if __name__ == "__main__":
    main()
