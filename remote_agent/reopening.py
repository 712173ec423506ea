"""Opening a run's ``events.jsonl`` again, so that the run can go on. Standard library only.

A final event is the last line of its file; a run that goes on takes it back, and says in ``run_resumed`` what it was. A
line that a killed coordinator left half-written goes as well. So the numbers go on without a gap.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remote_agent import protocol


@dataclass(frozen=True)
class Reopened:
    """An events file that can be continued: ``seq`` is its last number, ``size`` its bytes, ``ended`` how it ended.

    ``step`` is the last step that it tells of; 0: it tells of none.
    """

    seq: int
    size: int
    ended: str = ""
    step: int = 0


def examine(path: Path) -> Reopened:
    """What :func:`reopen` would leave of the file; an empty or missing one has seq 0.

    Raises:
        OSError: it can't be read.
        protocol.ProtocolError: a line before the last one is no event.
    """
    if not path.is_file():
        return Reopened(0, 0)
    written = path.read_bytes()
    size = written.rfind(b"\n") + 1
    lines = written[:size].split(b"\n")[:-1]
    ended = ""
    if lines:
        last = protocol.decode_event(lines[-1].decode("utf-8", "replace"))
        if last is not None and last.kind in protocol.FINAL_KINDS:
            ended = _words(last)
            size -= len(lines.pop()) + 1
    return Reopened(len(lines), size, ended, _last_step(lines))


def _last_step(lines: Sequence[bytes]) -> int:
    for line in reversed(lines):
        event = protocol.decode_event(line.decode("utf-8", "replace"))
        if isinstance(event, protocol.Step | protocol.RunResumed):
            return event.step
    return 0


def reopen(path: Path) -> Reopened:
    """Take back the final event and what was half-written.

    Raises:
        OSError: the file can't be changed.
        protocol.ProtocolError: as :func:`examine`.
    """
    found = examine(path)
    if path.is_file() and path.stat().st_size != found.size:
        with path.open("ab") as file:
            file.truncate(found.size)
    return found


def say_head_lost(path: Path, host: str, step: int, cause: str) -> None:
    """Add ``head_lost`` to a file that was reopened: the machine that wrote it until now is gone.

    Raises:
        OSError: the file can't be changed.
        protocol.ProtocolError: as :func:`examine`.
    """
    event = protocol.HeadLost(seq=examine(path).seq + 1, time=time.time(), host=host, step=step, cause=cause)
    with path.open("a", encoding="utf-8") as file:
        file.write(protocol.encode(event) + "\n")


def _words(event: protocol.Event) -> str:
    match event:
        case protocol.RunFailed():
            return f"failed at step {event.step}: {event.cause}"
        case protocol.RunFinished():
            return f"{'stopped' if event.stopped else 'finished'} after step {event.steps}"
        case _:
            return event.kind
