"""The one interface to a host: run, stream, put, forward.

A command is a sequence of words; the transport quotes them for the host's POSIX shell, so no word is ever
interpreted. ``~`` is not expanded: give paths relative to the login user's home, where every command starts.
Every failure is a :class:`~hetero_tui.errors.HostError` with the host's inventory name and the given ``step``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from hetero_tui.text import HostText


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended by itself. ``exit_status`` is negative for a signal, as in :mod:`subprocess`."""

    exit_status: int
    stdout: HostText
    stderr: HostText


class Conversation(Protocol):
    """A command that is asked and answers, line by line. ``lines`` are of its stdout; see :meth:`Transport.stream`."""

    lines: AsyncIterator[HostText]

    async def say(self, data: bytes) -> None:
        """Write to its stdin; what a command that has ended is told is lost."""

    async def finish(self) -> None:
        """End its stdin."""


class Transport(Protocol):
    """One host, reached. Safe to use from many tasks of one event loop; it connects by itself and reconnects.

    Attributes:
        host: The host's name in the inventory.
        address: The IP address that the connection really went to (``127.0.0.1`` for this computer); None before
            the first connection or when it went through another host.
    """

    host: str
    address: str | None

    async def connect(self) -> None:
        """Connect if not connected. Raises Unreachable, AuthenticationFailed, HostKeyUnknown, HostKeyChanged."""

    async def run(self, command: Sequence[str], *, step: str, deadline: float, stdin: bytes | None = None) -> Completed:
        """Run to the end. Raises DeadlineExceeded after ``deadline`` seconds (the command is then ended), Unreachable.

        A non-zero exit status is returned, not raised. Output is decoded as UTF-8 with replacement.
        """

    def stream(
        self, command: Sequence[str], *, step: str, silence: float, stdin: bytes | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[HostText]]:
        """Lines of stdout as they come, without their newline; leaving the context ends the command on the host.

        Without ``stdin`` the command's stdin stays open until then: its end tells it that its reader is gone.

        Raises Unreachable inside the loop when the connection breaks or nothing came for ``silence`` seconds, and
        CommandFailed when the command ends with a status other than 0 (its stderr's last lines in ``output``).
        """

    def converse(
        self, command: Sequence[str], *, step: str, silence: float
    ) -> AbstractAsyncContextManager[Conversation]:
        """A command whose stdin is written to while its lines come; leaving the context ends it. As :meth:`stream`."""

    def forward(self, port: int, local: int = 0) -> AbstractAsyncContextManager[int]:
        """Reach ``port`` of the host's loopback at a port of this computer's loopback: ``local``, or with 0 any.

        Leaving the context closes it. Raises UsageError where ``local`` is taken, HostError.
        """

    async def put(self, data: bytes, path: str, *, step: str, deadline: float, mode: int = 0o600) -> None:
        """Write a file on the host, whole or not at all (temporary name, then rename); parents are made 0700."""

    async def round_trip(self) -> float:
        """Seconds for one small question and answer over the open connection."""

    def accept_offered_key(self, fingerprint: str | None = None) -> bool:
        """Trust, from now on, the key that was shown in HostKeyUnknown; false when none was, or another one.

        ``fingerprint``: of the key that the user saw; None: the newest. Raises HostError.
        """

    async def close(self) -> None:
        """Close; idempotent, never raises for a connection that is already gone."""
