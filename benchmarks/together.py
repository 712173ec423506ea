"""Whether all that look at one fleet say the same, while it is broken, drained and taken down.

``python -m benchmarks.together [--seconds 600] [--within 5]``

The demo's three machines, real SSH and real Ray. Two apps, each in a process of its own with a ledger of its own, and
a ``train --json`` are attached, as from three laptops. By commands the cluster is brought up and a run is started; then
a machine is broken every few seconds, one is drained and brought back, and in mid-run the cluster is taken down. Twice
a second each app writes down what its header and its table of hosts show, and every few seconds ``status --json`` says
how things stand.

Printed is for how long the two apps showed different things at most, how far an app was from what ``status`` said,
and whether anything started again after the teardown. The exit code is 1 where something took longer than ``--within``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_tui.demo.fleet import DemoFleet, demo_fleet
from hetero_tui.events import HostState
from hetero_tui.state import IN_CLUSTER

EVERY = 0.5
"""Seconds between two looks at an app's screen."""

STATUS_EVERY = 5.0
START_S = 300.0
AFTER_S = 20.0
"""For so long after a teardown nothing may start again."""

COMMAND = (sys.executable, "-m", "hetero_tui")
SIZE = (120, 40)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What an app shows at a moment: the words of its header without figures, the hosts' states, the run's step."""

    time: float
    cluster: str
    run: str
    state: str
    step: int
    hosts: tuple[tuple[str, str], ...]

    @property
    def truth(self) -> tuple[object, ...]:
        """What has to be the same for everyone; the step goes on all the time, and is compared by itself."""
        return self.cluster, self.run, self.state, self.hosts


async def show(inventory: Path, state_folder: Path) -> None:
    """An app on that fleet without a terminal, and a line for each look at what it shows."""
    from hetero_tui.app_session import AppSession
    from hetero_tui.inventory.file import load
    from hetero_tui.ui.app import HeteroApp

    session = AppSession(load(inventory), inventory, ledger_folder=state_folder)
    app = HeteroApp(session)

    async def look() -> None:
        while True:
            await asyncio.sleep(EVERY)
            state = app.view().state
            run = state.run
            shown = {
                "time": time.time(),
                "cluster": str(state.cluster_state),
                "run": run.run if run is not None else "",
                "state": str(run.state) if run is not None else "",
                "step": 0 if run is None else run.step,
                "behind": run is not None and run.behind is not None,
                "hosts": [(host.name, str(host.state)) for host in state.hosts],
                "header": app.main.query_one("#status").text if app.main.is_mounted else "",  # type: ignore[attr-defined]
            }
            print(json.dumps(shown), flush=True)

    looking = asyncio.create_task(look())
    try:
        await app.run_async(headless=True, size=SIZE)
    finally:
        looking.cancel()
        await session.close()


class Watcher:
    """An app in a process of its own, and all that it showed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shown: list[Shown] = []
        self.headers: list[str] = []
        self.trains = asyncio.Event()

    @asynccontextmanager
    async def watching(self, inventory: Path, folder: Path) -> AsyncIterator[None]:
        """While the context is open, it runs."""
        words = (sys.executable, "-m", "benchmarks.together", "--app", str(inventory), "--state", str(folder))
        with (folder.parent / f"{self.name}.err").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, stderr=errors)
        reading = asyncio.create_task(self._read(process))
        try:
            yield
        finally:
            process.terminate()
            await process.wait()
            reading.cancel()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None, "a pipe"
        async for line in process.stdout:
            said = json.loads(line)
            self.headers.append(said.pop("header"))
            if not said.pop("behind"):
                hosts = tuple((name, state) for name, state in said.pop("hosts"))
                self.shown.append(Shown(hosts=hosts, **said))
                if self.shown[-1].step > 0:
                    self.trains.set()

    def at(self, moment: float) -> Shown | None:
        """What it showed then."""
        return next((shown for shown in reversed(self.shown) if shown.time <= moment), None)


async def command(inventory: Path, folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and stdout of a command of the product."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("--inventory", str(inventory), *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None, "it has ended"
    return process.returncode, out.decode()


def longest_difference(first: Watcher, second: Watcher, since: float, until: float) -> tuple[float, str]:
    """For how many seconds two apps showed different things without a break at most, and what at its end."""
    longest, began, what = 0.0, None, ""
    moment = since
    while moment < until:
        one, other = first.at(moment), second.at(moment)
        if one is None or other is None or one.truth == other.truth:
            began = None
        else:
            began = moment if began is None else began
            if moment - began > longest:
                longest = moment - began
                what = f"{_differences(one.truth, other.truth)} at {_clock(moment)}"
        moment += EVERY
    return longest, what


def distance(watcher: Watcher, began: float, ended: float, status: dict[str, Any]) -> tuple[float, str]:
    """Seconds between what ``status`` said, at some moment of its own time, and the same on an app's screen."""
    newest = status["runs"][-1] if status["runs"] else None
    wanted = (
        status["cluster"]["state"],
        newest["state"] if newest is not None else "",
        tuple((host["name"], in_cluster(host["state"])) for host in status["hosts"]),
    )
    best, what = float("inf"), "nothing was shown"
    for shown in watcher.shown:
        had = (shown.cluster, shown.state, tuple((name, in_cluster(state)) for name, state in shown.hosts))
        away = max(0.0, began - shown.time, shown.time - ended)
        if had == wanted and away < best:
            best, what = away, ""
    if what:
        nearest = min(watcher.shown, key=lambda shown: abs(shown.time - ended), default=None)
        what = f"status {wanted}, shown {nearest}"
    return best, what


def in_cluster(state: str) -> bool:
    """Whether a host in that state has Ray running; ``status`` does not know how it takes part in the run."""
    return HostState(state) in IN_CLUSTER


def _differences(one: Iterable[object], other: Iterable[object]) -> str:
    return "; ".join(f"{mine} / {theirs}" for mine, theirs in zip(one, other, strict=True) if mine != theirs)


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


class Story:
    """What is done to the fleet, and what is said of it meanwhile."""

    def __init__(self, fleet: DemoFleet, watchers: Sequence[Watcher], folder: Path, seconds: float) -> None:
        self.fleet, self.watchers, self.folder, self.seconds = fleet, watchers, folder, seconds
        self.inventory = Path(fleet.session.inventory_path)
        self.statuses: list[tuple[float, float, dict[str, Any]]] = []
        self.began = self.ended = self.down = 0.0
        self.events = 0

    async def run(self) -> None:
        """All of it."""
        code, _ = await self.command("up")
        assert code == 0, "the cluster did not come up"
        training = asyncio.create_task(self.command("train", "digits", "--set", "num_iterations=1000000", "--json"))
        async with asyncio.timeout(START_S):
            for watcher in self.watchers:
                await watcher.trains.wait()
        await self.fleet.session.probe()
        self.began = time.time()
        asking = asyncio.create_task(self.ask())
        await self.fleet.chaos.toggle()
        for part, words in enumerate((("drain", "quarter"), ("undrain", "quarter"), ())):
            await asyncio.sleep(max(0.0, self.began + self.seconds * (part + 1) / 3 - time.time()))
            if words:
                say(" ".join(words), (await self.command(*words))[0])
        await self.fleet.chaos.close()
        asking.cancel()
        await asyncio.wait({asking})
        self.ended = time.time()
        code, _ = await self.command("down", "--yes")
        self.down = time.time()
        say("down", code)
        code, lines = await training
        self.events = len(lines.splitlines())
        say("train --json", code, f"{self.events:,} events")
        await asyncio.sleep(AFTER_S)

    async def ask(self) -> None:
        """Ask ``status`` again and again."""
        while True:
            began = time.time()
            _, said = await self.command("status", "--json")
            self.statuses.append((began, time.time(), json.loads(said)))
            await asyncio.sleep(max(0.0, began + STATUS_EVERY - time.time()))

    async def command(self, *words: str) -> tuple[int, str]:
        return await command(self.inventory, self.folder / "commands", *words)


def write_down(story: Story) -> None:
    """All that was shown and said, to look at: in the file that ``TOGETHER_TRACE`` names."""
    trace = os.environ.get("TOGETHER_TRACE")
    if trace is None:
        return
    lines = [f"{watcher.name} {_clock(shown.time)} {shown}" for watcher in story.watchers for shown in watcher.shown]
    lines += [f"{watcher.name} header {header}" for watcher in story.watchers for header in watcher.headers]
    lines += [f"status {_clock(began)} {_clock(ended)} {json.dumps(said)}" for began, ended, said in story.statuses]
    lines += [f"log {_clock(line.time)} {line.text}" for line in story.fleet.session.state.log]
    Path(trace).write_text("\n".join(lines), encoding="utf-8")


def say(*words: object) -> None:
    """A line of progress."""
    print(_clock(time.time()), *words, flush=True)


def verdicts(story: Story, within: float) -> list[tuple[bool, str]]:
    """Whether each promise held, in words."""
    first, second = story.watchers
    apart, what = longest_difference(first, second, story.began, time.time())
    found = [(apart <= within, f"the apps showed different things for {apart:.1f} s at most: {what or 'never'}")]
    for watcher in story.watchers:
        away = [distance(watcher, *status) for status in story.statuses]
        worst, why = max(away, default=(0.0, ""))
        words = f"{watcher.name} showed what {len(away)} times status said within {worst:.1f} s {why}"
        found.append((worst <= within, words))
        gone = [
            shown.time - story.down for shown in watcher.shown if shown.cluster == "down" and shown.time > story.ended
        ]
        late = max(0.0, min(gone, default=float("inf")))
        found.append((late <= within, f"{watcher.name} showed the teardown {late:.1f} s after its end"))
        again = [shown for shown in watcher.shown if shown.time > story.down + within and shown.cluster != "down"]
        found.append((not again, f"{watcher.name}: nothing started again" if not again else f"{again[-1]}"))
        last = watcher.at(story.ended + within)
        assert last is not None, "it showed something"
        found.append(
            (last.state in ("stopped", "stopping", "running"), f"{watcher.name}: the run {last.state} at the end")
        )
        lost = [state for shown in watcher.shown if shown.time > story.ended for _, state in shown.hosts]
        said = {*lost} & {"unreachable", "failed", "restarting"}
        found.append(
            (True, f"{watcher.name}: hosts' words after the teardown began: {', '.join(sorted({*lost}))} {said or ''}")
        )
    return found


async def measure(seconds: float, within: float) -> int:
    """Everything; the exit code."""
    async with demo_fleet(log_errors=False) as fleet:
        inventory = Path(fleet.session.inventory_path)
        folder = inventory.parent
        watchers = [Watcher("first app"), Watcher("second app")]
        async with (
            watchers[0].watching(inventory, folder / "one"),
            watchers[1].watching(inventory, folder / "two"),
        ):
            story = Story(fleet, watchers, folder, seconds)
            try:
                await story.run()
            finally:
                for watcher in watchers:
                    errors = (folder / f"{watcher.name}.err").read_text()
                    if errors:
                        print(watcher.name, errors[-2000:], file=sys.stderr)
                write_down(story)
            blows = sum(line.text.startswith("chaos: ") for line in fleet.session.state.log)
            found = verdicts(story, within)
    print(f"{story.ended - story.began:.0f} s of chaos, {blows} lines of it; {len(story.statuses)} times status")
    for held, words in found:
        print("ok  " if held else "FAIL", words)
    return 0 if all(held for held, _ in found) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.together", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of chaos")
    parser.add_argument("--within", type=float, default=5.0, help="seconds in which all must say the same")
    parser.add_argument("--app", type=Path, help="an app on that inventory, without a terminal")
    parser.add_argument("--state", type=Path, help="with --app: the folder of its ledger")
    options = parser.parse_args(arguments)
    if options.app is not None:
        asyncio.run(show(options.app, options.state))
        return 0
    return asyncio.run(measure(options.seconds, options.within))


if __name__ == "__main__":
    sys.exit(main())
