"""Implements what the commands share: a session, following a run, questions to the user, and the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import typer
import typer.core

from hetero_tui import output_place
from hetero_tui.cli_options import AcceptKeys, Json, Plain
from hetero_tui.errors import HeteroTuiError, HostError, HostKeyUnknown, RunError, UsageError
from hetero_tui.launcher import DONE, FAILED, LEFT_BEHIND, PARTLY, RUNS_GO_ON, run_to_end
from hetero_tui.narration import Narrator, Output, StepPrinter, saying, waiting_for
from hetero_tui.text import meant
from remote_agent import protocol
from remote_agent.removed import why_removed
from remote_agent.states import RunState

if TYPE_CHECKING:  # asyncssh takes a while to import: `--help` does without
    from hetero_tui.intents import TeardownReport
    from hetero_tui.machines import Machines
    from hetero_tui.reporting.figures import Figures
    from hetero_tui.session import Session


T = TypeVar("T")
P = ParamSpec("P")


async def probe(session: Session, output: Output) -> None:
    """Probe; at a terminal, ask about keys that were never seen, and probe again with those that are trusted.

    Behind a jump host's key comes that of the host itself.
    """
    await session.look()
    answers: dict[tuple[str, str], bool] = {}  # several hosts may be behind one
    while not (output.as_json or output.plain):
        asked = len(answers)
        for entry in session.probed:
            if isinstance(entry.error, HostKeyUnknown):
                key = (entry.error.endpoint, entry.error.fingerprint)
                if key not in answers:
                    answers[key] = asks(_whether_to_trust(entry.host, entry.error))
                if answers[key]:
                    session.accept_host_key(entry.host)
        if not any([*answers.values()][asked:]):
            return
        await session.look()


def _whether_to_trust(host: str, error: HostKeyUnknown) -> str:
    """The question to the user: which server shows which key."""
    return f"{host}: {error.endpoint} was never seen; its key is {error.fingerprint}. Trust it?"


async def named(session: Session, output: Output, run: str | None) -> str:
    """A run's name; of none the newest run's, which is said where others are under way: one of them may be meant."""
    if run is not None:
        return run
    name, others = await session.newest()
    if others:
        output.say(f"{name} is the newest run; also under way: {', '.join(others)}")
    return name


async def follow(session: Session, output: Output, run: str | None, *, demo: bool = False) -> int:
    """Print a run's events until its last one; the exit code says how it ended. A ``demo`` leaves no checkpoint."""
    from hetero_tui import answers

    printer = StepPrinter(output, demo=demo)
    last: protocol.Event | None = None
    try:
        async for line, event in session.events_of(run):
            if output.as_json:
                print(answers.json_line(line), flush=True)
            else:
                shown = session.state.run
                printer(event, is_past=shown is not None and shown.is_past(event))
            last = event
    except asyncio.CancelledError:
        followed = session.state.run
        if demo or followed is None:
            raise
        name = followed.run
        raise asyncio.CancelledError(
            f"interrupted; {name} goes on: `hetero-tui attach {name}` follows it, `hetero-tui stop {name}` ends it"
        ) from None
    done, shown = isinstance(last, protocol.RunFinished), session.state.run
    output.ring(f"{shown.run} {shown.state}" if shown is not None else "the run ended")
    return DONE if done else FAILED


async def follow_script(session: Session, output: Output, run: str) -> int:
    """Print what a script prints, until it ends; the exit code says how."""
    from hetero_tui import reports
    from hetero_tui.text import plain

    head, _ = await session.find(run)
    async for entry in session.logs_of(run, head, follow=True, failed=output.error):
        if entry.line.process == protocol.SCRIPT:
            print(reports.log_json(entry) if output.as_json else plain(entry.line.line), flush=True)
    summary, happened = await session.history_of(run)
    output.ring(f"{run} {summary.state}")
    last = happened[-1]
    if isinstance(last, protocol.RunFailed):
        hint = f" -> {last.hint}" if last.hint else ""
        output.complain(f"hetero-tui: {last.host}: {last.cause}{hint}")
    elif not summary.state.final or summary.state is RunState.LOST:
        output.complain(f"hetero-tui: {head}: {run} ended without a last word")
    return DONE if isinstance(last, protocol.RunFinished) else FAILED


async def logs(
    session: Session, output: Output, run: str | None, host: str = "", worker: str = "", *, follow: bool = False
) -> int:
    """Print what the processes of a run logged and printed: all, those of one host, or one of them."""
    from hetero_tui import reports

    failed: list[HostError] = []

    def fail(error: HostError) -> None:
        failed.append(error)
        output.error(error)

    def broken(error: HostError) -> None:
        output.complain(f"hetero-tui: {error.host}: {error.cause}; its lines go on once it is back")

    printed, others = set[str](), set[str]()
    async for entry in session.logs_of(run, host, follow=follow, failed=fail, broken=broken):
        if worker in ("", entry.line.process, f"{entry.host}/{entry.line.process}", entry.host):
            # There may be a hundred thousand: no console is made for each.
            print(reports.log_json(entry) if output.as_json else reports.log_line(entry), flush=follow)
            printed.add(entry.host)
        else:
            others.add(entry.line.process)
    if worker and others and not printed:
        hint = f"there are lines of {', '.join(sorted(others))}"
        raise UsageError(f"no line of {worker!r}{meant(worker, others)}", step="logs", hint=hint)
    return exit_code(done=list(printed), failed=failed)


async def write_out(
    session: Session,
    output: Output,
    run: str | None,
    path: Path | None,
    ending: str | None,
    text: Callable[[Figures], str],
) -> int:
    """Write what ``text`` makes of a run to ``path``, by default its name and ``ending``; without both to stdout."""
    from hetero_tui.reporting.figures import figures_of

    if path is not None:
        output_place.refuse_for_file(path)
    summary, happened = await session.history_of(await named(session, output, run))
    if summary.script:
        hint = f"`hetero-tui logs {summary.id}` shows what it printed"
        raise RunError(f"{summary.id} is a script or a sweep: it made no steps itself", hint=hint)
    written = text(figures_of(summary.id, happened, summary.state))
    if path is None and ending is None:
        sys.stdout.write(written)
        return DONE
    path = path if path is not None else Path(f"{summary.id}{ending}")
    try:
        path.write_text(written, encoding="utf-8")
    except OSError as error:
        cause = f"{path} can't be written: {error.strerror}"
        raise UsageError(cause, hint=output_place.ELSEWHERE) from None
    if output.as_json:
        output.document({"run": summary.id, "file": str(path.resolve())})
    else:
        output.data(f"{summary.id}: {path}")
    return DONE


async def metrics(session: Session, output: Output, port: int) -> int:
    """Serve metrics until this is cancelled: of all hosts, and of each run that is under way."""
    from hetero_tui.reporting.metrics import served

    with served(lambda: session.state, port) as address:
        output.data(address)
        await session.probe()
        for entry in session.probed:
            if entry.error is not None:
                output.error(entry.error)
        await asyncio.Event().wait()
    return DONE


async def serve(
    session: Session, output: Output, run: str | None, host: str, port: int, device: str, choice: protocol.Choice
) -> int:
    """Serve a run's checkpoint until this is cancelled, or what serves it is gone."""
    async with session.serve(run, host, port, device, choice) as service:
        about = service.serving
        if output.as_json:
            output.document(
                {
                    "run": service.run,
                    "host": service.host,
                    "device": about.device,
                    "step": about.step,
                    "url": service.url,
                    "token": service.token,
                    "paths": list(about.paths),
                }
            )
            sys.stdout.flush()
        else:
            output.data(f"{service.run}, step {about.step:,}, on {about.device} of {service.host}")
            curl = f"curl -H 'Authorization: Bearer {service.token}' {service.url}"
            for path in about.paths:
                body = about.examples.get(path)
                output.data(f"{curl}{path} -d {'@inputs.json' if body is None else shlex.quote(body)}")
                if body is None:
                    output.say('inputs.json: {"inputs": [...]}, with an entry for each sample, as your data has them')
            sys.stdout.flush()
        async for _ in service.lines:
            pass
        output.complain(f"hetero-tui: {service.host}: the server ended")
        return FAILED


def report_leftovers(output: Output, report: TeardownReport, clean: str) -> int:
    """Say what a teardown left behind, or ``clean`` when it left nothing; the exit code that follows from it."""
    for left in report.leftovers:
        what = "it was not looked at:" if left.kind == "host" else f"left behind: {left.kind}"
        output.complain(f"{left.host}: {what} {left.detail}")
    if not report.leftovers and not output.as_json:
        output.data(clean)
    return LEFT_BEHIND if report.leftovers else DONE


def exit_code(*, done: Sequence[object], failed: Sequence[object]) -> int:
    """All is done, a part of it, or nothing."""
    if not failed:
        return DONE
    return PARTLY if done else FAILED


def without(output: Output, code: int, absent: Mapping[str, HostError]) -> int:
    """The exit code of what is done with all hosts of the inventory but the ``absent`` ones, which are named."""
    if code != DONE:
        return code
    for error in absent.values():
        output.error(error)
    return exit_code(done=[code], failed=[*absent])


def can_ask() -> bool:
    """Whether there is a terminal to ask at."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def asks(question: str) -> bool:
    """The user's answer; no at anything that is not a terminal, which is never asked."""
    if not can_ask():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def on_a_terminal(output: Output) -> bool:
    """Whether a person can be asked."""
    return not output.as_json and not output.plain and can_ask()


async def write_host(
    machines: Machines, name: str, fields: dict[str, object], output: Output, *, unchecked: bool
) -> HeteroTuiError | None:
    """Look at a machine and write it into the inventory; what kept it from being written, which is said."""

    async def trusts(name: str, error: HostKeyUnknown) -> bool:
        return on_a_terminal(output) and asks(_whether_to_trust(name, error))

    found = await machines.look(name, fields, trusts)
    if found.error is not None and not found.can_be_used and not unchecked:
        output.error(found.error)
        output.say(f"{name} was not written to {machines.path}; --unchecked writes it all the same")
        return found.error
    machines.write(name, fields)
    if not output.as_json:
        output.data(f"{name} is in {machines.path}: {found.words}")
    return None


def checked(output: Output, read: Callable[[], T]) -> T:
    """What the user's words mean, before anything is opened; mistakes end the command with their exit code."""
    try:
        return read()
    except HeteroTuiError as error:
        output.complain(f"hetero-tui: {error}")
        raise typer.Exit(error.exit_code) from None


@dataclass(frozen=True, kw_only=True)
class Call:
    """What all commands are called with: the inventory's ``path``, and whether keys of new hosts are accepted."""

    path: Path
    output: Output
    accept: bool

    @contextlib.asynccontextmanager
    async def session(
        self,
        *,
        narrate: bool = True,
        record: bool = False,
        watch: bool = False,
        stays: bool = False,
        needs_hosts: bool = True,
    ) -> AsyncIterator[Session]:
        """Read the inventory and open a session; it tells what it does (``narrate``), and is written down (``record``).

        The hosts' use is followed meanwhile where it is recorded, or with ``watch``. With ``stays`` also what other
        terminals start later, and hosts that did not answer are tried again, as in the app; it only looks: a run whose
        head or coordinator is lost is let go on by an app or `attach`, not by it. Without ``needs_hosts`` an inventory
        without hosts will do: something may run on those that it had before.

        Raises:
            HeteroTuiError: the inventory has mistakes, or no hosts.
        """
        from hetero_tui.app_session import AppSession
        from hetero_tui.inventory.file import load
        from hetero_tui.session import Session

        inventory, watches = load(self.path), record or watch or stays
        if not inventory.hosts:
            nothing = UsageError(f"{self.path} names no hosts yet", hint="`hetero-tui add me@HOST` adds one")
            if needs_hosts:
                raise nothing
            self.output.error(nothing)
        kind = AppSession if stays else Session
        session = kind(inventory, self.path, accept_new_host_keys=self.accept, log_errors=False, watches=watches)
        if isinstance(session, AppSession):
            session.only_show()
        async with session:
            if narrate:
                session.subscribe(Narrator(self.output))
            if record:
                session.record()
            async with saying(self.output, lambda: waiting_for(session.state) if narrate else ""):
                yield session


class _Command(typer.core.TyperCommand):
    """A command that says what became of a flag that was removed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for word in args:
            if reason := why_removed(f"{self.name} {word.partition('=')[0]}"):
                raise typer.BadParameter(reason)
        return super().parse_args(ctx, args)


def _shared(context: typer.Context, as_json: Json = False, plain: Plain = False, accept: AcceptKeys = False) -> None:
    """The parameters that commands share."""


def command(
    commands: typer.Typer,
    *,
    options: Collection[str] = ("as_json", "plain", "accept"),
    interrupted: str = RUNS_GO_ON,
    **settings: Any,
) -> Callable[[Callable[Concatenate[Call, Output, P], Coroutine[Any, Any, int]]], Callable[..., None]]:
    """Make a command of a function, which returns its exit code; an error becomes one line, with its own exit code.

    The function is called with a :class:`Call` and where it prints; what follows are the command's own parameters.

    Args:
        commands: gets the command, under the function's name.
        options: those of :func:`_shared` that it has beside its own.
        interrupted: what a signal's end is told with.
        settings: Typer's.
    """

    def made(work: Callable[Concatenate[Call, Output, P], Coroutine[Any, Any, int]]) -> Callable[..., None]:
        def called(
            context: typer.Context,
            as_json: bool = False,
            plain: bool = "plain" not in options,  # it prints another program's words
            accept: bool = False,
            **own: Any,
        ) -> None:
            output = Output(as_json, plain)
            call = Call(path=context.obj, output=output, accept=accept)
            done: Callable[..., Coroutine[Any, Any, int]] = work
            raise typer.Exit(run_to_end(lambda: done(call, output, **own), output.complain, interrupted=interrupted))

        shared = inspect.signature(_shared, eval_str=True).parameters
        own = list(inspect.signature(work, eval_str=True).parameters.values())[2:]
        parameters = [shared["context"], *own, *(shared[name] for name in options)]
        signature = inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters])
        called.__signature__ = signature  # type: ignore[attr-defined]  # typing knows no such thing
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        called.__name__, called.__doc__ = work.__name__, work.__doc__
        return commands.command(cls=_Command, **settings)(called)

    return made
