"""Another program on the terminal while the app stands back: an editor, a shell on a machine."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from textual.app import App, SuspendNotSupported

from hetero_tui.text import HostText, last_lines

_SSH_FAILED = 255
"""The exit status of ssh where it, and not the shell on the host, failed."""

_LAST_WORD = re.compile(r"Connection to \S+ closed\.")

_MOST_ERRORS = 1 << 16
"""Bytes that are read of what ssh wrote."""


async def run(app: App[Any], command: Sequence[str]) -> str:
    """Run a program on the app's terminal, and draw the app again; the answer says why that failed, or is empty.

    Nothing is drawn meanwhile, but all else goes on: hosts are listened to, and what is under way is not held up.
    """
    try:
        with app.batch_update(), app.suspend():
            failure = await _ended(command)  # which raises nothing: the app would not come back to the terminal
    except SuspendNotSupported:
        return "this terminal can't be handed to another program"
    app.refresh(layout=True)
    return failure


async def _ended(command: Sequence[str]) -> str:
    """Wait until a program has ended; why it could not be run, or nothing.

    What ``ssh`` itself writes would be drawn over. It goes into a file, since a connection that it shares with later
    calls (``ControlPersist``) would keep a pipe open; its questions are on the terminal.
    """
    is_ssh = command[0] == "ssh"
    try:
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(*command, stderr=errors if is_ssh else None)
            try:
                status = await process.wait()
            finally:
                with suppress(ProcessLookupError):  # it has ended, unless the app is ended from outside
                    process.terminate()
            errors.seek(0)
            text = errors.read(_MOST_ERRORS)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if not is_ssh or status != _SSH_FAILED:
        return ""
    said = last_lines(HostText(text.decode("utf-8", "replace")), 2, 400).splitlines()
    reasons = [line for line in said if not _LAST_WORD.fullmatch(line)]
    return reasons[-1] if reasons else "ssh failed"


def editor() -> list[str]:
    """The user's editor as a command's words."""
    words = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        return shlex.split(words)
    except ValueError:
        return [words]
