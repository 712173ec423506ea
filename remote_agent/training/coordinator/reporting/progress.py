"""Shows a script's progress on stderr: one line that is rewritten, or a line from time to time.

On a terminal and in a notebook, the line is overwritten with a carriage return and blanks, since notebooks do not
support escape codes.
"""

from __future__ import annotations

import shutil
import sys
from collections import deque
from typing import TextIO

from remote_agent import protocol
from remote_agent.goals import shown
from remote_agent.protocol import Event
from remote_agent.training.coordinator.prints import output_lines
from remote_agent.training.coordinator.reporting.callbacks import Callback
from remote_agent.wording import number

RENEWED_S, PLAIN_S = 0.1, 10.0
"""Seconds between two updates of the line, and between two lines if it can't be overwritten."""

RECENT = 50
"""Number of steps over which the speed is averaged."""


class ProgressLine(Callback):
    """A callback that writes the progress line; ``stream``: the output; default: stderr."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        notebook = type(self._stream).__module__.startswith("ipykernel")
        self._renews = notebook or self._stream.isatty()
        self._width = 100 if notebook or not self._renews else shutil.get_terminal_size().columns - 1
        self._iterations = 0
        self._times: deque[tuple[float, int]] = deque(maxlen=RECENT + 1)  # when a step was made, and its samples
        self._evaluated = ""
        self._reasons: set[str] = set()  # those that were shown
        self._written = float("-inf")
        self._shown = 0  # characters of the line that is written over

    def show_output(self, worker: str, lines: tuple[str, ...], left_out: int) -> None:
        """Show a worker's prints above the line; see :mod:`~remote_agent.training.coordinator.prints`."""
        for line in output_lines(worker, lines, left_out):
            self._say(line)

    def on_event(self, event: Event) -> None:
        match event:
            case protocol.RunStarted():
                self._iterations = event.iterations
            case protocol.PlanMade():
                self._iterations = event.iterations or self._iterations
                reasons = (*event.cut, *event.reasons)
                for reason in reasons:
                    if reason not in self._reasons:
                        self._say(reason)
                self._reasons.update(reasons)
            case protocol.RunResumed():
                self._iterations = event.iterations or self._iterations
                self._times.clear()
                self._say(f"resumed after step {event.step:,}")
            case protocol.WorkerLost() if event.cause == protocol.DRAINED:
                self._say(f"{event.host} left the run before step {event.step:,}, as asked (drained)")
            case protocol.WorkerLost():
                self._say(f"{event.host} lost at step {event.step:,}: {event.words}")
            case protocol.Notice():
                self._say(event.text)

    def on_evaluate(self, event: protocol.Evaluated) -> None:
        figures = (f"{shown(name)} {_number(figure)}" for name, figure in event.metrics.items())
        self._evaluated = "  ".join(figures) + (" (best)" if event.best else "")

    def on_step(self, event: protocol.Step) -> None:
        self._times.append((event.time, event.samples))
        every = RENEWED_S if self._renews else PLAIN_S
        if event.time - self._written < every and event.step != self._iterations:
            return
        self._written = event.time
        line = self._line(event)
        if self._renews:
            self._renew(line)
        else:
            self._say(line)

    def on_end(self, event: protocol.RunFinished | protocol.RunFailed) -> None:
        if isinstance(event, protocol.RunFinished):
            why = f" ({event.reason})" if event.reason else ""
            word = "stopped" if event.stopped else "finished"
            figures = "".join(f", {shown(name)} {_number(figure)}" for name, figure in event.evaluation.items())
            loss = _number(event.final_loss)
            self._say(f"{word} after {event.steps:,} steps{why}: loss {loss}{figures}; {event.checkpoint}")
        elif self._shown:
            self._say("")

    def _line(self, event: protocol.Step) -> str:
        parts = [f"step {event.step:,}/{self._iterations:,}", f"loss {_number(event.loss)}"]
        parts += [self._evaluated] if self._evaluated else []
        passed = self._times[-1][0] - self._times[0][0]
        if passed > 0:
            made = len(self._times) - 1
            rate = sum(samples for _, samples in self._times) * made / len(self._times) / passed
            left = max(0, self._iterations - event.step) * passed / made
            parts += [f"{rate:,.0f} samples/s", f"{duration(left)} left"]
        return "  ".join(parts)

    def _renew(self, line: str) -> None:
        line = line[: self._width]
        self._stream.write("\r" + line.ljust(self._shown))
        self._stream.flush()
        self._shown = len(line)

    def _say(self, text: str) -> None:
        """Write a line that stays, above the progress line."""
        over = "\r" + " " * self._shown + "\r" if self._shown else ""
        self._stream.write(f"{over}{text}\n" if text else "\n")
        self._stream.flush()
        self._shown = 0


def duration(seconds: float) -> str:
    """Format seconds as ``0:07``, ``12:03`` or ``3:00:00``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _number(figure: float | None) -> str:
    return "n/a" if figure is None else number(figure, 4)
