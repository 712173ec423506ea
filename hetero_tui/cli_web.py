"""The command that shows the app in a browser; see :mod:`hetero_tui.cli`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from hetero_tui.cli_options import AcceptKeys
from hetero_tui.errors import UsageError
from hetero_tui.launcher import DONE, run_to_end
from hetero_tui.narration import Output

commands = typer.Typer()


@commands.command()
def web(
    context: typer.Context,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="On this computer; 0: any that is free.")] = 0,
    accept: AcceptKeys = False,
) -> None:
    """Show the app in a browser of this computer until Ctrl-C. The link works once."""
    output = Output()
    options = context.find_root().params
    inventory = str(Path(context.obj).absolute())

    async def whole() -> int:
        if find_spec("textual_serve") is None:
            raise UsageError("textual-serve is not installed", step="web", hint="pip install 'hetero-tui[web]'")
        from hetero_tui import web as served

        command = served.app_command(
            inventory, accept_new_host_keys=accept or options["accept"], readonly=options["readonly"]
        )
        with served.listen(port) as listening:
            output.say("open this in a browser on this computer; it works once (Ctrl-C ends it):")
            await served.GuardedServer(command, listening).run(output.data)
        return DONE

    raise typer.Exit(run_to_end(whole, output.complain, interrupted="the page is closed; what runs on hosts goes on"))
