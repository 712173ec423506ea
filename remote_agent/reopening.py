"""Opening a run's ``events.jsonl`` again, so that the run can go on. Standard library only.

A final event is the last line of its file; a run that goes on takes it back, and says in ``run_resumed`` what it was. A
line that a killed coordinator left half-written goes as well. So the numbers go on without a gap.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from remote_agent import protocol, tail
from remote_agent.states import RunState, stands_at


@dataclass(frozen=True)
class Reopened:
    """An events file that can be continued: ``seq`` is its last number, ``size`` its bytes, ``ended`` how it ended.

    ``step`` is the last step that it tells of; 0: it tells of none. ``left`` is the head that was lost since then.
    """

    seq: int
    size: int
    ended: str = ""
    step: int = 0
    left: str = ""


def examine(path: Path) -> Reopened:
    """What :func:`reopen` would leave of the file; an empty or missing one has seq 0.

    Raises:
        OSError: it can't be read.
        protocol.ProtocolError: a line before the last one is no event.
    """
    seq = size = step = 0
    left = ""
    final: protocol.Event | None = None
    for number, event, end in _from_end(path):
        if event is not None and event.kind in protocol.FINAL_KINDS and not seq:
            final = event
            continue
        if not seq:
            seq, size = number, end
        if isinstance(event, protocol.HeadLost):
            left = event.host
        if isinstance(event, protocol.Step | protocol.RunResumed):
            step = event.step
            break
    return Reopened(seq, size, "" if final is None else _words(final, step), step, left)


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


def add(path: Path, lines: Iterable[str]) -> None:
    """Add events that the file lacks: of ``lines``, in their order, those that go on from its last number.

    Raises:
        OSError: the file can't be changed.
        protocol.ProtocolError: as :func:`examine`, or one of ``lines`` is no event.
    """
    seq, size = next(((number, end) for number, _, end in _from_end(path)), (0, 0))
    added: list[str] = []
    for line in lines:
        number, _ = protocol.decode_numbered(line)
        if number == seq + 1:
            added.append(line)
            seq = number
    if added:
        with path.open("ab") as file:
            file.truncate(size)
            file.write("".join(line.rstrip("\n") + "\n" for line in added).encode())


def _from_end(path: Path) -> Iterator[tuple[int, protocol.Event | None, int]]:
    """(number, event, bytes up to its end) of each event, the last one first; none where there is no file."""
    if path.is_file():
        with path.open("rb") as file:
            for offset, line in tail.lines_from_end(file):
                number, event = protocol.decode_numbered(line.decode("utf-8", "replace"))
                yield number, event, offset + len(line) + 1


def say_head_lost(path: Path, host: str, step: int, cause: str) -> None:
    """Add ``head_lost`` to a file that was reopened: the machine that wrote it until now is gone.

    Raises:
        OSError: the file can't be changed.
        protocol.ProtocolError: as :func:`examine`.
    """
    event = protocol.HeadLost(seq=examine(path).seq + 1, time=time.time(), host=host, step=step, cause=cause)
    with path.open("a", encoding="utf-8") as file:
        file.write(protocol.encode(event) + "\n")


def _words(event: protocol.Event, step: int) -> str:
    """How a run ended that has made ``step`` steps."""
    match event:
        case protocol.RunFailed():
            return f"failed {stands_at(RunState.FAILED, step)}: {event.cause}"
        case protocol.RunFinished():
            return f"{'stopped' if event.stopped else 'finished'} after step {event.steps}"
        case _:
            return event.kind
