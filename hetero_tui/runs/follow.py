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


async def follow(
    transport: Transport, cluster: str, run: str, on_break: Callable[[str], None] | None = None, *, after: int = 0
) -> AsyncGenerator[tuple[HostText, protocol.Event]]:
    """Yield (line as written, event) from seq 1 to the run's last event; ends after that one.

    A broken connection is opened again with growing pauses and the file read on from where it was: nothing is lost and
    nothing comes twice. ``on_break`` is told why, each time. Kinds that this version does not know are skipped, and so
    are events up to seq ``after``, which were seen before the run went on elsewhere.

    Raises:
        RunError: the run does not exist.
        CoordinatorGone: its coordinator is gone without a last event.
        HostKeyChanged, HostKeyUnknown: the host is not the one it was.
    """
    folder = agent.home_folder(cluster)
    offset, last_seq, pauses = 0, after, deadlines.reconnect_pauses()
    while True:
        try:
            await transport.connect()
            async with agent.follow(
                transport,
                cluster,
                "follow",
                f"{folder}/runs/{run}/events.jsonl",
                *("--offset", str(offset)),
                *("--process-folder", folder),
                *("--process-name", protocol.run_process_name(run)),
                step=STEP,
            ) as lines:
                bad, damaged = 0, 0
                async for line in lines:
                    pauses = deadlines.reconnect_pauses()
                    if not line.raw:
                        continue  # a heartbeat
                    try:
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
                    offset += damaged + len(line.raw.encode()) + 1
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
        if on_break is not None:
            on_break(why)
        await asyncio.sleep(next(pauses))
