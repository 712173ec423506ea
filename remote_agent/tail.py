"""The lines of a file from its end on: what a long run has written is too much to be read whole.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

BLOCK_BYTES = 1 << 16
"""How much is read at a time; a step with 50 workers is under 16 KiB."""


def lines_from_end(file: BinaryIO, longest: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(offset of its first byte, line without its newline) of each whole line, the last one first.

    What follows the last newline is no line yet. Lines that are added meanwhile do not come. At a line of more than
    ``longest`` bytes (zeros, after a power cut) it ends.
    """
    begin = file.seek(0, os.SEEK_END)
    end, rest, is_whole = begin, b"", False
    while begin:
        size = min(BLOCK_BYTES, begin)
        begin = file.seek(begin - size)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        if longest is not None and len(rest) > longest:
            begin = 0
        for line in reversed(lines):
            end -= len(line)
            if is_whole:
                yield end, line
            end, is_whole = end - 1, True
    if is_whole and (longest is None or len(rest) <= longest):
        yield 0, rest


def end_of_lines(file: BinaryIO) -> int:
    """Bytes up to the end of the last whole line."""
    return next((offset + len(line) + 1 for offset, line in lines_from_end(file)), 0)


def new_lines(path: Path, offset: int, most: int = -1) -> bytes:
    """The whole lines from ``offset`` on, of so many bytes at most; none while there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            found = file.read(most)
    except OSError:
        return b""
    return found[: found.rfind(b"\n") + 1]


def size_of(path: Path) -> int:
    """Bytes of a file; 0 while there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
