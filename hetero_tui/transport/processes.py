"""A local process in a session of its own, with three pipes that are surely closed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hetero_tui import deadlines

_BUFFER = 256 * 1024


@dataclass(frozen=True)
class Spawned:
    """A process that leads its own session and process group."""

    pid: int
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    _transport: asyncio.SubprocessTransport
    _exited: asyncio.Event

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        return self._transport.get_returncode()

    async def wait(self) -> int:
        """The exit status once the process has ended, even if another one holds its pipes."""
        await self._exited.wait()
        status = self.returncode
        assert status is not None
        return status

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the whole group while its leader lives; nothing happens after that."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def end(self, first: signal.Signals = signal.SIGTERM) -> None:
        """Ask the group to end by ``first``; SIGKILL follows. Returns when the leader is gone."""
        if self.returncode is not None:
            return
        self.signal_group(first)
        try:
            async with asyncio.timeout(deadlines.COMMAND_END):
                await self.wait()
        except TimeoutError:
            pass
        finally:
            self.signal_group(signal.SIGKILL)
            await self.wait()


@asynccontextmanager
async def spawn(words: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> AsyncIterator[Spawned]:
    """Start ``words``; leaving the context closes the pipes, also where a grandchild still holds their other ends.

    The pipes are why this does not use ``create_subprocess_exec``: its Process can't close them.

    Raises:
        OSError: the program can't be started.
    """
    loop = asyncio.get_running_loop()
    protocol = _Protocol(limit=_BUFFER, loop=loop)
    transport, _ = await loop.subprocess_exec(
        lambda: protocol, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True, cwd=cwd, env=env
    )
    process = Process(transport, protocol, loop)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield Spawned(process.pid, process.stdin, process.stdout, process.stderr, transport, protocol.exited)
    finally:
        transport.close()
        await asyncio.sleep(0)  # the pipes close in the loop's next round


class _Protocol(SubprocessStreamProtocol):
    """Tells of the process's end at once; ``Process.wait`` tells of it when its pipes have ended too."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=limit, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()
