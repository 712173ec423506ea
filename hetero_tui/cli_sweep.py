"""The command that looks for good settings; see :mod:`hetero_tui.cli`."""

from __future__ import annotations

from typing import Annotated

import typer

from hetero_tui import commanding
from hetero_tui.cli_options import Job, Settings, With
from hetero_tui.commanding import Call
from hetero_tui.launcher import DONE
from hetero_tui.narration import Output

commands = typer.Typer()


@commanding.command(commands)
async def sweep(
    call: Call,
    output: Output,
    job: Job,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=RANGE",
            help="A setting that differs: learning_rate=1e-4..1e-2:log, schedule=linear,cosine; repeatable.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", help="How many; each is a run on one device.")] = 20,
    metric: Annotated[
        str,
        typer.Option("--by", metavar="METRIC", help="What is to be good: loss, or a figure as keep_best takes it."),
    ] = "loss",
    settings: Settings = None,
    paths: With = None,
) -> int:
    """Look for good settings by many short runs. One a device; the worse ones are stopped early (ASHA)."""
    from hetero_tui.runs.sweep import read_sweep

    order = read_sweep(job, parameters or (), trials, metric, settings or (), paths or ())
    if order.search is not None and order.search.trials < trials:
        output.say(f"{order.search.trials} trials: each combination of the values once")
    async with call.session(watch=True) as session:
        name, absent = await session.launch(order), session.absent
        output.say(f"{name} is on its way; `hetero-tui attach {name}` shows its output again")
        code = await commanding.follow_script(session, output, name)
        if code == DONE:
            found = (await session.sweep_result(name)).trials  # the best one first
            has_best = bool(found) and not found[0].cause
            best = f"`hetero-tui train --from {name}` trains with the best settings on all devices"
            output.say(best if has_best else f"{name}: no trial ended well, so there are no best settings")
        return commanding.without(output, code, absent)
