"""Runs one command as sshd does: a shell in its own session, three pipes, signals in, an exit status out."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from hetero_tui import deadlines
from hetero_tui.transport.processes import Spawned, spawn

_CHUNK = 64 * 1024
_SIGNALS = {number.name.removeprefix("SIG"): number for number in signal.Signals}
_MAX_PENDING = 1024 * 1024  # bytes of stdin that wait for the command before the client is slowed down


@dataclass
class Machine:
    """What the sessions of one embedded machine share: where commands start, and what is open now."""

    home: Path
    environment: Mapping[str, str]
    connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    async def close(self) -> None:
        """Break all connections; what runs in them is ended, as by the hang-up of a real machine's sshd."""
        for connection in list(self.connections):
            connection.abort()
        if self.running:
            _, pending = await asyncio.wait(set(self.running), timeout=deadlines.CLOSE)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)


class CommandSession(asyncssh.SSHServerSession[bytes]):
    """One channel: runs the command that is asked for through ``/bin/sh``; has no shell, terminal or subsystem.

    A command ends with its channel, together with its process group; what made a session of its own (``setsid``)
    lives on.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._command = ""
        self._spawned: Spawned | None = None
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._pending = 0
        self._sent = 0
        self._closed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def exec_requested(self, command: str) -> bool:
        self._command = command
        return True

    def session_started(self) -> None:
        task = asyncio.get_running_loop().create_task(self._run(), name=f"embedded command {self._command[:40]}")
        self._machine.running.add(task)
        task.add_done_callback(self._machine.running.discard)

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        self._pending += len(data)
        if self._pending > _MAX_PENDING:
            self._channel.pause_reading()
        self._input.put_nowait(data)

    def eof_received(self) -> bool:
        self._input.put_nowait(b"")
        return True  # the other direction stays open

    def signal_received(self, signal: str) -> None:
        number = _SIGNALS.get(signal)
        if self._spawned is not None and number is not None:
            self._spawned.signal_group(number)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self._writable.set()

    async def _run(self) -> None:
        words = ("/bin/sh", "-c", self._command)
        try:
            async with spawn(words, cwd=self._machine.home, env=self._machine.environment) as spawned:
                self._spawned = spawned
                await self._serve(spawned)
        except OSError as error:
            self._channel.write(f"sh: {error.strerror}\n".encode(), asyncssh.EXTENDED_DATA_STDERR)
            self._channel.exit(126)

    async def _serve(self, spawned: Spawned) -> None:
        ended = asyncio.create_task(spawned.wait())
        closed = asyncio.create_task(self._closed.wait())
        incoming = asyncio.create_task(self._feed(spawned.stdin))
        outgoing = [
            asyncio.create_task(self._send(spawned.stdout, None)),
            asyncio.create_task(self._send(spawned.stderr, asyncssh.EXTENDED_DATA_STDERR)),
        ]
        try:
            await asyncio.wait((ended, closed), return_when=asyncio.FIRST_COMPLETED)
            if not closed.done():
                await self._drain(outgoing, closed)
                self._report(ended.result())
        finally:
            await spawned.end(signal.SIGHUP)
            for task in (ended, closed, incoming, *outgoing):
                task.cancel()
            await asyncio.gather(ended, closed, incoming, *outgoing, return_exceptions=True)

    async def _drain(self, outgoing: list[asyncio.Task[None]], closed: asyncio.Task[bool]) -> None:
        """Send what the command left in its pipes, at the client's pace.

        A child in the background may hold the pipes open for ever: when the client could take more and nothing has
        come for a moment, the command counts as done.
        """
        drained = asyncio.gather(*outgoing)
        while True:
            before = self._sent
            await asyncio.wait((drained, closed), timeout=deadlines.COMMAND_END, return_when=asyncio.FIRST_COMPLETED)
            if drained.done() or closed.done() or (self._writable.is_set() and self._sent == before):
                return

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        broken = False
        while data := await self._input.get():
            with contextlib.suppress(OSError):
                if not broken:
                    broken = True
                    stdin.write(data)
                    await stdin.drain()
                    broken = False
            self._pending -= len(data)
            if self._pending <= _MAX_PENDING:
                self._channel.resume_reading()
        stdin.close()

    async def _send(self, reader: asyncio.StreamReader, datatype: asyncssh.DataType) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await reader.read(_CHUNK):
                await self._writable.wait()
                self._channel.write(data, datatype)
                self._sent += len(data)

    def _report(self, status: int) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            if status < 0:
                self._channel.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
            else:
                self._channel.exit(status)
