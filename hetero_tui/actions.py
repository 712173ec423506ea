"""Lists every action of a user once: the app's keys for it and its command, or the reason why one is missing.

The app's keys (:mod:`hetero_tui.ui.keys`) and the commands (:mod:`hetero_tui.cli`) are compared with this table by
``tests/test_actions.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    Action(command="replay", keys=("pause", "faster", "slower", "forward", "rewind")),
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
