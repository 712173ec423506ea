"""The commands that hand the cluster to Ray itself; see :mod:`hetero_tui.cli`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hetero_tui import commanding
from hetero_tui.cli_options import AcceptKeys, Json, Plain, With, scripts
from hetero_tui.launcher import DONE
from hetero_tui.narration import Output

if TYPE_CHECKING:  # asyncssh takes a while to import: `--help` does without
    from hetero_tui.session import Session

commands = typer.Typer()

_ITS_OWN = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Options after the first word are the script's, or Ray's."""


@commands.command(context_settings=_ITS_OWN)
def run(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE.py", help="A Ray script.", autocompletion=scripts)],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The script's own.")] = None,
    paths: With = None,
    as_json: Json = False,
    plain: Plain = False,
    accept: AcceptKeys = False,
) -> None:
    """Run any Ray script on the fleet's cluster, from its head. Ray Train, Tune, Data, your own actors.

    Options of this command stand before FILE.py, those after it are the script's.
    """
    from hetero_tui.runs.script import read_script

    output = Output(as_json, plain)
    order = commanding.checked(output, lambda: read_script(file, arguments or (), paths or ()))

    async def work(session: Session, output: Output) -> int:
        name = await session.launch(order)
        output.say(f"{name} is on its way; `hetero-tui attach {name}` shows its output again")
        return await commanding.follow_script(session, output, name)

    commanding.in_session(context, output, accept, work, watch=True)


@commands.command(context_settings=_ITS_OWN | {"help_option_names": []})
def ray(
    context: typer.Context,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Of Ray's own.")] = None,
) -> None:
    """Run Ray's own command line against the fleet's cluster. It runs on the head: `hetero-tui ray status`."""

    async def work(session: Session, output: Output) -> int:
        from hetero_tui.text import plain

        async for line in session.rays_own(arguments or ["--help"]):
            print(plain(line), flush=True)
        return DONE

    commanding.in_session(context, Output(plain=True), False, work, narrate=False)
