"""Follow a run's events over SSH, from the first, across broken connections, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from hetero_tui import answers, deadlines
from hetero_tui.errors import CommandFailed, CoordinatorGone, HostKeyChanged, HostKeyUnknown, RunError, Unreachable
from hetero_tui.fleet import agent
from hetero_tui.text import HostText
from hetero_tui.transport import Transport
from remote_agent import protocol

STEP = "follow"
MAX_BAD_LINES = 20
"""So many lines in a row that are no events, and it is not our file that is being read."""

_HISTORY = '{"history":'


class _Place:
    """Where in the file the reading is: a stream that breaks goes on there, or with the whole history once more."""

    def __init__(self, most_steps: int | None, on_history: Callable[[protocol.History], None]) -> None:
        self._most_steps, self._offset = most_steps, 0
        self._on_history = on_history
        self._is_history = False

    def arguments(self) -> tuple[str, ...]:
        """What :mod:`remote_agent.follow` is told, of a stream that begins."""
        self._is_history = False
        few = () if self._most_steps is None else ("--most-steps", str(self._most_steps))
        return ("--offset", str(self._offset), *few)

    def takes(self, line: HostText) -> bool:
        """Whether the line stands before or after the history; raises ProtocolError if it does not fit."""
        if not line.raw.startswith(_HISTORY):
            return False
        said = answers.value(protocol.History, line)
        if self._is_history:
            self._offset, self._most_steps = said.size, None
        self._is_history = self._most_steps is not None
        if self._is_history:
            self._on_history(said)
        return True

    def add(self, size: int) -> None:
        """So many bytes were read, unless it was of a history with gaps."""
        if not self._is_history:
            self._offset, self._most_steps = self._offset + size, None


async def follow(
    transport: Transport,
    cluster: str,
    run: str,
    on_break: Callable[[str], None] = lambda _: None,
    *,
    after: int = 0,
    most_steps: int | None = None,
    on_history: Callable[[protocol.History], None] = lambda _: None,
) -> AsyncGenerator[tuple[HostText, protocol.Event]]:
    """Yield (line as written, event) from seq 1 to the run's last event; ends after that one.

    A broken connection is opened again with growing pauses and the file read on from where it was: nothing is lost and
    nothing comes twice. ``on_break`` is told why, each time. Kinds that this version does not know are skipped, and so
    are events up to seq ``after``, which were seen before the run went on elsewhere.

    ``most_steps``: of the steps that are there already, about so many, evenly spread, and the last ones; None: all.
    ``on_history`` is told then how far the run has come, before the first of its events.

    Raises:
        RunError: the run does not exist.
        CoordinatorGone: its coordinator is gone without a last event.
        HostKeyChanged, HostKeyUnknown: the host is not the one it was.
    """
    folder = agent.home_folder(cluster)
    place, last_seq, pauses = _Place(most_steps, on_history), after, deadlines.reconnect_pauses()
    while True:
        try:
            await transport.connect()
            async with agent.follow(
                transport,
                cluster,
                "follow",
                f"{folder}/runs/{run}/events.jsonl",
                *("--process-folder", folder),
                *("--process-name", protocol.run_process_name(run)),
                *place.arguments(),
                step=STEP,
            ) as lines:
                bad, damaged = 0, 0
                async for line in lines:
                    pauses = deadlines.reconnect_pauses()
                    if not line.raw:
                        continue  # a heartbeat
                    try:
                        if place.takes(line):
                            continue
                        event = answers.event(line)
                    except protocol.ProtocolError:
                        bad += 1
                        if bad > MAX_BAD_LINES:
                            raise RunError(f"the events of {run} can't be read", step=STEP) from None
                        # A damaged line of the file, unless it is a shell's banner, or cut short by a broken stream:
                        # it is passed over only once something whole came after it.
                        damaged += len(line.raw.encode()) + 1 if line.raw.startswith("{") else 0
                        continue
                    bad = 0
                    place.add(damaged + len(line.raw.encode()) + 1)
                    damaged = 0
                    if event is None or event.seq <= last_seq:
                        continue
                    last_seq = event.seq
                    yield line, event
                    if event.kind in protocol.FINAL_KINDS:
                        return
            why = "the stream ended early"
        except CommandFailed as error:
            if error.exit_status == protocol.FOLLOW_PROCESS_GONE:
                raise CoordinatorGone(
                    f"{run} ended without a last word: its coordinator on {transport.host} is gone",
                    step=STEP,
                    hint=f"`hetero-tui logs {run}` shows what it logged",
                ) from None
            if error.exit_status in (protocol.FOLLOW_NO_FILE, agent.NOT_THERE):
                raise RunError(
                    f"{transport.host} has no events of {run}", step=STEP, hint="`hetero-tui status` lists the runs"
                ) from None
            if error.exit_status == protocol.FOLLOW_FILE_SHORTER:
                raise RunError(
                    f"the events of {run} on {transport.host} are not the file that they were", step=STEP
                ) from None
            why = error.cause
        except (HostKeyChanged, HostKeyUnknown):
            raise
        except Unreachable as error:
            why = error.cause
        on_break(why)
        await asyncio.sleep(next(pauses))


STEP = "read events"


async def history(
    transport: Transport, cluster: str, run: str, most_steps: int | None = None
) -> AsyncGenerator[protocol.Event]:
    """Yield them. Lines that can't be read and kinds that this version does not know are left out.

    ``most_steps``: of its steps about so many, evenly spread, and the last ones; None: all.

    Raises:
        RunError: the host has none.
        HostError: it can't be asked.
    """
    path = f"{agent.home_folder(cluster)}/runs/{run}/events.jsonl"
    found = False
    few = () if most_steps is None else ("--most-steps", str(most_steps))
    try:
        async with agent.follow(transport, cluster, "follow", path, "--once", *few, step=STEP) as lines:
            async for line in lines:
                if not line.raw.startswith("{"):
                    continue  # a shell's banner
                try:
                    event = answers.event(line)
                except protocol.ProtocolError:
                    continue
                if event is not None:
                    found = True
                    yield event
    except CommandFailed as error:
        if error.exit_status != agent.NOT_THERE:
            raise
    if not found:
        raise RunError(f"{transport.host} has no events of {run}", step=STEP, hint="`hetero-tui runs` lists the runs")
