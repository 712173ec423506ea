"""Following a run over real SSH: every event once and in order, whatever happens to the connection."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing

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
BIG = 200
"""Events that are more together than what is on its way over a connection at any time."""

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


async def test_a_history_that_breaks_off_is_read_again_with_few_of_its_steps_and_what_is_new_is_read_whole(
    machines: EmbeddedMachines,
) -> None:
    transport = link_to(machines)
    machine = machines.machines[0]
    seen: list[int] = []
    histories: list[protocol.History] = []

    def step(number: int) -> str:
        event = protocol.Step(
            seq=BIG + number, time=1.0, step=number, loss=1.0, samples=1, seconds=1.0, bytes_pushed=0, bytes_pulled=0
        )
        return f"{protocol.encode(event)}\n"

    def big(seq: int) -> str:
        event = protocol.CheckpointSaved(seq=seq, time=1.0, step=0, path="x" * 40_000, host="h")
        return f"{protocol.encode(event)}\n"

    try:
        await start_writer(transport, 1, last_word=False, rests=(1,))
        path = machine.home / f".hetero-tui/{CLUSTER}/runs/r/events.jsonl"
        async with asyncio.timeout(deadlines.RUN_START + 30):
            while not (path.exists() and path.read_bytes()):
                await asyncio.sleep(0.01)
            path.write_text("".join((*map(big, range(1, BIG + 1)), *map(step, range(1, 301)))))
            coming = follow(transport, CLUSTER, "r", most_steps=10, on_history=histories.append)
            async with aclosing(coming):
                async for _, event in coming:
                    seen.append(event.seq)
                    if event.seq == 2:
                        await machines.unplug(machine.name)
                        with path.open("a") as file:
                            file.writelines(map(step, range(301, 601)))
                        await machines.plug_in(machine.name)
                    elif event.seq == BIG + 600:
                        end = protocol.RunFailed(seq=BIG + 602, time=2.0, step=601, host="h", cause="the end")
                        with path.open("a") as file:
                            file.write(f"{step(601)}{protocol.encode(end)}\n")
    finally:
        await transport.close()
    assert [history.step for history in histories] == [300, 600]
    steps = [seq - BIG for seq in seen if seq > BIG]
    assert seen[:BIG] == [*range(1, BIG + 1)]
    assert steps == [*range(1, 551, 60), *range(551, 603)]


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
