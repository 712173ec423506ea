"""Refuses places that a command can't write its result to, before it asks any host for it."""

from __future__ import annotations

import os
from pathlib import Path

from hetero_tui.errors import UsageError

ELSEWHERE = "name another place with --output"


def refuse(path: Path, *, step: str = "") -> None:
    """Refuse a file or folder that can't be made; no folder above it is made, since that would hide a misspelled name.

    Raises:
        UsageError: the folder that it is to be in does not exist, is a file, or can't be written to; or it exists and
            can't be written to.
    """
    parent = path.absolute().parent
    there = next(place for place in (parent, *parent.parents) if place.exists())
    if not there.is_dir():
        why, hint = f"{there} is a file", ELSEWHERE
    elif there != parent:
        why, hint = f"there is no folder {parent}", f"make it, or {ELSEWHERE}"
    elif not os.access(path if path.exists() else parent, os.W_OK):
        why, hint = f"{path if path.exists() else parent} can't be written to", ELSEWHERE
    else:
        return
    raise UsageError(f"{path} can't be written: {why}", step=step, hint=hint)


def refuse_for_file(path: Path) -> None:
    """The same of a file; a folder is not replaced by one. Raises as :func:`refuse` does."""
    refuse(path)
    if path.is_dir():
        raise UsageError(f"{path} can't be written: it is a folder", hint=ELSEWHERE)
