"""Reads files only if they are regular: a pipe or a device in the place of one would block, or never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST_BYTES = 16 << 20
"""None of our own files that are read whole is as long."""


def read_text(path: Path) -> str:
    """The text of a plain file.

    Raises:
        OSError: there is none, or it is something else: a pipe would be waited for, and a device has no end.
        UnicodeDecodeError: it is no text.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no plain file")
        return file.read(MOST_BYTES).decode()
