"""Prints for the command line: data on stdout, narration on stderr; JSON for scripts, lines or tables for people.

Nothing that is not a terminal ever gets an escape code, and ``--plain`` gives none to a terminal either, nor does one
that says that it knows none (``TERM=dumb``).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hetero_tui import deadlines
from hetero_tui.errors import HeteroTuiError
from hetero_tui.event_log import TOGETHER
from hetero_tui.events import ClusterState, HostState, Level
from hetero_tui.state import COORDINATOR, FIRST_STEP, MEASURING, TAKEOVER, WORKERS, State
from hetero_tui.text import duration, loss_figure, one_line, plain
from remote_agent import protocol
from remote_agent.goals import shown

_STYLES = {Level.INFO: "", Level.GOOD: "green", Level.WARNING: "yellow", Level.BAD: "bold red"}
_MARKS = {Level.INFO: " ", Level.GOOD: "+", Level.WARNING: "!", Level.BAD: "x"}
MOST_SAID = 1_000_000
"""Characters of one text on stderr."""

WORD_EVERY = 2.0
"""Seconds without a change after which it is said again what is waited for, and for how long."""

CANT_JOIN = frozenset((HostState.UNREACHABLE, HostState.REFUSED, HostState.UNFIT, HostState.FAILED))
"""States of hosts that nothing is waited for from."""

_STARTS = {
    COORDINATOR: "its coordinator starts",
    WORKERS: "its workers start",
    MEASURING: "devices and links are measured",
    FIRST_STEP: "a step is computed",
    TAKEOVER: "a new coordinator takes over",
}
"""What a run's start is at."""

STEP_LINE_EVERY = 1.0
"""Seconds of the run's own time between two printed steps, for people; JSON has every step."""

_RECENT_STEPS = 50


@dataclass(frozen=True, slots=True)
class Output:
    """How a command prints."""

    as_json: bool = False
    plain: bool = False

    def _is_bare(self, stream: TextIO) -> bool:
        return self.plain or not stream.isatty() or os.environ.get("TERM") == "dumb"

    def ring(self, text: str) -> None:
        """Call the user back to a terminal: its bell, and a notification where it has them (OSC 9)."""
        if not self.as_json and not self._is_bare(sys.stderr):
            sys.stderr.write(f"\x1b]9;{one_line(text)}\x07\x07")
            sys.stderr.flush()

    def _console(self, stderr: bool) -> Console:
        stream = sys.stderr if stderr else sys.stdout
        bare = self._is_bare(stream)
        width = None if stream.isatty() else 200
        return Console(
            file=stream,
            force_terminal=not bare,
            no_color=True if bare else None,
            highlight=False,
            markup=False,
            emoji=False,
            width=width,
        )

    def document(self, value: object) -> None:
        """One JSON document on stdout."""
        print(json.dumps(value, indent=2, allow_nan=False))

    def data(self, text: str, style: str = "") -> None:
        """One line on stdout."""
        self._console(stderr=False).print(Text(text, style=style), soft_wrap=True)

    def say(self, text: str, style: str = "") -> None:
        """One line on stderr; what users' own files and words have in them reaches no terminal as a code."""
        self._console(stderr=True).print(Text(plain(text, MOST_SAID), style=style), soft_wrap=True)

    def complain(self, text: str) -> None:
        """Something that went wrong, on stderr."""
        self.say(text, "bold red")

    def error(self, error: HeteroTuiError) -> None:
        """An error for people, on stderr."""
        self.complain(f"hetero-tui: {error}")

    def table(self, headings: list[str], rows: list[list[str]]) -> None:
        """Aligned columns on stdout, without boxes; the last one goes on below where a terminal is too narrow.

        A pipe has no width: every line is whole there, and with ``--plain``.
        """
        if self._is_bare(sys.stdout):
            widths = [max(cell_len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
            for row in (headings, *rows):
                cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
                self.data("  ".join(cells).rstrip())
            return
        table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
        for number, heading in enumerate(headings, start=1):
            table.add_column(heading, no_wrap=number < len(headings), overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._console(stderr=False).print(table)


class Narrator:
    """Prints each new line of the state's log to stderr, once; what comes again and again, once in two minutes.

    What a :class:`StepPrinter` prints on the same terminal is left out, unless there is none
    (``alone``).
    """

    def __init__(self, output: Output, *, alone: bool = False) -> None:
        """Nothing is said before the first call."""
        self._output = output
        self._said = 0
        self._told: dict[str, float] = {}
        self._beside_data = not alone and not output.as_json

    def __call__(self, state: State) -> None:
        """Say what is new in ``state``."""
        new = list(itertools.takewhile(lambda line: line.number > self._said, reversed(state.log)))
        for line in reversed(new):
            self._said = line.number
            if line.topic and not line.is_data:
                if line.time - self._told.get(line.topic, float("-inf")) < TOGETHER:
                    continue
                self._told[line.topic] = line.time
            if line.is_data and self._beside_data and sys.stdout.isatty():
                continue
            clock = time.strftime("%H:%M:%S", time.localtime(line.time))
            self._output.say(f"{clock} {_MARKS[line.level]} {line.text}", _STYLES[line.level])


def waiting_for(state: State) -> str:
    """What a user who started something waits for now; empty once there is something else to see. Pure."""
    run = state.run
    is_live = run is not None and not run.state.final
    joins = not is_live and any(host.state is HostState.STARTING for host in state.hosts)
    if state.cluster_state is ClusterState.STARTING or joins:
        at_most = duration(deadlines.NODE_START)
        waited_for = sum(host.state not in CANT_JOIN for host in state.hosts)
        return f"Ray starts: {state.hosts_up} of {waited_for} hosts are up (a host gets {at_most} at most)"
    if state.cluster_state is ClusterState.STOPPING:
        return f"{state.cluster} is being taken down"
    if run is None or not is_live or (run.step and not run.is_starting):
        return ""
    if run.behind is not None:
        return f"{run.run}: its history is read"
    doing = _STARTS[run.phases[-1].name] if run.is_starting else run.detail or run.state
    return f"{run.run}: {doing}, no {'new step' if run.step else 'step'} yet"


@asynccontextmanager
async def saying(output: Output, words: Callable[[], str]) -> AsyncIterator[None]:
    """While the context is open, say every few seconds what is waited for, and since when."""

    async def say() -> None:
        said, began = "", time.monotonic()
        while True:
            await asyncio.sleep(WORD_EVERY)
            now = words()
            if now != said:
                said, began = now, time.monotonic() - WORD_EVERY
            if now:
                output.say(f"{now}, for {duration(time.monotonic() - began)}")

    task = asyncio.create_task(say(), name="say what is waited for")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


class StepPrinter:
    """Prints a run's steps for people: the first, the last, and one a second between."""

    def __init__(self, output: Output, *, demo: bool = False) -> None:
        """``output`` says how; the checkpoints of a ``demo`` are not named, as they are removed with its folder."""
        self._output = output
        self._demo = demo
        self._iterations = 0
        self._resumed_after: int | None = None
        self._printed = float("-inf")
        self._samples = 0
        self._seconds = 0.0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT_STEPS)

    def __call__(self, event: protocol.Event, *, is_past: bool = False) -> None:
        """Print ``event`` if it is due; of what ``is_past``, before a resume, nothing is."""
        match event:
            case protocol.RunStarted():
                self._iterations = event.iterations
            case protocol.PlanMade():
                self._iterations = event.iterations or self._iterations
            case _ if is_past:
                pass
            case protocol.RunResumed():
                self._recent.clear()
                self._printed, self._samples, self._seconds = float("-inf"), 0, 0.0
                self._iterations = event.iterations or self._iterations
                self._resumed_after = self._resumed_after if event.went_back else event.step
                self._output.data(f"resumed after step {event.step:,}")
            case protocol.Step():
                self._samples += event.samples
                self._seconds += event.seconds
                self._recent.append((event.time, event.step))
                passed = event.time - self._printed
                # Less than none has passed if the run's clock was set back, or the run went on on another host.
                if not 0 <= passed < STEP_LINE_EVERY or event.step == self._iterations:
                    self._print(event)
            case protocol.Evaluated():
                shown = ", ".join(_figure(name, value) for name, value in event.metrics.items())
                best = ", the best so far" if event.best else ""
                self._output.data(f"step {event.step:,} evaluated on {event.samples:,} samples: {shown}{best}")
            case protocol.RunFinished():
                word = "stopped early" if event.stopped else "finished"
                since = "" if self._resumed_after is None else f" since step {self._resumed_after:,}"
                self._output.data(
                    f"{word}: {event.steps:,} steps, {event.samples:,} samples, loss {loss_figure(event.final_loss)}, "
                    f"{event.samples_per_second:,.0f} samples/s{since}"
                )
                if event.reason:
                    self._output.data(event.reason)
                for name, value in event.evaluation.items():
                    self._output.data(_figure(name, value, ": "))
                if self._demo:
                    self._output.data("the demo's checkpoints are removed with it")
                    return
                self._output.data(f"checkpoint: {event.checkpoint}")
                if event.best:
                    self._output.data(f"best checkpoint: {event.best}")
            case protocol.RunFailed():
                for line in event.detail.splitlines():
                    self._output.data(f"  {plain(line)}")
            case _:
                pass

    def _print(self, event: protocol.Step) -> None:
        passed = event.time - self._printed
        seconds = passed if 0 < passed < float("inf") else self._seconds
        rate = self._samples / seconds if seconds > 0 else 0.0
        width = len(f"{self._iterations:,}")
        shares = " ".join(f"{worker.host} {worker.samples}" for worker in event.workers)
        self._output.data(
            f"step {event.step:>{width},}/{self._iterations:,}  loss {loss_figure(event.loss):>6}  "
            f"{rate:>8,.0f} samples/s  {self._left():<18}  {shares}"
        )
        self._printed, self._samples, self._seconds = event.time, 0, 0.0

    def _left(self) -> str:
        """The time until the last step, by the pace of the recent ones."""
        (then, first), (now, last) = self._recent[0], self._recent[-1]
        if last == first or self._iterations < last or now < then:
            return ""
        return f"{duration((self._iterations - last) * (now - then) / (last - first))} left"


def _figure(name: str, value: float | None, between: str = " ") -> str:
    words = shown(name).replace("_", " ")
    if value is None:
        return f"{words}{between}n/a"
    return f"{words}{between}{value:.2%}" if "accuracy" in name else f"{words}{between}{value:.4f}"
