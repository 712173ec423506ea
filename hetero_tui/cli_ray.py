"""The commands that hand the cluster to Ray itself; see :mod:`hetero_tui.cli`."""

from __future__ import annotations

from typing import Annotated

import typer

from hetero_tui import commanding
from hetero_tui.cli_options import With, scripts
from hetero_tui.commanding import Call
from hetero_tui.launcher import DONE
from hetero_tui.narration import Output

commands = typer.Typer()

_ITS_OWN = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Options after the first word are the script's, or Ray's."""


@commanding.command(commands, context_settings=_ITS_OWN)
async def run(
    call: Call,
    output: Output,
    file: Annotated[str, typer.Argument(metavar="FILE.py", help="A Ray script.", autocompletion=scripts)],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The script's own.")] = None,
    paths: With = None,
) -> int:
    """Run any Ray script on the fleet's cluster, from its head. Ray Train, Tune, Data, your own actors.

    Options of this command stand before FILE.py, those after it are the script's.
    """
    from hetero_tui.runs.script import read_script

    order = read_script(file, arguments or (), paths or ())
    async with call.session(watch=True) as session:
        name, absent = await session.launch(order), session.absent
        output.say(f"{name} is on its way; `hetero-tui attach {name}` shows its output again")
        return commanding.without(output, await commanding.follow_script(session, output, name), absent)


@commanding.command(commands, options=(), context_settings=_ITS_OWN | {"help_option_names": []})
async def ray(
    call: Call,
    output: Output,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Of Ray's own.")] = None,
) -> int:
    """Run Ray's own command line against the fleet's cluster. It runs on the head: `hetero-tui ray status`."""
    from hetero_tui.text import plain

    async with call.session(narrate=False) as session:
        async for line in session.rays_own(arguments or ["--help"]):
            print(plain(line), flush=True)
        return DONE
