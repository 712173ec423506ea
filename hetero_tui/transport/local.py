"""This computer, without SSH: the same interface over plain processes, each in its own session."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hetero_tui.errors import CommandFailed
from hetero_tui.inventory import Host
from hetero_tui.transport.commands import CommandTransport, Running, check_words
from hetero_tui.transport.processes import Spawned, spawn

_CHUNK = 64 * 1024
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # a shell's exit statuses, POSIX 2.8.2


class LocalTransport(CommandTransport):
    """See :class:`~hetero_tui.transport.base.Transport`; commands start in the user's home folder."""

    def __init__(self, host: Host) -> None:
        self.host = host.name
        self.address: str | None = "127.0.0.1"

    async def connect(self) -> None:
        """This computer is always there."""

    @asynccontextmanager
    async def start(self, command: Sequence[str], step: str) -> AsyncIterator[Running]:
        """Start a command in its own session; leaving the context ends its process group."""
        words = check_words(command)
        async with contextlib.AsyncExitStack() as stack:
            running: Running
            try:
                running = _LocalCommand(await stack.enter_async_context(spawn(words, cwd=Path.home())))
            except FileNotFoundError:
                running = _NotStarted(f"{words[0]}: not found\n", _NOT_FOUND)
            except PermissionError:
                running = _NotStarted(f"{words[0]}: cannot execute\n", _NOT_EXECUTABLE)
            except OSError as error:
                cause = f"{words[0]} can't be started: {error.strerror}"
                raise CommandFailed(self.host, cause, step=step, hint="end other programs, then try again") from None
            try:
                yield running
            finally:
                await running.end()

    @asynccontextmanager
    async def forward(self, port: int, local: int = 0) -> AsyncIterator[int]:
        """It is this computer's own port."""
        yield port

    async def round_trip(self) -> float:
        """Seconds until the event loop comes round: there is no network in between."""
        began = time.perf_counter()
        await asyncio.sleep(0)
        return time.perf_counter() - began

    def accept_offered_key(self, fingerprint: str | None = None) -> bool:
        """This computer has no host key."""
        return False

    async def close(self) -> None:
        """Nothing is kept open."""


class _LocalCommand:
    said_before = None

    def __init__(self, spawned: Spawned) -> None:
        self._spawned = spawned

    async def feed(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a command may end without reading
            for start in range(0, len(data), _CHUNK):
                self._spawned.stdin.write(data[start : start + _CHUNK])
                await self._spawned.stdin.drain()
            self._spawned.stdin.close()
            await self._spawned.stdin.wait_closed()

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._spawned.stdin.write(data)
            await self._spawned.stdin.drain()

    async def read_stdout(self) -> bytes:
        return await self._spawned.stdout.read(_CHUNK)

    async def read_stderr(self) -> bytes:
        return await self._spawned.stderr.read(_CHUNK)

    async def wait(self) -> int:
        return await self._spawned.wait()

    async def end(self) -> None:
        await self._spawned.end()


class _NotStarted:
    """What a shell would have said about a program that is not there."""

    said_before = None

    def __init__(self, message: str, status: int) -> None:
        self._message = message.encode()
        self._status = status

    async def feed(self, data: bytes) -> None:
        pass

    async def write(self, data: bytes) -> None:
        pass

    async def read_stdout(self) -> bytes:
        return b""

    async def read_stderr(self) -> bytes:
        message, self._message = self._message, b""
        return message

    async def wait(self) -> int:
        return self._status

    async def end(self) -> None:
        pass
