"""Follows a run to its end, wherever it has to go: what the laptop does while it is attached.

A run ends before its time in two ways that the fleet can't mend by itself. Its head host is lost: the cluster is formed
anew on the others, and the run goes on there. Its coordinator is killed while its host lives: it is started again. The
events go on in both cases, with the next number. And a host that was switched off and on again has nothing running that
would bring it back: it is looked after as long as the run does without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Protocol

from hetero_tui import events
from hetero_tui.errors import CoordinatorGone, HeadGone, NoCopy, RunError
from hetero_tui.events import Emit, Level
from hetero_tui.runs.follow import STEP, follow
from hetero_tui.runs.listing import refuse_if_stopped, way_on
from hetero_tui.runs.watching import Seen, head_loss, until_lost
from hetero_tui.text import HostText
from hetero_tui.transport import Transport
from remote_agent import protocol


class Recovery(Protocol):
    """What can be done for a run that ended before its time. Each answers with the host that it goes on on."""

    async def fail_over(self, run: str, head: str, cause: str, seen: Seen) -> str:
        """Form the cluster anew without ``head``, and let the run go on there."""

    async def restart(self, run: str, cause: str) -> str:
        """Start the run's coordinator again: on the head as it is, or on a new one where the head's Ray has ended."""

    def look_after(self, hosts: frozenset[str]) -> None:
        """The run does without workers on these hosts: take each into the cluster again that does not come by itself.

        Returns at once; what it says replaces what it said before.
        """


class NoRecovery:
    """The :class:`Recovery` for a run that had ended before it was looked at: nothing starts it again unasked."""

    def __init__(self, summary: protocol.RunSummary) -> None:
        self._summary = summary

    async def fail_over(self, run: str, head: str, cause: str, seen: Seen) -> str:
        """Refuse."""
        raise RunError(f"{head}, which has the events of {run}, is lost: {cause}", step=STEP)

    async def restart(self, run: str, cause: str) -> str:
        """Refuse."""
        refuse_if_stopped(run, (self._summary,))
        hint = f"`hetero-tui logs {run}` shows what it logged; {way_on(run, (self._summary,))}"
        raise RunError(cause, step=STEP, hint=hint)

    def look_after(self, hosts: frozenset[str]) -> None:
        """A run that has ended does without all hosts."""


async def attend(
    cluster: str,
    transports: Mapping[str, Transport],
    run: str,
    head: str,
    emit: Emit,
    recovery: Recovery,
    most_steps: int | None = None,
) -> AsyncGenerator[tuple[HostText, protocol.Event]]:
    """Yield (line as written, event) of a run from seq 1 to its last event; each is also emitted.

    ``most_steps``: of the steps that it has made before, about so many; None: all.

    Raises:
        RunError: there is no such run, or it can't go on.
        HeteroTuiError: what ``recovery`` raised.
    """

    def notice(level: Level, text: str) -> None:
        emit(events.Notice(level=level, text=text))

    broken = False

    def lost(cause: str) -> None:
        nonlocal broken
        if not broken:
            notice(Level.WARNING, f"the events of {run} can't be read: {cause}; reading goes on once {head} answers")
        broken = True

    missed = _Missed(recovery)

    def told(history: protocol.History) -> None:
        missed.from_number = history.history
        emit(events.RunBehind(run=run, seq=history.history, step=history.step))

    seen, shown, restarted_at = Seen(), 0, -1
    movable, compares = True, False
    while True:
        loss = asyncio.create_task(head_loss(cluster, transports, head) if movable else _never())
        lines = follow(
            transports[head],
            cluster,
            run,
            lost,
            after=0 if compares else shown,
            most_steps=most_steps,
            on_history=told,
        )
        try:
            async with aclosing(until_lost(lines, loss)) as coming:
                async for line, event in coming:
                    if broken:
                        broken = False
                        notice(Level.GOOD, f"the events of {run} are read again")
                    if compares and event.seq <= shown:
                        if seen.same(line, event.seq):
                            continue
                        # Another laptop let the run go on, and had not seen yet what this one had.
                        seen.cut(event.seq - 1)
                        emit(events.RunRewound(run=run, seq=event.seq - 1))
                    compares = False
                    shown = event.seq
                    seen.add(line, event.seq)
                    emit(events.RunProgressed(run=run, event=event))
                    missed.after(event)
                    yield line, event
        except HeadGone as gone:
            broken = False
            try:
                head = await recovery.fail_over(run, head, gone.cause, seen)
                compares = seen.last == shown
            except NoCopy as none:
                movable = False
                notice(Level.BAD, f"{none.cause}: {none.hint}")
        except CoordinatorGone as gone:
            if shown == restarted_at:
                raise  # it was started again and did nothing: a third time would be no better
            restarted_at = shown
            head = await recovery.restart(run, gone.cause)
        else:
            return
        finally:
            loss.cancel()
            with suppress(asyncio.CancelledError):
                await loss


class _Missed:
    """Has the hosts looked after that a run does without; in its history they were lost then, and not now."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._away: frozenset[str] = frozenset()
        self._looked_after: frozenset[str] = frozenset()
        self.from_number = 0

    def after(self, event: protocol.Event) -> None:
        """One more of the run's events has come."""
        self._away = doing_without(self._away, event)
        if event.seq >= self.from_number and self._away != self._looked_after:
            self._looked_after = self._away
            self._recovery.look_after(self._away)


def doing_without(hosts: frozenset[str], event: protocol.Event) -> frozenset[str]:
    """The hosts that a run does without, after one more of its events; none is missed once it is over. Pure."""
    if event.kind in protocol.FINAL_KINDS:
        return frozenset()
    match event:
        case protocol.WorkerLost():
            return hosts | {event.host}
        case protocol.WorkerJoined():
            return hosts - {event.host}
    return hosts


async def _never() -> str:
    await asyncio.Event().wait()
    raise AssertionError
