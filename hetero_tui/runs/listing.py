"""Lists the runs on all hosts, and stops one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from hetero_tui import deadlines
from hetero_tui.errors import CommandFailed, HostError, RunError, RunStopped, UsageError
from hetero_tui.fleet import agent
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.kinds import nearest
from remote_agent.states import RunState

START = "`hetero-tui train digits` starts one; after `down --purge`, `up` lists the runs that were kept"
"""What to do where a run is asked for, and none is known."""

START_ANEW = "start it anew with `hetero-tui train`"
"""What to do about a run that has no checkpoint."""


def ignore(_: HostError) -> None:
    """Say nothing of a host that fails."""


async def list_runs(
    cluster: str, transports: Mapping[str, Transport], failed: Callable[[HostError], None] = ignore
) -> tuple[tuple[str, protocol.RunSummary], ...]:
    """Pairs of host and run, oldest first; ``failed`` is told of each host that can't say what runs it has.

    A run that several hosts have a folder of comes once, as the host tells it that knows best (:func:`told_best`).
    """
    return told_best(await list_copies(cluster, transports, failed))


def told_best(found: Iterable[tuple[str, protocol.RunSummary]]) -> tuple[tuple[str, protocol.RunSummary], ...]:
    """Each run once, by the host that knows best, oldest first.

    That is the one in the newest cluster where the run lives, else its own head's, else the copy with most events.
    """

    def knowledge(entry: tuple[str, protocol.RunSummary]) -> tuple[int, bool, bool, int]:
        host, summary = entry
        return (summary.epoch, not summary.state.final, host == summary.host, summary.seq)

    best: dict[str, tuple[str, protocol.RunSummary]] = {}
    for entry in found:
        known = best.get(entry[1].id)
        if known is None or knowledge(entry) > knowledge(known):
            best[entry[1].id] = entry
    return tuple(sorted(best.values(), key=lambda entry: _age(entry[1])))


def _age(summary: protocol.RunSummary) -> float:
    """By which runs are sorted: one that is starting is the newest, one that ended without any event the oldest."""
    if summary.started is not None:
        return summary.started
    return 0.0 if summary.state.final else float("inf")


async def list_copies(
    cluster: str, transports: Mapping[str, Transport], failed: Callable[[HostError], None] = ignore
) -> tuple[tuple[str, protocol.RunSummary], ...]:
    """Pairs of host and run for every folder of a run on every host that answers, copies included."""

    async def of_host(transport: Transport) -> tuple[tuple[str, protocol.RunSummary], ...]:
        try:
            done = await agent.call(
                transport, cluster, "runs", "--folder", agent.home_folder(cluster), step="list runs"
            )
            if done is None:
                return ()
            found = agent.answer(protocol.RunList, transport.host, done, step="list runs")
        except HostError as error:
            failed(error)
            return ()
        return tuple((transport.host, run) for run in found.runs)

    answers = await asyncio.gather(*(of_host(transport) for transport in transports.values()))
    return tuple(entry for answer in answers for entry in answer)


async def find_run(
    cluster: str, transports: Mapping[str, Transport], run: str | None
) -> tuple[str, protocol.RunSummary]:
    """The run of that name (None: the newest) and the host that holds it.

    Raises:
        RunError: there is no such run; the error names those that there are, and the hosts that could not be asked.
    """
    failed: list[HostError] = []
    return find_among(await list_runs(cluster, transports, failed.append), run, failed)


def find_among(
    found: tuple[tuple[str, protocol.RunSummary], ...], run: str | None, failed: Sequence[HostError] = ()
) -> tuple[str, protocol.RunSummary]:
    """As :func:`find_run`, among runs that are known; ``failed`` are of hosts that could not be asked."""
    if run is None and found:
        return found[-1]
    for host, summary in found:
        if summary.id == run:
            return host, summary
    known = [summary.id for _, summary in found]
    cause = "no run on any host that answers" if run is None else f"no run {run!r} on the hosts that answer"
    if run is not None and (close := nearest(run, known)):
        cause += f"; did you mean {close!r}?"
    cause, hint = with_silent(cause, f"runs: {', '.join(known)}" if known else START, failed)
    raise RunError(cause, hint=hint)


def with_silent(cause: str, hint: str, failed: Sequence[HostError]) -> tuple[str, str]:
    """What was not found, and what to do, with the hosts that could not be asked: it may be there."""
    if failed:
        cause += f"; not asked: {', '.join(f'{error.host} ({error.cause})' for error in failed)}"
        hint = "; ".join(dict.fromkeys((*(error.hint for error in failed if error.hint), hint)))
    return cause, hint


def refuse_if_stopped(run: str, known: Iterable[protocol.RunSummary]) -> None:
    """Raise RunStopped if a user ended a run that has no last word; ``known``: as its hosts tell it."""
    known = tuple(known)
    newest = max(known, key=lambda summary: (summary.epoch, summary.seq), default=None)
    if newest is not None and newest.state is RunState.STOPPED:
        raise RunStopped(f"{run} was stopped before it could go on", step="follow", hint=way_on(run, known))


def way_on(run: str, known: Iterable[protocol.RunSummary], how: str = "lets it go on") -> str:
    """What a user can do about a run that has ended; before its first checkpoint there is nothing to go on from."""
    if any(summary.checkpoint is not None for summary in known):
        return f"`hetero-tui resume {run}` {how}"
    return START_ANEW


def find_to_stop(
    found: tuple[tuple[str, protocol.RunSummary], ...], run: str | None, failed: Sequence[HostError] = ()
) -> tuple[str, protocol.RunSummary]:
    """The run of that name, or the only one under way (None), be it a sweep or a script, and the host that holds it.

    One that is lost can be ended too, as another laptop may be about to let it go on.

    Raises:
        UsageError: several are under way: a user has to say which.
        RunError: none is under way, or it is over.
    """
    live = [entry for entry in found if not entry[1].state.final]
    if run is None and len(live) > 1:
        names = " and ".join(entry[1].id for entry in live)
        raise UsageError(f"{names} are under way", step="stop run", hint="name the one to stop")
    host, summary = live[0] if run is None and live else find_among(found, run, failed)
    if summary.state.final and summary.state is not RunState.LOST:
        others = f"under way: {', '.join(entry[1].id for entry in live)}" if live else "no run is under way"
        cause, hint = with_silent(f"{summary.id} is {summary.state} already", others, failed)
        raise RunError(cause, step="stop run", hint=hint)
    return host, summary


async def live_runs(
    cluster: str, transports: Mapping[str, Transport], failed: Callable[[HostError], None] = ignore
) -> tuple[tuple[str, protocol.RunSummary], ...]:
    """The training runs that are under way, oldest first, each with the host where it is. Scripts are not meant."""
    runs = await list_runs(cluster, transports, failed)
    return tuple(entry for entry in runs if not (entry[1].state.final or entry[1].script))


async def live_run(
    cluster: str, transports: Mapping[str, Transport], failed: Callable[[HostError], None] = ignore
) -> tuple[str, protocol.RunSummary] | None:
    """The newest training run that is under way, and the host where it is; None: none is. Scripts are not meant."""
    return next(reversed(await live_runs(cluster, transports, failed)), None)


def beside(found: Sequence[tuple[str, protocol.RunSummary]]) -> str:
    """What to know before a run starts beside those that are under way; "": there is none."""
    live = [summary.id for _, summary in found if not summary.state.final]
    if not live:
        return ""
    are, end = (
        ("is", f"`hetero-tui stop {live[0]}` ends it") if len(live) == 1 else ("are", "`hetero-tui stop RUN` ends one")
    )
    return f"{' and '.join(live)} {are} under way on these machines, too: each run makes the others slower -> {end}"


async def end_lost(cluster: str, transports: Mapping[str, Transport], run: str) -> None:
    """Note on all hosts that answer that a lost run was ended, so that no laptop lets it go on.

    Raises:
        CommandFailed: a host could not note it.
    """

    async def on_host(transport: Transport) -> None:
        folder = agent.home_folder(cluster)
        try:
            done = await agent.call(transport, cluster, "runs", "--folder", folder, "--end", run, step="stop run")
        except HostError as error:
            if isinstance(error, CommandFailed):
                raise
            return  # it does not answer, and holds nothing that a run could go on from now
        if done is not None and done.exit_status != 0:
            cause = f"the end of {run} could not be noted: {last_lines(done.stderr, 1)}"
            raise CommandFailed(transport.host, cause, step="stop run")

    await asyncio.gather(*(on_host(transport) for transport in transports.values()))


async def stop_run(cluster: str, transport: Transport, run: str) -> None:
    """Let a run finish its step, save a checkpoint and end; after the deadline it is ended by force.

    Raises:
        CommandFailed: it could not be ended.
    """
    done = await agent.call(
        transport,
        cluster,
        "host.processes",
        "stop",
        *("--folder", agent.home_folder(cluster)),
        *("--name", protocol.run_process_name(run)),
        *("--grace", f"{deadlines.RUN_STOP:g}"),
        step="stop run",
        deadline=deadlines.RUN_STOP + deadlines.COMMAND,
    )
    if done is None or done.exit_status != 0:
        detail = "no agent there" if done is None else last_lines(done.stderr, 1) or "it did not end"
        raise CommandFailed(transport.host, f"{run} could not be stopped: {detail}", step="stop run")
