"""``order.jsonl``: the samples of each epoch, where a sampler of the user's says which they are.

So a run that goes on, and a coordinator that takes over, use the epoch under way as it was drawn, and a reader can see
which samples were used. Lines of one epoch: ``{"epoch": 3, "samples": [17, 4, ...]}``, as many as it takes, then
``{"epoch": 3, "end": 50000}`` with the number of its samples, and, of a batch sampler, ``"batches": [4, 3, ...]``, the
samples of each batch. An epoch without that end is none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remote_agent.training.errors import StorageError
from remote_agent.training.shared.slices import Indices

FILE = "order.jsonl"
"""The record's name in a run's folder."""

_LINE_SAMPLES = 1 << 16
"""Samples of a line: a line has to be short enough to be sent to other hosts at once."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a sampler gave for an epoch: its samples, and those of each batch where it made the batches, too."""

    indices: Indices
    batches: Indices | None = None


class OrderRecord:
    """The epochs on record; appends to them.

    Args:
        earlier: the folder of the run that this one goes on from, or its own; None: it begins, with an empty record.

    Raises:
        StorageError: the file can't be read or written.
    """

    def __init__(self, folder: Path, earlier: Path | None) -> None:
        self._path = folder / FILE
        self._places: list[tuple[int, int]] = []  # begin and end of each epoch's lines
        try:
            if earlier is None:
                self._path.unlink(missing_ok=True)
            elif earlier != folder and (earlier / FILE).is_file():
                shutil.copyfile(earlier / FILE, self._path)
            if self._path.is_file():
                self._find()
        except OSError as error:
            raise StorageError.of(self._path, error, "read or write") from error

    def __len__(self) -> int:
        return len(self._places)

    def epoch(self, number: int) -> Drawn:
        """Epoch ``number``, from 0, which is on record; raises StorageError."""
        begin, end = self._places[number]
        try:
            with self._path.open("rb") as file:
                file.seek(begin)
                lines = [json.loads(line) for line in file.read(end - begin).splitlines()]
        except OSError as error:
            raise StorageError.of(self._path, error, "read or write") from error
        parts = [np.array(line["samples"], np.int64) for line in lines[:-1]]
        sizes = lines[-1].get("batches")
        return Drawn(np.concatenate(parts), None if sizes is None else np.array(sizes, np.int64))

    def write(self, drawn: Drawn) -> None:
        """Add the next epoch; raises StorageError."""
        number, total = len(self._places), len(drawn.indices)
        lines: list[dict[str, object]] = [
            {"epoch": number, "samples": drawn.indices[begin : begin + _LINE_SAMPLES].tolist()}
            for begin in range(0, total, _LINE_SAMPLES)
        ]
        lines.append({"epoch": number, "end": total})
        if drawn.batches is not None:
            lines[-1]["batches"] = drawn.batches.tolist()
        written = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        try:
            with self._path.open("ab") as file:
                begin = file.tell()
                file.write(written)
        except OSError as error:
            raise StorageError.of(self._path, error, "read or write") from error
        self._places.append((begin, begin + len(written)))

    def _find(self) -> None:
        """Find the epochs that are whole, and cut off what a killed coordinator left of another one."""
        with self._path.open("r+b") as file:
            self._places = list(_places(file))
            file.truncate(self._places[-1][1] if self._places else 0)


def _places(lines: Iterable[bytes]) -> Iterable[tuple[int, int]]:
    """(begin, end) in bytes of the lines of each whole epoch."""
    begin = end = 0
    for line in lines:
        end += len(line)
        if b'"end":' in line and line.endswith(b"\n"):
            yield begin, end
            begin = end
