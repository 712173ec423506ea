"""Writes ``events.jsonl``, the run's single source of truth: one event a line, numbered from 1 without gaps.

Events about a decision are also written to the coordinator's log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_agent import reopening
from remote_agent.protocol import (
    FINAL_KINDS,
    CheckpointSaved,
    Evaluated,
    Event,
    ProtocolError,
    RunResumed,
    RunStarted,
    Share,
    Stage,
    Step,
    encode,
)
from remote_agent.training.errors import StorageError
from remote_agent.wording import number

LOG = logging.getLogger(__name__)

_NO_DECISION = (Step, Evaluated)
"""Events that are not logged, since a long run has millions of them."""


class Journal:
    """Appends events to a file, from any thread. After the first final event, nothing more is written.

    An existing file is continued: the numbers go on, and its final event is removed (``reopening``).

    Attributes:
        continued: the file had events before.
        begun: an event since then says that the run started or resumed.
        ended: how the run in the file had ended, in words; empty: it had not, or there was none.
        step: the last step in the file when it was opened; 0: none.
        left: the head that was lost since then; empty: none was.
        closed: a final event was written.
        listeners: called with each event, in the writing thread; they must not block.

    Raises:
        StorageError: the file can't be written, or is not a file of events.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = self.begun = False
        self.listeners: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()
        self._holders = Holders()
        try:
            self._file = path.open("ab", buffering=0)
            found = reopening.reopen(path)
        except OSError as error:
            raise StorageError.of(path, error) from error
        except ProtocolError as error:
            raise StorageError(f"{path} is no file of events: {error}", hint="choose another folder") from error
        self.continued, self.ended, self.step, self.left = found.seq > 0, found.ended, found.step, found.left
        self._next, self._whole = found.seq + 1, found.size

    def write(self, kind: type[Event], **fields: Any) -> None:
        """Number, stamp and append one event; one about a checkpoint names all its hosts (see :class:`Holders`).

        Raises:
            StorageError: it can't be written; a partly written line is removed.
        """
        with self._lock:
            self._write(kind, fields)

    def _write(self, kind: type[Event], fields: dict[str, Any]) -> None:
        if self.closed:
            return
        if kind is CheckpointSaved:
            self._holders = self._holders.after(fields["step"], fields.get("hosts") or (fields["host"],))
            if not self._holders.told:
                return
            fields = {**fields, "hosts": self._holders.told}
        event = kind(seq=self._next, time=time.time(), **fields)
        line = encode(event).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError("no space left on device")
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._whole)
            raise StorageError.of(self.path, error) from error
        self._whole += len(line)
        self._next += 1
        self.closed = kind.kind in FINAL_KINDS
        self.begun = self.begun or kind in (RunStarted, RunResumed)
        if kind not in _NO_DECISION:
            LOG.info("%s", in_words(event))
        for listener in self.listeners:
            listener(event)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, kw_only=True)
class Holders:
    """The hosts that hold the run's checkpoints, as its events say.

    Two threads write these events, in any order: the loop asks only after a step for a checkpoint that became whole,
    and by then :mod:`history` may have copied it, or still copies the one before.

    Attributes:
        saved: the last checkpoint that the loop told of, by its step.
        copied: the last one of which was told that other hosts hold it, and ``hosts``, all of these.
        told: the hosts that the event has to name; empty: it says nothing new.
    """

    saved: int = -1
    copied: int = -1
    hosts: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    def after(self, step: int, hosts: tuple[str, ...]) -> Holders:
        """With an event which says that ``hosts`` hold the checkpoint of ``step``; a single one: it was saved there."""
        known = self.hosts if step == self.copied else ()
        every = tuple(dict.fromkeys((*known, *hosts)))
        if len(hosts) == 1:
            was_copied_first = bool(known) and step != self.saved
            return dataclasses.replace(self, saved=step, told=() if was_copied_first else every)
        return dataclasses.replace(self, copied=step, hosts=every, told=() if every == known else every)


def in_words(event: Event) -> str:
    """Format an event for the log: its kind and what it says beside its defaults, then its detail, line by line.

    Tables of figures are left out; ``events.jsonl`` has them.
    """
    fields = {entry.name: getattr(event, entry.name) for entry in dataclasses.fields(event)}
    usual = {entry.name: entry.default for entry in dataclasses.fields(event)}
    detail = fields.pop("detail", "")
    said = [
        _said(name, value)
        for name, value in fields.items()
        if name not in _UNSAID and value not in _EMPTY and value != usual[name]
    ]
    return "\n  ".join([f"{event.kind.replace('_', ' ')}: {', '.join(said)}", *str(detail).splitlines()])


_UNSAID = ("seq", "time", "config", "path", "size", "terms", "ratios")
_EMPTY: tuple[object, ...] = ("", (), {}, None)


def _said(name: str, value: object) -> str:
    words = name.removesuffix("_s").replace("_", " ")
    if value is True:
        return words
    return f"{words} {_value(value)}{' s' if name.endswith('_s') else ''}"


def _value(value: object) -> str:
    match value:
        case tuple():
            return "; ".join(_value(entry) for entry in value)
        case dict():
            return "; ".join(f"{name}: {_value(entry)}" for name, entry in value.items())
        case Share():
            return f"{value.worker} {value.samples:,}"
        case Stage():
            return f"{value.worker} blocks {value.span}"
        case float():
            return number(value, 4)
        case int():
            return f"{value:,}"
        case _:
            return str(value)
