"""Adds lines to the event log, some in the place of an earlier one of their kind. Pure; those of a run have topics."""

from __future__ import annotations

from hetero_tui.events import Level
from hetero_tui.state import LogLine
from hetero_tui.text import WHOLE, one_line
from remote_agent import protocol

LOG_LINES = 500
"""Number of lines of the event log that are kept."""

_FREQUENT = "frequent"
"""Of checkpoints and evaluations the newest is enough: the run's own views have the others."""

TOGETHER = 120.0
"""Seconds after which something that happens again is told again."""


def logged(
    log: tuple[LogLine, ...], time: float, level: Level, text: str, *, topic: str = "", is_data: bool = False
) -> tuple[LogLine, ...]:
    """The log with one more line, the newest last.

    A busy machine is slow, and as fast as before, many times a minute: each of that is one line with a count.
    """
    number = log[-1].number + 1 if log else 1
    count, kept = 1, log
    for place in range(len(log) - 1, -1, -1):
        before = log[place]
        if not topic or not before.topic:
            break
        if before.topic == topic and (topic == _FREQUENT or time - before.time < TOGETHER):
            count, kept = before.count + 1, (*log[:place], *log[place + 1 :])
            break
    count = 1 if topic == _FREQUENT else count
    line = LogLine(
        time=time, level=level, text=one_line(text, WHOLE), number=number, topic=topic, count=count, is_data=is_data
    )
    return (*kept[-(LOG_LINES - 1) :], line)


def topic_of(event: protocol.Event) -> str:
    """What an event of a run tells of, if that may come again and again; empty: it is a line of its own each time."""
    match event:
        case protocol.CheckpointSaved() | protocol.Evaluated():
            return _FREQUENT
        case protocol.WorkerSlow():
            return f"{event.worker} {'as usual' if event.factor >= 1 else 'slow'}"
        case protocol.Rebalanced():
            return f"{event.kind} {event.reason}"
        case _:
            return ""


def is_data(event: protocol.Event) -> bool:
    """Whether commands print an event on stdout, as data; see StepPrinter in hetero_tui.narration."""
    return isinstance(event, protocol.Evaluated | protocol.RunFinished)
