"""Keeps the supervisor's state on disk, and decides how long it waits between attempts to start Ray.

``<folder>/supervision.json`` is written by the supervisor alone; ``node`` and the samples read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote_agent import deadlines, plain_file
from remote_agent.host import processes
from remote_agent.protocol import ProtocolError, decode, encode

WATCHING = "watching"
"""Ray runs and has joined."""

RESTARTING = "restarting"
"""Ray ended, and is on its way back."""

ENDED = "ended"
"""Ray ended and is not started again: this machine is the head, and an empty head would not know the run."""


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """The supervisor's state.

    ``since`` is when ``phase`` began and ``ended`` when Ray ended last (0: never), in seconds since the epoch.
    ``restarts`` counts the times that it joined again, ``failures`` the attempts that came to nothing. ``cause`` and
    ``hint`` say why Ray ended, or why it is not back yet.
    """

    phase: str
    since: float
    ended: float = 0.0
    restarts: int = 0
    failures: int = 0
    cause: str = ""
    hint: str = ""


def path(folder: Path) -> Path:
    """Where the supervisor's state lies."""
    return folder / "supervision.json"


def read(folder: Path) -> Supervision | None:
    """The supervisor's state; None when there is none."""
    try:
        return decode(Supervision, plain_file.read_text(path(folder)))
    except (OSError, ProtocolError, UnicodeDecodeError):
        return None


def write(folder: Path, state: Supervision) -> None:
    """Replace the supervisor's state, whole or not at all."""
    processes.write_private(path(folder), encode(state) + "\n")


def forget(folder: Path) -> None:
    """Remove a supervisor's state that is not true any more; nothing happens when there is none."""
    path(folder).unlink(missing_ok=True)


def pause_before(attempt: int) -> float:
    """Seconds to wait before an attempt to start Ray, counted from 1 since it last ran for a while.

    The first comes at once; then the pause doubles, up to the longest.
    """
    if attempt <= 1:
        return 0.0
    # 30 doublings of any pause are longer than any longest one, and a float stays a float.
    return min(deadlines.RESTART_FIRST_SECONDS * 2.0 ** min(attempt - 2, 30), deadlines.RESTART_LONGEST_SECONDS)
