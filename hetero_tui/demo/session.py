"""Runs one command as sshd does: a shell in its own session, three pipes, an exit status out."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import asyncssh

from hetero_tui import deadlines
from hetero_tui.transport.processes import Spawned, spawn

_CHUNK = 64 * 1024
_NO_SHELL = "a machine of the demo gives no terminal, since it is this computer: its files are in"


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


class CommandSession:
    """One channel: runs the command that is asked for through ``/bin/sh``; has no shell, terminal or subsystem.

    A command ends with its channel, together with its process group; what made a session of its own (``setsid``)
    lives on. Signals are not passed on, as by sshd before OpenSSH 7.9.
    """

    def __init__(
        self,
        machine: Machine,
        stdin: asyncssh.SSHReader[bytes],
        stdout: asyncssh.SSHWriter[bytes],
        stderr: asyncssh.SSHWriter[bytes],
    ) -> None:
        self._machine = machine
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._channel = cast("asyncssh.SSHServerChannel[bytes]", stdout.channel)
        self._sent = 0
        self._waits = 0  # outputs of which the client takes no more just now

    @classmethod
    def begin(cls, machine: Machine, *streams: Any) -> None:
        """Run the command beside this; ``streams`` are the channel's stdin, stdout and stderr."""
        task = asyncio.create_task(cls(machine, *streams)._run(), name="embedded command")  # noqa: SLF001 - its own
        machine.running.add(task)
        task.add_done_callback(machine.running.discard)

    async def _run(self) -> None:
        command = self._channel.get_command()
        if command is None:
            self._stderr.write(f"{_NO_SHELL} {self._machine.home}\n".encode())
            self._channel.exit(255)
            return
        words = ("/bin/sh", "-c", command)
        try:
            async with spawn(words, cwd=self._machine.home, env=self._machine.environment) as spawned:
                await self._serve(spawned)
        except OSError as error:
            self._stderr.write(f"sh: {error.strerror}\n".encode())
            self._channel.exit(126)

    async def _serve(self, spawned: Spawned) -> None:
        ended = asyncio.create_task(spawned.wait())
        closed = asyncio.create_task(self._channel.wait_closed())
        incoming = asyncio.create_task(self._feed(spawned.stdin))
        outgoing = [
            asyncio.create_task(self._send(spawned.stdout, self._stdout)),
            asyncio.create_task(self._send(spawned.stderr, self._stderr)),
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

    async def _drain(self, outgoing: list[asyncio.Task[None]], closed: asyncio.Task[None]) -> None:
        """Send what the command left in its pipes, at the client's pace.

        A child in the background may hold the pipes open for ever: when the client could take more and nothing has
        come for a moment, the command counts as done.
        """
        drained = asyncio.gather(*outgoing)
        while True:
            before = self._sent
            await asyncio.wait((drained, closed), timeout=deadlines.COMMAND_END, return_when=asyncio.FIRST_COMPLETED)
            if drained.done() or closed.done() or (not self._waits and self._sent == before):
                return

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        """Give the command what the client sends; one that does not read it all is no error."""
        with contextlib.suppress(asyncssh.Error):
            while not self._stdin.at_eof():
                with contextlib.suppress(asyncssh.SignalReceived, OSError):
                    data = await self._stdin.read(_CHUNK)
                    if not stdin.is_closing():
                        stdin.write(data)
                        await stdin.drain()
        stdin.close()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncssh.SSHWriter[bytes]) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                self._waits += 1
                await writer.drain()
                self._waits -= 1
                self._sent += len(data)

    def _report(self, status: int) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            if status < 0:
                self._channel.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
            else:
                self._channel.exit(status)
