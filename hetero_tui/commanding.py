"""What the commands have in common: a session to work in, a run to follow, questions, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from hetero_tui.errors import HeteroTuiError, HostError, HostKeyUnknown
from hetero_tui.launcher import DONE, FAILED, LEFT_BEHIND, PARTLY, run_to_end
from hetero_tui.narration import Narrator, Output, StepPrinter

if TYPE_CHECKING:  # asyncssh takes a while to import: `--help` does without
    from hetero_tui.intents import TeardownReport
    from hetero_tui.session import Session


T = TypeVar("T")


async def probe(session: Session, output: Output) -> None:
    """Probe; at a terminal, ask about keys that were never seen, and probe once more with those that are trusted."""
    await session.probe()
    trusted = False
    for entry in session.probed:
        if isinstance(entry.error, HostKeyUnknown) and not output.as_json and not output.plain:
            question = f"{entry.host} was never seen; its key is {entry.error.fingerprint}. Trust it?"
            if asks(question):
                session.accept_host_key(entry.host)
                trusted = True
    if trusted:
        await session.probe()


async def follow(session: Session, output: Output, run: str | None, *, demo: bool = False) -> int:
    """Print a run's events until its last one; the exit code says how it ended. A ``demo`` leaves no checkpoint."""
    from hetero_tui import answers
    from remote_agent import protocol

    printer = StepPrinter(output, demo=demo)
    last: protocol.Event | None = None
    async for line, event in session.events_of(run):
        if output.as_json:
            print(answers.json_line(line), flush=True)
        else:
            printer(event)
        last = event
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

    printed = set[str]()
    async for entry in session.logs_of(run, host, follow=follow, failed=fail):
        if worker in ("", entry.line.process, f"{entry.host}/{entry.line.process}", entry.host):
            # There may be a hundred thousand: no console is made for each.
            print(reports.log_json(entry) if output.as_json else reports.log_line(entry), flush=follow)
            printed.add(entry.host)
    return exit_code(done=list(printed), failed=failed)


def report_leftovers(output: Output, report: TeardownReport, clean: str) -> int:
    """Say what a teardown left behind, or ``clean`` when it left nothing; the exit code that follows from it."""
    for left in report.leftovers:
        output.complain(f"{left.host}: left behind: {left.kind} {left.detail}")
    if not report.leftovers and not output.as_json:
        output.data(clean)
    return LEFT_BEHIND if report.leftovers else DONE


def exit_code(*, done: Sequence[object], failed: Sequence[object]) -> int:
    """All is done, a part of it, or nothing."""
    if not failed:
        return DONE
    return PARTLY if done else FAILED


def asks(question: str) -> bool:
    """The user's answer; no at anything that is not a terminal, which is never asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def checked(output: Output, read: Callable[[], T]) -> T:
    """What the user's words mean, before anything is opened; mistakes end the command with their exit code."""
    try:
        return read()
    except HeteroTuiError as error:
        output.complain(f"hetero-tui: {error}")
        raise typer.Exit(error.exit_code) from None


def in_session(
    context: typer.Context,
    output: Output,
    accept: bool,
    work: Callable[[Session, Output], Coroutine[Any, Any, int]],
    *,
    narrate: bool = True,
) -> None:
    """Read the inventory, open a session, do the work, close, and end with its exit code."""

    async def whole() -> int:
        from hetero_tui.inventory.file import load
        from hetero_tui.session import Session

        path: Path = context.obj
        inventory = load(path)
        async with Session(inventory, path, accept_new_host_keys=accept, log_errors=False) as session:
            if narrate:
                session.subscribe(Narrator(output))
            return await work(session, output)

    raise typer.Exit(run_to_end(whole, output.complain))
