"""How quick the app is while a fleet and a run keep it busy.

``python -m benchmarks.ui [--hosts 64] [--rate 20] [--events 20000] [--seconds 30] [--record 300000]``

The app on a pseudo-terminal of 120x40 cells, in a process of its own. Its session is fed by a loop instead of a
network: ``--hosts`` hosts that say their use twice a second, and a run of ``--rate`` steps a second, after ``--events``
steps that come as fast as they are folded, as when an app attaches to a run that has gone on for long. Measured are the
time to the first picture, the time from a key press until the view that it asks for is on the terminal, the app's
resident memory, and its share of a core. Then the time from the start of a session until it has caught up with a run
under way that has made ``--record`` steps, over SSH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import select
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil

from hetero_tui import events
from hetero_tui.errors import UsageError
from hetero_tui.events import ClusterState, HostState
from hetero_tui.intents import Refusing
from hetero_tui.keeper import Keeper
from hetero_tui.state import initial
from remote_agent import protocol
from remote_agent.states import RayState, RunState

RUN = "busy-1"
COLUMNS, LINES = 120, 40
ANSWER_S = 20.0
"""Longest wait for something on the terminal."""

OPENING_S = 120.0
"""Longest time to catch up with a long run."""

FIRST = b"Hosts"
BUSY = 0.5
"""Share of a core from which the app is still with the steps that came at once."""

VIEWS = ((b"4", b"Faults of"), (b"1", b"Hosts"))
"""Keys, and what stands on the terminal once their views are drawn."""

SAMPLES_PER_S = 2
WORKERS = 8
BURST = 20
"""Steps that are folded before the app has its turn again."""


def names(hosts: int) -> tuple[str, ...]:
    """The hosts' names."""
    return tuple(f"host-{number:02}" for number in range(hosts))


def step(number: int, now: float) -> protocol.Step:
    """The event of one step."""
    workers = tuple(
        protocol.WorkerStep(
            worker=f"{name}/cpu",
            host=name,
            device="cpu",
            samples=32,
            compute_s=0.03,
            push_s=0.01,
            pull_s=0.005,
            wait_s=0.005,
        )
        for name in names(WORKERS)
    )
    return protocol.Step(
        seq=number + 2,
        time=now,
        step=number,
        loss=2.0 / (1 + number / 1000),
        samples=256,
        seconds=0.05,
        bytes_pushed=1_000_000,
        bytes_pulled=1_000_000,
        workers=workers,
    )


def start(now: float, iterations: int) -> tuple[protocol.Event, ...]:
    """The first events of the run."""
    shares = tuple(
        protocol.Share(worker=f"{name}/cpu", host=name, device="cpu", samples=32, speed=1000.0)
        for name in names(WORKERS)
    )
    return (
        protocol.RunStarted(
            seq=1, time=now, run=RUN, job="busy", host="host-00", iterations=iterations, batch_size=256, parameters=10
        ),
        protocol.PlanMade(seq=2, time=now, strategy="sync", shares=shares),
    )


class Busy(Keeper, Refusing):
    """A session that is fed by itself; nothing can be asked of it."""

    def __init__(self, hosts: int, rate: float, before: int) -> None:
        super().__init__(initial("bench", tuple((name, "") for name in names(hosts))), log_errors=False)
        self.jobs: tuple[str, ...] = ()
        self.inventory_path = ""
        self._hosts, self._rate, self._before = names(hosts), rate, before

    async def feed(self) -> NoReturn:
        """Hosts and a run, until this is cancelled."""
        now = time.time()
        for name in self._hosts:
            self.emit(events.HostChanged(time=now, host=name, state=HostState.UP))
        self.emit(events.ClusterChanged(time=now, state=ClusterState.UP, head=self._hosts[0]))
        self.emit(events.RunChanged(time=now, run=RUN, job="busy", state=RunState.RUNNING))
        for event in start(now, 10_000_000):
            self.emit(events.RunProgressed(run=RUN, event=event))
        for number in range(1, self._before + 1):
            self.emit(events.RunProgressed(run=RUN, event=step(number, now)))
            if number % BURST == 0:
                await asyncio.sleep(0)
        await asyncio.gather(self._steps(), self._samples())
        raise AssertionError("both go on")

    async def _steps(self) -> None:
        number = self._before
        while True:
            number += 1
            self.emit(events.RunProgressed(run=RUN, event=step(number, time.time())))
            await asyncio.sleep(1 / self._rate)

    async def _samples(self) -> None:
        while True:
            for name in self._hosts:
                now = time.time()
                sample = protocol.HostSample(
                    time=now, cpu_use=now % 1, memory_used=2**30, memory_total=2**34, ray=RayState.RUNNING, run=RUN
                )
                self.emit(events.HostSampled(time=now, host=name, sample=sample, round_trip_s=0.001))
                await asyncio.sleep(1 / SAMPLES_PER_S / len(self._hosts))

    async def close(self) -> None:
        """There is nothing to close."""

    def _refuse(self) -> NoReturn:
        raise UsageError("nothing can be asked of this session", step="benchmark")


async def show(hosts: int, rate: float, before: int) -> None:
    """The app, until its process is ended."""
    from hetero_tui.ui.app import HeteroApp

    session = Busy(hosts, rate, before)
    app = HeteroApp(session, on_start=())
    feeding = asyncio.create_task(session.feed())
    feeding.add_done_callback(lambda _: app.exit())  # it only ends by a mistake
    await app.run_async()
    await feeding


class Terminal:
    """The app in a process of its own, and what it writes to its terminal; a context manager, which ends it."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._ours, theirs = pty.openpty()
        self.began = time.perf_counter()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        environment["TEXTUAL_ANIMATIONS"] = "none"
        self._app = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ui", "--show", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        self.process = psutil.Process(self._app.pid)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._app.kill()
        self._app.wait()
        os.close(self._ours)

    def press(self, key: bytes, wanted: bytes) -> float:
        """Seconds from a key press until ``wanted`` is written.

        Raises:
            TimeoutError: it was not.
        """
        self.read(0.0)
        began = time.perf_counter()
        os.write(self._ours, key)
        self.until(wanted)
        return time.perf_counter() - began

    def until(self, wanted: bytes) -> None:
        """Wait for a text."""
        said, ends = b"", time.monotonic() + ANSWER_S
        while wanted not in said:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{wanted.decode()} was not written within {ANSWER_S:g} s")
            said = said[-100:] + self.read(left)

    def read(self, seconds: float) -> bytes:
        """What was written, once something is, within so many seconds; all that is there with 0."""
        ready, _, _ = select.select([self._ours], [], [], seconds)
        return os.read(self._ours, 1 << 16) if ready else b""

    def rest(self, seconds: float) -> None:
        """Read on without a key press."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self.read(left)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured: seconds, bytes, and a share of one core."""

    first_picture: float
    presses: tuple[float, ...]
    memory: tuple[int, int]
    core: float

    def lines(self) -> Iterator[str]:
        """For people."""
        ordered = sorted(self.presses)
        p95 = ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)]
        yield f"first picture          {self.first_picture:.2f} s"
        yield f"key to picture         p50 {statistics.median(ordered) * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms"
        before, after = (size / 1e6 for size in self.memory)
        yield f"memory                 {before:.1f} MB, at the end {after:.1f} MB"
        yield f"processor              {self.core:.1%} of a core between the key presses"


def measure(arguments: Sequence[str], seconds: float) -> Figures:
    """Drive the app for so many seconds."""
    with Terminal(arguments) as terminal:
        terminal.until(FIRST)
        first = time.perf_counter() - terminal.began
        while _processor(terminal) / (time.perf_counter() - terminal.began) > BUSY:  # the steps before are folded
            terminal.rest(1.0)
        memory, used, began = terminal.process.memory_info().rss, _processor(terminal), time.monotonic()
        terminal.rest(seconds / 4)
        core = (_processor(terminal) - used) / (time.monotonic() - began)
        presses: list[float] = []
        ends = time.monotonic() + seconds / 2
        while time.monotonic() < ends:
            for key, wanted in VIEWS:
                presses.append(terminal.press(key, wanted))
                terminal.rest(0.13)  # not in step with the two pictures a second
        return Figures(
            first_picture=first,
            presses=tuple(presses),
            memory=(memory, terminal.process.memory_info().rss),
            core=core,
        )


def _processor(terminal: Terminal) -> float:
    times = terminal.process.cpu_times()
    return float(times.user + times.system)


def write_events(path: Path, steps: int) -> None:
    """The record of a run of so many steps."""
    document = json.loads(protocol.encode(step(1, 0.0)))
    with path.open("w", encoding="utf-8") as file:
        file.writelines(protocol.encode(event) + "\n" for event in start(0.0, steps))
        for number in range(1, steps + 1):  # quicker than to encode each of them
            document.update(seq=number + 2, time=number * 0.05, step=number)
            file.write(json.dumps(document, separators=(",", ":")) + "\n")


async def opening(steps: int) -> tuple[float, float]:
    """Seconds from the start of a session to the present of a run under way that has made so many steps.

    The second figure is this process's own part of them on a processor. The machine is one of the demo's, behind a real
    SSH server, and its run a process that only waits.
    """
    # Here, and not above: the app's process, whose first picture is measured, does without them.
    from hetero_tui.app_session import AppSession
    from hetero_tui.demo.machines import EmbeddedMachines, make_folder
    from hetero_tui.fleet import agent
    from hetero_tui.inventory.file import load
    from hetero_tui.transport import open_transport

    folder = make_folder()
    try:
        async with EmbeddedMachines(folder, speeds=(1.0,)) as machines:
            machine, path = machines.machines[0], machines.write_inventory()
            inventory = load(path)
            link = open_transport(inventory.hosts[0], inventory)
            await agent.ship(link, inventory.cluster, sys.executable)
            place = machine.home / f".hetero-tui/{inventory.cluster}/runs/{RUN}"
            place.mkdir(parents=True)
            spec = protocol.RunSpec(
                run=RUN, job="busy", cluster=inventory.cluster, host=machine.name, ray_address="127.0.0.1:1",
                node_address="127.0.0.1", devices=(), server_host=machine.name,
            )  # fmt: skip
            (place / "run.json").write_text(protocol.encode(spec), encoding="utf-8")
            write_events(place / "events.jsonl", steps)
            home, name = agent.home_folder(inventory.cluster), protocol.run_process_name(RUN)
            waits = ("--log", f"{home}/log", "--", "sleep", f"{OPENING_S:.0f}")
            called = ("host.processes", "launch", "--folder", home, "--name", name, *waits)
            await agent.call(link, inventory.cluster, *called, step="benchmark")
            session = AppSession(inventory, path, ledger_folder=folder / "laptop")
            present = asyncio.Event()
            session.subscribe(lambda state: present.set() if state.run and state.run.step == steps else None)
            began, used = time.perf_counter(), time.process_time()
            async with asyncio.timeout(OPENING_S):
                probing = asyncio.create_task(session.probe())
                await present.wait()
                taken = time.perf_counter() - began, time.process_time() - used
                await probing
            await session.close()
            stopped = ("host.processes", "stop", "--folder", home, "--name", name, "--grace", "1")
            await agent.call(link, inventory.cluster, *stopped, step="benchmark")
            await link.close()
            return taken
    finally:
        shutil.rmtree(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ui", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--rate", type=float, default=20.0, help="steps a second")
    parser.add_argument("--events", type=int, default=20_000, help="steps at once, before that")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--record", type=int, default=300_000, help="steps of a run that is attached to; 0: none")
    parser.add_argument("--show", action="store_true", help="the app itself, on this terminal")
    options = parser.parse_args(arguments)
    if options.show:
        asyncio.run(show(options.hosts, options.rate, options.events))
        return 0
    words = [f"--hosts={options.hosts}", f"--rate={options.rate}", f"--events={options.events}"]
    print(*measure(words, options.seconds).lines(), sep="\n", flush=True)
    if options.record:
        seconds, used = asyncio.run(opening(options.record))
        print(f"opening {options.record:,} steps  {seconds:.1f} s, {used:.1f} s on a processor of the laptop")
    return 0


if __name__ == "__main__":
    sys.exit(main())
