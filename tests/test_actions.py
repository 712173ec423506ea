"""Everything that the app does the command line does too, or the table of actions says why not; and the other way."""

from __future__ import annotations

import typer
import typer.core

from hetero_tui.actions import ACTIONS
from hetero_tui.cli import application
from hetero_tui.ui import keys, replaying


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


def test_each_argument_of_a_command_is_named_in_capitals_as_the_documents_name_it() -> None:
    group = typer.main.get_command(application)
    assert isinstance(group, typer.core.TyperGroup)
    arguments = [
        argument
        for command in group.commands.values()
        for argument in command.params
        if argument.param_type_name == "argument"
    ]
    assert len(arguments) >= 10
    assert [argument.name for argument in arguments if not (argument.metavar or "").partition(".")[0].isupper()] == []
