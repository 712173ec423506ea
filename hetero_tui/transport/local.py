"""This computer, without SSH: the same interface over plain processes, each in its own session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hetero_tui import deadlines
from hetero_tui.errors import CommandFailed
from hetero_tui.inventory import Host
from hetero_tui.transport.commands import CommandTransport, Running, check_words

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
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True, cwd=Path.home()
            )
        except FileNotFoundError:
            yield _NotStarted(f"{words[0]}: not found\n", _NOT_FOUND)
            return
        except PermissionError:
            yield _NotStarted(f"{words[0]}: cannot execute\n", _NOT_EXECUTABLE)
            return
        except OSError as error:
            cause = f"{words[0]} can't be started: {error.strerror}"
            raise CommandFailed(self.host, cause, step=step, hint="end other programs, then try again") from None
        running = _LocalCommand(process)
        try:
            yield running
        finally:
            await running.end()

    @asynccontextmanager
    async def forward(self, port: int) -> AsyncIterator[int]:
        """The port itself: it is on this computer already."""
        yield port

    async def round_trip(self) -> float:
        """Seconds until the event loop comes round: there is no network in between."""
        began = time.perf_counter()
        await asyncio.sleep(0)
        return time.perf_counter() - began

    def accept_offered_key(self) -> bool:
        """This computer has no host key."""
        return False

    async def close(self) -> None:
        """Nothing is kept open."""


class _LocalCommand:
    def __init__(self, process: Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr

    async def feed(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a command may end without reading
            for start in range(0, len(data), _CHUNK):
                self._stdin.write(data[start : start + _CHUNK])
                await self._stdin.drain()
            self._stdin.close()
            await self._stdin.wait_closed()

    async def read_stdout(self) -> bytes:
        return await self._stdout.read(_CHUNK)

    async def read_stderr(self) -> bytes:
        return await self._stderr.read(_CHUNK)

    async def wait(self) -> int:
        return await self._process.wait()

    async def end(self) -> None:
        self._stdin.close()
        if self._process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(deadlines.COMMAND_END):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            if self._process.returncode is None:
                self._signal(signal.SIGKILL)
                await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class _NotStarted:
    """What a shell would have said about a program that is not there."""

    def __init__(self, message: str, status: int) -> None:
        self._message = message.encode()
        self._status = status

    async def feed(self, data: bytes) -> None:
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
