"""Following a run over real SSH: every event once and in order, whatever happens to the connection."""

import asyncio
import sys
from collections.abc import Sequence

import pytest

from hetero_tui import deadlines
from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import RunError
from hetero_tui.fleet import agent
from hetero_tui.inventory.file import load
from hetero_tui.runs.follow import follow
from hetero_tui.transport import Transport, open_transport
from remote_agent import protocol

EVENTS, BREAKS = 60, (10, 30)

CLUSTER = "followed"

WRITER = """
import os, sys, time
from remote_agent import protocol
count, last = int(sys.argv[1]), sys.argv[2] == "yes"
with open("runs/r/events.jsonl", "a") as file:
    for seq in range(1, count + 1):
        event = protocol.CheckpointSaved(seq=seq, time=time.time(), step=seq, path="x" * 200, host="h")
        file.write(protocol.encode(event) + "\\n")
        file.flush()
        while seq in map(int, sys.argv[3:]) and not os.path.exists(f"runs/r/go-on-{seq}"):
            if not os.path.exists(sys.argv[0]):
                sys.exit()
            time.sleep(0.01)
    if last:
        event = protocol.RunFailed(seq=count + 1, time=time.time(), step=count, host="h", cause="the end")
        file.write(protocol.encode(event) + "\\n")
"""


async def start_writer(transport: Transport, events: int, *, last_word: bool, rests: Sequence[int] = ()) -> None:
    """A stand-in for a coordinator: a recorded process that writes events, on the host.

    It rests after those of the numbers ``rests`` until there is a file ``go-on-NUMBER`` beside the events, or its
    machine is gone.
    """
    await agent.ship(transport, CLUSTER, sys.executable)
    await transport.put(WRITER.encode(), f"{agent.folder(CLUSTER)}/runs/r/writer.py", step="test", deadline=20)
    home = agent.home_folder(CLUSTER)
    done = await agent.call(
        transport,
        CLUSTER,
        "host.processes",
        "launch",
        *("--folder", home, "--name", protocol.run_process_name("r"), "--log", f"{home}/log", "--"),
        *(sys.executable, "runs/r/writer.py", str(events), "yes" if last_word else "no", *map(str, rests)),
        step="test",
    )
    assert done is not None
    assert done.exit_status == 0, done.stderr


def link_to(machines: EmbeddedMachines) -> Transport:
    inventory = load(machines.write_inventory())
    return open_transport(inventory.hosts[0], inventory)


async def collect(transport: Transport, run: str, seen: list[int]) -> None:
    async with asyncio.timeout(deadlines.RUN_START + 30):
        async for _, event in follow(transport, CLUSTER, run):
            seen.append(event.seq)


async def test_a_connection_that_breaks_twice_loses_no_event_and_doubles_none(machines: EmbeddedMachines) -> None:
    transport = link_to(machines)
    machine = machines.machines[0]
    breaks: list[str] = []
    seen: list[int] = []
    try:
        await start_writer(transport, EVENTS, last_word=True, rests=BREAKS)
        async with asyncio.timeout(deadlines.RUN_START + 30):
            async for line, event in follow(transport, CLUSTER, "r", breaks.append):
                assert protocol.decode_event(line.raw) == event
                seen.append(event.seq)
                if event.seq in BREAKS:
                    await machines.unplug(machine.name)
                    await machines.plug_in(machine.name)
                    (machine.home / f".hetero-tui/{CLUSTER}/runs/r/go-on-{event.seq}").touch()
    finally:
        await transport.close()
    assert seen == list(range(1, EVENTS + 2))
    assert len(breaks) >= len(BREAKS)


async def test_a_coordinator_that_dies_without_a_last_word_is_said_to_be_gone(machines: EmbeddedMachines) -> None:
    transport = link_to(machines)
    seen: list[int] = []
    try:
        await start_writer(transport, 3, last_word=False)
        with pytest.raises(RunError, match="without a last word"):
            await collect(transport, "r", seen)
    finally:
        await transport.close()
    assert seen == [1, 2, 3]


async def test_a_run_that_does_not_exist_is_a_clear_error_and_not_a_wait_without_end(
    machines: EmbeddedMachines,
) -> None:
    transport = link_to(machines)
    try:
        await agent.ship(transport, CLUSTER, sys.executable)
        with pytest.raises(RunError, match="nosuch"):
            await collect(transport, "nosuch", [])
    finally:
        await transport.close()
