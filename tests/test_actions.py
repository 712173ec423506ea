"""Everything that the app does the command line does too, or the table of actions says why not; and the other way."""

from __future__ import annotations

from dataclasses import dataclass

import typer
import typer.core

from hetero_tui.cli import application
from hetero_tui.ui import keys, replaying


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something that a user can do.

    Attributes:
        command: the command's name; empty: there is none, for what only concerns the screen.
        keys: the app's actions that do it, by their names in the app; none: it is done on the command line only.
        why: where one of the two is missing, why.
    """

    command: str = ""
    keys: tuple[str, ...] = ()
    why: str = ""


ACTIONS = (
    Action(command="probe", keys=("probe", "host", "key", "open")),
    Action(command="up", keys=("up",)),
    Action(command="train", keys=("train",)),
    Action(command="stop", keys=("stop",)),
    Action(command="resume", keys=("resume",)),
    Action(command="drain", keys=("drain",)),
    Action(command="undrain", keys=("bring_back",)),
    Action(command="logs", keys=("logs",)),
    Action(command="down", keys=("teardown",)),
    Action(command="replay", keys=("pause", "faster", "slower")),
    Action(command="demo", keys=("chaos", "demo")),
    Action(command="plan", why="the app has a view of the plan of a run that is on"),
    Action(command="bootstrap", keys=("install",)),
    Action(command="check", keys=("check",)),
    Action(command="add", keys=("add",)),
    Action(command="remove", keys=("remove",)),
    Action(command="status", why="the fleet's view, as long as the app is open"),
    Action(command="runs", why="the list of runs, a view of the app"),
    Action(command="attach", why="the app follows a run that is under way by itself"),
    Action(command="report", why="a file for others"),
    Action(command="export", why="a file for other programs"),
    Action(command="sweep", why="its trials are lines, which the app shows as those of a script"),
    Action(command="serve", why="a service for other programs"),
    Action(command="run", why="a script of the user's own; the app lists it among the runs"),
    Action(command="ray", why="another program's command line"),
    Action(command="web", why="the app itself, in a browser"),
    Action(command="metrics", why="a service for another program"),
    Action(keys=("help", "command_palette", "detach", "colours"), why="of the app itself"),
    Action(keys=("filter", "sort", "copy", "save", "view", "mark", "compare"), why="chooses what is shown"),
    Action(keys=("scale", "smooth", "zoom", "follow", "source"), why="chooses how it is shown"),
    Action(keys=("edit",), why="the inventory is a file: on the command line the user's own editor changes it"),
    Action(keys=("shell",), why="a command of its own, ssh, does it on the command line"),
)


def test_each_command_is_in_the_table_and_each_of_the_table_is_a_command() -> None:
    group = typer.main.get_command(application)
    assert isinstance(group, typer.core.TyperGroup)
    named = [action.command for action in ACTIONS if action.command]
    assert len(named) == len(set(named))
    assert set(named) == set(group.commands)


def test_each_key_of_the_app_and_of_its_palette_is_in_the_table() -> None:
    known = {name for action in ACTIONS for name in action.keys}
    tables = [value for module in (keys, replaying) for value in vars(module).values()]
    entries = [entry for value in tables for entry in (value if isinstance(value, tuple) else (value,))]
    shown = {entry.action.partition("(")[0] for entry in entries if isinstance(entry, keys.Key)}
    assert {"up", "train", "pause"} <= shown
    assert shown - known == set()
    for action in ACTIONS:
        assert action.why or (action.command and action.keys), f"{action} lacks a command or a key, and a reason"
