"""The command line: each command composes operations of the session, prints, and picks the exit code.

Exit codes: 0 done, 1 failed, 2 usage or inventory, 3 some hosts failed and the rest is done, 4 something was left
behind, 130 interrupted. Without a command the terminal app opens.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero_tui import __version__, cli_hosts, cli_runs, commanding, plan_command
from hetero_tui.cli_hosts import FromLaptop, Index, PythonMirror, TorchIndex, Wheels
from hetero_tui.cli_options import AcceptKeys, Job, Json, LogTo, Plain, Settings, With, with_log
from hetero_tui.commanding import Call
from hetero_tui.errors import UsageError
from hetero_tui.events import HostState
from hetero_tui.intents import PLANNING, STARTING, half_way
from hetero_tui.launcher import (
    DEMO,
    DONE,
    INVENTORY,
    INVENTORY_VARIABLE,
    on_a_terminal,
    open_app,
    read_settings,
    require_utf8,
    run_to_end,
)
from hetero_tui.narration import Narrator, Output, saying, waiting_for

if TYPE_CHECKING:
    from hetero_tui.session import Session

application = typer.Typer(
    name="hetero-tui",
    help="Train one PyTorch model on all the mismatched machines you have. Without a command, the app opens.",
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
application.add_typer(cli_hosts.commands)
application.add_typer(cli_runs.commands)


@application.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    inventory: Annotated[
        Path, typer.Option("--inventory", "-i", envvar=INVENTORY_VARIABLE, help="The file that names the machines.")
    ] = Path(INVENTORY),
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    accept: AcceptKeys = False,
    readonly: Annotated[
        bool, typer.Option("--readonly", help="The app only shows: no key changes anything on the machines.")
    ] = False,
) -> None:
    """Open the terminal app, or run one command of it."""
    context.obj = inventory
    if version:
        print(__version__)
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        code = open_app(inventory, accept_new_host_keys=accept, readonly=readonly)
        if code == DEMO:
            demo()
        raise typer.Exit(code)


@application.command()
def demo(
    job: Job = "digits",
    settings: Settings = None,
    paths: With = None,
    log_to: LogTo = None,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Break a machine every few seconds, to see it recover (in the app: key x).")
    ] = False,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """See it work on this computer. Three simulated machines train, and are taken down again."""
    from hetero_tui.runs.order import read_order

    output = Output(as_json, plain)
    pairs = ["strategy=sync", *with_log(settings, log_to)]  # all three train, were one alone the fastest or not
    order = commanding.checked(output, lambda: read_order(job, pairs, paths or ()))
    from hetero_tui.demo.fleet import WATCHED, demo_fleet
    from remote_agent.settings import GOALS

    in_app = not (as_json or plain) and on_a_terminal()

    async def whole() -> int:
        if in_app:
            require_utf8()
        shown: list[Session] = []  # whose words are printed: none while the app has the terminal
        waits = saying(output, lambda: "".join(waiting_for(session.state) for session in shown))
        async with waits, demo_fleet(log_errors=in_app) as fleet:
            session = fleet.session
            if not in_app:
                shown.append(session)
                session.subscribe(Narrator(output))
            if chaos:
                await fleet.chaos.toggle()
            if in_app:
                from hetero_tui.ui.app import HeteroApp
                from hetero_tui.ui.keys import QUIT_FOR_GOOD

                chosen = dict(order.settings)
                if job == "digits" and not chosen.keys() & {*GOALS, "batch_size"}:
                    chosen |= WATCHED
                app = HeteroApp(
                    session,
                    on_start=("up", "train"),  # it probes by itself
                    job=job,
                    settings=chosen,
                    paths=paths or (),
                    quit_key=QUIT_FOR_GOOD,
                    chaos=fleet.chaos.toggle,
                    preferences=commanding.checked(output, read_settings),
                )
                await app.run_async()
                code = app.return_code or DONE
                output.say("tearing the demo down ...")
                shown.append(session)
            else:
                await session.up()
                code = await commanding.follow(session, output, await session.launch(order), demo=True)
        assert fleet.report is not None
        clean = "the demo is taken down: no process, port or folder of it is left"
        return commanding.report_leftovers(output, fleet.report, clean) or code

    raise typer.Exit(run_to_end(whole, output.complain, interrupted="interrupted; the demo is taken down"))


@commanding.command(application)
async def probe(call: Call, output: Output) -> int:
    """Say what every machine is, what it has, and what it lacks."""
    async with call.session(narrate=False) as session:
        from hetero_tui import reports

        await commanding.probe(session, output)
        if output.as_json:
            output.document(reports.probe_document(session.inventory, session.probed, session.state.head))
        else:
            rows = reports.probe_rows(session.inventory, session.probed, session.state.head)
            if rows:
                output.table(["HOST", "DEVICES", "MEMORY", "PYTHON", "VERDICT"], rows)
        failed = [entry.error for entry in session.probed if entry.error is not None]
        for error in failed:
            output.error(error)
        return commanding.exit_code(done=[entry for entry in session.probed if entry.facts is not None], failed=failed)


@commanding.command(application, interrupted=half_way(STARTING))
async def up(
    call: Call,
    output: Output,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="First give machines that lack one an environment, as `bootstrap` does.")
    ] = False,
    from_laptop: FromLaptop = False,
    wheels: Wheels = "",
    index: Index = "",
    torch_index: TorchIndex = "",
    python_mirror: PythonMirror = "",
) -> int:
    """Start one Ray cluster over all machines that are fit. What runs already is left alone."""
    sources = cli_hosts.sources_if(bootstrap, "--bootstrap", from_laptop, wheels, index, torch_index, python_mirror)
    async with call.session() as session:
        from hetero_tui import reports

        await session.up(sources)
        report = session.up_report
        assert report is not None
        state = session.state
        if output.as_json:
            output.document(reports.up_document(state, report))
        else:
            output.data(f"cluster {state.cluster} is {state.cluster_state}, head {state.head}")
        for error in report.failed.values():
            output.error(error)
        return commanding.exit_code(done=list(report.joined), failed=list(report.failed))


commanding.command(application, interrupted=half_way(PLANNING))(plan_command.plan)


@commanding.command(application)
async def status(call: Call, output: Output) -> int:
    """Say what of ours is running, and where."""
    async with call.session(narrate=False, needs_hosts=False) as session:
        from hetero_tui import reports

        runs = await session.status(judge=True)
        document = reports.status_document(session.state, runs)
        if output.as_json:
            output.document(document)
        else:
            cluster = document["cluster"]
            output.data(f"cluster {session.state.cluster}: {cluster['state']}, head {cluster['head'] or 'none'}")
            output.table(["HOST", "STATE", ""], [[h["name"], h["state"], h["detail"]] for h in document["hosts"]])
            if runs:
                rows = [[name, *rest[:3]] for name, _, *rest in reports.run_rows(runs)]
                output.table(["RUN", "STATE", "STEP", "LOSS"], rows)
        failed = {name: str(found.error) for name, found in session.surveyed.items() if found.error is not None}
        for host in document["hosts"]:
            if host["state"] == HostState.FAILED:
                failed.setdefault(host["name"], f"{host['name']}: status: {host['detail']}")
        for said in (*failed.values(), *session.left_behind):
            output.complain(f"hetero-tui: {said}")
        return commanding.exit_code(done=[*session.surveyed.keys() - failed], failed=[*failed])


@commanding.command(application, interrupted=half_way("stopping"))
async def down(
    call: Call,
    output: Output,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="Remove all of ours but the runs, environments too.")] = False,
) -> int:
    """Stop all of ours on every machine, prove that nothing runs, and say which files are kept."""
    async with call.session(needs_hosts=False) as session:
        from hetero_tui.ui.format import plural

        if not yes and not commanding.asks(
            f"Tear down {session.inventory.cluster} on {plural(len(session.inventory.hosts), 'host')}"
            f"{', environments too' if purge else ''}?"
        ):
            hint = "" if commanding.can_ask() else "a script has to pass --yes"
            raise UsageError("nothing was done", step="down", hint=hint)
        report = await session.down(purge)
        if output.as_json:
            output.document(asdict(report))
        else:
            for removed in report.removed:
                what = removed.detail if removed.kind == "folder" else f"{removed.kind} {removed.detail}"
                output.data(f"{removed.host}: {what} is gone")
            for kept in report.kept_words:
                output.data(kept)
        unseen = (
            f"; not looked at, as they did not answer, but not in use from this computer: {', '.join(report.unseen)}"
        )
        clean = "nothing of ours runs any more" if report.kept else "nothing is left"
        return commanding.report_leftovers(output, report, f"{clean}{unseen if report.unseen else ''}")


@application.command()
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
