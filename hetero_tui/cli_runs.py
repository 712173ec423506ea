"""The commands about runs; see :mod:`hetero_tui.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero_tui import cli_hosts, commanding
from hetero_tui.cli_hosts import FromLaptop, Index, PythonMirror, TorchIndex, Wheels
from hetero_tui.cli_options import (
    Host,
    Job,
    JobOrNone,
    Json,
    LiveRun,
    LogTo,
    Plain,
    Run,
    Settings,
    Weights,
    With,
    hosts,
    scripts,
    with_log,
)
from hetero_tui.commanding import Call
from hetero_tui.intents import RESUMING, TRAINING, half_way
from hetero_tui.launcher import DONE, USAGE
from hetero_tui.narration import Narrator, Output
from remote_agent import protocol
from remote_agent.states import stands_at

if TYPE_CHECKING:
    from hetero_tui.runs.membership import Asked

commands = typer.Typer()

FORMS = ("csv", "json", *protocol.WEIGHTS)
"""What ``export`` writes."""


@commanding.command(commands, interrupted=half_way(TRAINING))
async def train(
    call: Call,
    output: Output,
    job: JobOrNone = None,
    settings: Settings = None,
    paths: With = None,
    sweep: Annotated[
        str | None,
        typer.Option("--from", metavar="SWEEP", help="Train its job with its best settings; --set counts more."),
    ] = None,
    log_to: LogTo = None,
    bootstrap: Annotated[
        bool,
        typer.Option("--bootstrap", help="First install what machines lack, and what the job's `requirements` name."),
    ] = False,
    from_laptop: FromLaptop = False,
    wheels: Wheels = "",
    index: Index = "",
    torch_index: TorchIndex = "",
    python_mirror: PythonMirror = "",
) -> int:
    """Start a run and follow it. It lives on the head host: closing this does not end it."""
    from hetero_tui.runs.order import HINT, read_order
    from hetero_tui.runs.sweep import order_from

    sources = cli_hosts.sources_if(bootstrap, "--bootstrap", from_laptop, wheels, index, torch_index, python_mirror)
    pairs = with_log(settings, log_to)
    if job is None and sweep is None:
        output.complain(f"hetero-tui: train: which job? -> {HINT}, or --from SWEEP")
        return USAGE
    # With a sweep the job's settings are not known yet.
    known = None if sweep else read_order(job or "", pairs, paths or ())

    async with call.session(record=True) as session:
        order = known or order_from(await session.sweep_result(sweep or ""), job, pairs, paths or ())
        if known is None:
            output.say(" ".join([order.job.reference, *(f"{name}={value}" for name, value in order.settings.items())]))
        asks = commanding.asks if commanding.on_a_terminal(output) else None
        run, absent = await session.launch(order, sources, asks), session.absent
        output.say(f"{run} is on its way; see it again with `hetero-tui attach {run}`")
        return commanding.without(output, await commanding.follow(session, output, run), absent)


@commanding.command(commands)
async def attach(call: Call, output: Output, run: Run = None) -> int:
    """Follow a run from its first event. Of a script: its output from its first line."""
    async with call.session(record=True) as session:
        _, found = await session.find(await commanding.named(session, output, run))
        follows = commanding.follow_script if found.script else commanding.follow
        return await follows(session, output, found.id)


@commanding.command(commands)
async def logs(
    call: Call,
    output: Output,
    run: Run = None,
    host: Annotated[str, typer.Option("--host", help="Only this host's lines.", autocompletion=hosts)] = "",
    worker: Annotated[
        str, typer.Option("--worker", help="Only this worker's lines (nas/cpu), or another process's (coordinator).")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
) -> int:
    """Print what a run's processes logged, on all hosts. The job's prints, what was decided and why, Ray's errors."""
    async with call.session(narrate=False) as session:
        name = await commanding.named(session, output, run)
        return await commanding.logs(session, output, name, host, worker, follow=follow)


@commanding.command(commands, interrupted=half_way("ending the run"))
async def stop(call: Call, output: Output, run: LiveRun = None) -> int:
    """End a run after its current step, with a checkpoint."""
    async with call.session(narrate=False, needs_hosts=False) as session:
        ended = await session.stop_run(run)
        if output.as_json:
            output.document({"run": ended.id, "state": ended.state, "step": ended.step})
        else:
            output.data(f"{ended.id} is {ended.state} {stands_at(ended.state, ended.step)}")
        return DONE


@commanding.command(commands, interrupted=half_way(RESUMING))
async def resume(
    call: Call,
    output: Output,
    run: Run = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Go on with another learning_rate, num_iterations, ..."),
    ] = None,
) -> int:
    """Let a run go on from its newest checkpoint, and follow it. It failed, was stopped or was lost."""
    from hetero_tui.runs.order import read_changes

    changes = read_changes(settings or ())
    async with call.session(record=True) as session:
        resumed, absent = await session.resume_run(run, changes), session.absent
        output.say(f"{resumed} goes on; see it again with `hetero-tui attach {resumed}`")
        return commanding.without(output, await commanding.follow(session, output, resumed), absent)


@commanding.command(commands)
async def drain(call: Call, output: Output, host: Host) -> int:
    """Have a host leave the run after its step. Nothing is lost: the others do its part."""
    async with call.session(narrate=False) as session:
        return _told(output, host, await session.drain(host))


@commanding.command(commands)
async def undrain(call: Call, output: Output, host: Host) -> int:
    """Have a drained host take part in the run again. One that is to be tried after a pause is tried at once."""
    async with call.session(narrate=False) as session:
        return _told(output, host, await session.bring_back(host))


@commanding.command(commands)
async def runs(call: Call, output: Output) -> int:
    """List the runs on all hosts, oldest first."""
    async with call.session(narrate=False, needs_hosts=False) as session:
        from hetero_tui import reports

        found = await session.status()
        if output.as_json:
            output.document(reports.runs_document(found))
        elif not found:
            from hetero_tui.runs.listing import START

            output.say(f"no run on any host that answers -> {START}")
        else:
            output.table(["RUN", "JOB", "STATE", "STEP", "LOSS", "STEP TIME", "STARTED"], reports.run_rows(found))
        failed = [entry.error for entry in session.surveyed.values() if entry.error is not None]
        for error in failed:
            output.error(error)
        for said in session.left_behind:
            output.complain(f"hetero-tui: {said}")
        return commanding.exit_code(
            done=[entry for entry in session.surveyed.values() if entry.error is None], failed=failed
        )


@commanding.command(commands)
async def report(
    call: Call,
    output: Output,
    run: Run = None,
    path: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; RUN.html if not given.")
    ] = None,
) -> int:
    """Write a run's plots and faults to one HTML file. It needs nothing else."""
    async with call.session(narrate=False) as session:
        from hetero_tui.reporting.page import page

        return await commanding.write_out(session, output, run, path, ".html", page)


@commanding.command(commands)
async def export(
    call: Call,
    output: Output,
    run: Run = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMS),
            help="Figures: a row a step, or all of it. Weights; hf: a folder for from_pretrained, peft: the adapter"
            " alone, merged: with the adapter in it.",
            autocompletion=lambda incomplete: [form for form in FORMS if form.startswith(incomplete)],
        ),
    ] = "csv",
    path: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="Where to; else stdout, and for weights the run's name."),
    ] = None,
    weights: Weights = None,
) -> int:
    """Write a run's figures or its weights for other programs."""
    if form not in FORMS:
        output.complain(f"hetero-tui: export: no format {form!r} -> --format {', '.join(FORMS[:-1])} or {FORMS[-1]}")
        return USAGE
    if weights is not None and form not in protocol.WEIGHTS:
        forms = f"--format {', '.join(protocol.WEIGHTS)}"
        output.complain(f"hetero-tui: export: --weights {weights} has no meaning for --format {form} -> {forms}")
        return USAGE

    if path is not None and form in protocol.WEIGHTS:
        from hetero_tui.runs.weights import refuse_kind

        refuse_kind(path, form)
    async with call.session(narrate=False) as session:
        if form in protocol.WEIGHTS:
            chosen = weights or protocol.Choice.NEWEST
            name, place, step = await session.export(await commanding.named(session, output, run), form, path, chosen)
            if output.as_json:
                output.document({"run": name, "file": str(place.resolve()), "step": step})
            else:
                output.data(f"{name}: {place} (step {step:,})")
            return DONE
        from hetero_tui.reporting import table

        written = table.as_csv if form == "csv" else table.as_json
        return await commanding.write_out(session, output, run, path, None, written)


@commanding.command(commands, interrupted="interrupted; the model is served no more")
async def serve(
    call: Call,
    output: Output,
    run: Run = None,
    host: Annotated[str, typer.Option("--host", help="Where; its head if not given.", autocompletion=hosts)] = "",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="On this computer; 0: any that is free.")] = 0,
    device: Annotated[
        str, typer.Option("--device", metavar="cpu|cuda:0|mps", help="The host's best if not given.")
    ] = "",
    weights: Weights = None,
) -> int:
    """Serve a run's model over HTTP until Ctrl-C. It answers this computer alone."""
    async with call.session(narrate=False) as session:
        return await commanding.serve(session, output, run, host, port, device, weights or protocol.Choice.NEWEST)


@commands.command()
def replay(
    path: Annotated[Path | None, typer.Argument(metavar="FILE", help="A recording; the newest if not given.")] = None,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Show a recorded session again in the app. With pause and speed; in a pipe: its log and how it ended."""
    raise typer.Exit(_replayed(Output(as_json, plain), path))


@commanding.command(commands, options=("plain", "accept"))
async def metrics(
    call: Call,
    output: Output,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="On this computer; 0: any that is free.")
    ] = 9464,
) -> int:
    """Serve metrics for Prometheus until Ctrl-C, on loopback."""
    async with call.session(narrate=False, stays=True) as session:
        return await commanding.metrics(session, output, port)


def _told(output: Output, host: str, asked: Asked) -> int:
    """The run under way changes its hosts."""
    if output.as_json:
        output.document({"run": asked.run, "host": host, "said": asked.said})
    else:
        output.data(asked.said)
    return DONE


def _replayed(output: Output, path: Path | None) -> int:
    """Show a recording (None: the newest): in the app where there is a terminal for it, else its log and its end."""
    from hetero_tui import reports
    from hetero_tui.fold import apply
    from hetero_tui.launcher import on_a_terminal, open_replay
    from hetero_tui.recording.replay import Replay, newest, read

    recording = commanding.checked(output, lambda: read(path if path is not None else newest()))
    if recording.cut_off:
        output.say(f"{recording.path} ends without the end of its session: that was killed, or goes on")
    if not (output.as_json or output.plain) and on_a_terminal():
        return open_replay(Replay(recording))
    narrator, state = Narrator(output, alone=True), recording.initial
    for event in (event for _, event in recording.entries if event is not None):
        state = apply(state, event)
        if not output.as_json:
            narrator(state)
    if output.as_json:
        output.document(reports.recording_document(recording, state))
    else:
        output.data(reports.recording_line(recording, state))
    return DONE


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
    from hetero_tui.runs.order import read_script

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
