"""Everything that the app does the command line does too, and the other way; exceptions are in two tables."""

from __future__ import annotations

import typer
import typer.core

from hetero_tui.cli import application
from hetero_tui.ui import keys, replaying

PAIRS: dict[str, tuple[str, ...]] = {
    "probe": ("probe", "host", "key", "open"),
    "up": ("up",),
    "train": ("train",),
    "stop": ("stop",),
    "resume": ("resume",),
    "drain": ("drain",),
    "undrain": ("bring_back",),
    "logs": ("logs",),
    "down": ("teardown",),
    "replay": ("pause", "faster", "slower"),
    "demo": ("chaos", "demo"),
    "bootstrap": ("install",),
    "check": ("check",),
    "add": ("add",),
    "remove": ("remove",),
}
"""A command, and the app's actions that do the same."""

COMMANDS_ALONE = {
    *("status", "runs", "attach"),  # views that the app has open, and follows by itself
    "plan",  # the app shows the plan of a run that is on
    *("report", "export"),  # files for others
    *("serve", "metrics"),  # services for other programs
    "sweep",  # its trials are lines, which the app shows as those of a script
    *("run", "ray"),  # a user's script, and another program's command line
    "web",  # the app itself, in a browser
}
KEYS_ALONE = {
    *("help", "command_palette", "detach", "colours"),  # of the app itself
    *("filter", "sort", "copy", "save", "view", "mark", "compare"),  # choose what is shown
    *("scale", "smooth", "zoom", "follow", "source"),  # choose how it is shown
    "edit",  # the inventory is a file, for which there is the user's own editor
    "shell",  # ssh is a command of its own
}


def test_each_command_is_in_the_tables() -> None:
    group = typer.main.get_command(application)
    assert isinstance(group, typer.core.TyperGroup)
    assert not PAIRS.keys() & COMMANDS_ALONE
    assert PAIRS.keys() | COMMANDS_ALONE == set(group.commands)


def test_each_key_of_the_app_and_of_its_palette_is_in_the_tables() -> None:
    known = KEYS_ALONE.union(*PAIRS.values())
    tables = [value for module in (keys, replaying) for value in vars(module).values()]
    entries = [entry for value in tables for entry in (value if isinstance(value, tuple) else (value,))]
    shown = {entry.action.partition("(")[0] for entry in entries if isinstance(entry, keys.Key)}
    assert {"up", "train", "pause"} <= shown
    assert shown - known == set()
