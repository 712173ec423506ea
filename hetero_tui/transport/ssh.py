"""A host over SSH: one connection that all tasks share, opened on first use and again after it broke."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import asyncssh

from hetero_tui import deadlines
from hetero_tui.errors import HostError, Unreachable, UsageError
from hetero_tui.inventory import Host, Inventory
from hetero_tui.transport import failures
from hetero_tui.transport.commands import CommandTransport
from hetero_tui.transport.connection import Attempt, Dialled, Dialler
from hetero_tui.transport.failures import SSH_ERRORS
from hetero_tui.transport.host_keys import OfferedKey
from hetero_tui.transport.ssh_command import SshCommand, command_line

_MOST_CONNECTIONS = 8
"""To a host whose server allows few sessions on each (MaxSessions)."""

RELEASE_S, RELEASE_PAUSE_S = 2.0, 0.1
"""Within this a busy server releases the session of a command that has ended; and the pause between two tries."""


class SshTransport(CommandTransport):
    """See :class:`~hetero_tui.transport.base.Transport`.

    Nothing here waits between attempts: the follower of a stream opens it again after
    :func:`hetero_tui.deadlines.reconnect_pauses`, and a single command fails at once with the reason.

    Attributes:
        offered: The key of a host that was never seen, after HostKeyUnknown; :meth:`OfferedKey.accept` trusts it.
    """

    def __init__(
        self,
        host: Host,
        inventory: Inventory,
        *,
        accept_new_host_keys: bool = False,
        config: tuple[Path, ...] | None = None,
    ) -> None:
        self.host = host.name
        self.address: str | None = None
        self.offered: OfferedKey | None = None
        self._dialler = Dialler(host, inventory, accept_new_host_keys=accept_new_host_keys, config=config)
        self._current: Dialled | None = None
        self._dialling: asyncio.Task[Dialled] | None = None
        self._further: list[Dialled] = []
        self._closed = False

    async def connect(self) -> None:
        """Connect if not connected; callers at the same time share one attempt."""
        await self._connected()

    def accept_offered_key(self, fingerprint: str | None = None) -> bool:
        """Trust, from now on, exactly the key that was shown in HostKeyUnknown; false when there is none.

        With ``fingerprint``, only if it is still that of the key.

        Raises:
            HostError: known_hosts can't be written.
        """
        if self.offered is None or fingerprint not in (None, self.offered.fingerprint):
            return False
        try:
            self.offered.accept()
        except OSError as error:
            raise HostError(
                self.host,
                f"{self.offered.path} can't be written: {error.strerror}",
                step="accept host key",
                hint="give yourself the right to write that file",
            ) from None
        self.offered = None
        return True

    @asynccontextmanager
    async def start(self, command: Sequence[str], step: str) -> AsyncIterator[SshCommand]:
        """Start a command without a terminal; leaving the context ends it on the host."""
        line = command_line(command)
        place = replace((await self._connected()).place, step=step)
        try:
            process = await self._session(line)
        except SSH_ERRORS as error:
            raise failures.explain(error, place) from None
        running = SshCommand(self._session, process, place)
        try:
            yield running
        finally:
            await running.end()

    @asynccontextmanager
    async def forward(self, port: int, local: int = 0) -> AsyncIterator[int]:
        """A port of this computer's loopback that leads to ``port`` of the host's, through SSH."""
        dialled = await self._connected()
        try:
            listener = await dialled.connection.forward_local_port("127.0.0.1", local, "127.0.0.1", port)
        except OSError as error:
            cause = f"port {local} of this computer can't be had: {error.strerror}"
            raise UsageError(cause, step="forward port", hint="choose another with --port") from None
        except SSH_ERRORS as error:
            raise failures.explain(error, replace(dialled.place, step="forward port")) from None
        try:
            yield listener.get_port()
        finally:
            listener.close()
            await listener.wait_closed()

    async def round_trip(self) -> float:
        """Seconds until the host's SSH server answers a keepalive: no process is started there for a measurement."""
        dialled = await self._connected()
        place = replace(dialled.place, step="round trip")
        began = time.perf_counter()
        try:
            async with asyncio.timeout(deadlines.COMMAND):
                # Refused or not, it is answered (RFC 4254, 4); asyncssh itself sends the same after a silence.
                await dialled.connection._make_global_request(b"keepalive@openssh.com")  # noqa: SLF001 - no public one
                seconds = time.perf_counter() - began
                await asyncio.sleep(0)  # the end of a connection answers too, and is seen in the loop's next round
        except TimeoutError:
            cause = f"{place.endpoint} gave no sign of life for {deadlines.COMMAND:g} s"
            raise Unreachable(self.host, cause, step=place.step, hint="it is tried again by itself") from None
        except SSH_ERRORS as error:
            raise failures.explain(error, place) from None
        if dialled.connection.is_closed():
            raise failures.lost(place)
        return seconds

    async def close(self) -> None:
        """Close the connection and its jumps; the transport can't be used afterwards."""
        self._closed = True
        if self._dialling is not None and not self._dialling.done():
            self._dialling.cancel()
            await asyncio.gather(self._dialling, return_exceptions=True)
        opened = [*([self._current] if self._current is not None else []), *self._further]
        self._current, self._further = None, []
        for dialled in opened:
            dialled.close()
        connections = [
            connection for dialled in opened for connection in (dialled.connection, *reversed(dialled.jumps))
        ]
        with contextlib.suppress(TimeoutError, *SSH_ERRORS):
            async with asyncio.timeout(deadlines.CLOSE):
                for connection in connections:
                    await connection.wait_closed()
        for connection in connections:
            connection.abort()

    async def _session(self, line: str) -> asyncssh.SSHClientProcess[bytes]:
        """A command of the host's shell on the first connection that takes it: a server may allow few on each.

        Raises:
            HostError: no connection can be made.
            SSH_ERRORS: the server refuses it on every connection.
        """
        refused: list[Dialled] = []
        ends = time.monotonic() + RELEASE_S
        while True:
            self._further = [each for each in self._further if not each.connection.is_closed()]
            known = [await self._connected(), *self._further]
            dialled = next((each for each in known if each not in refused), None)
            if dialled is None:
                dialled = await self._dialler.dial(self._dialler.attempt())
                if self._closed:
                    dialled.close()
                self._further.append(dialled)
            try:
                return await dialled.connection.create_process(line, encoding=None, request_pty=False, term_type=None)
            except asyncssh.ChannelOpenError:
                is_full = len(refused) == _MOST_CONNECTIONS
                if dialled.connection.is_closed() or (is_full and time.monotonic() > ends):
                    raise
                refused = [] if is_full else [*refused, dialled]
                if is_full:
                    await asyncio.sleep(RELEASE_PAUSE_S)

    async def _connected(self) -> Dialled:
        if self._closed:
            raise Unreachable(self.host, "this connection was closed for good", step="connect", hint="open a new one")
        if self._current is not None and not self._current.connection.is_closed():
            return self._current
        if self._dialling is None or self._dialling.done():
            self._dialling = asyncio.create_task(self._dial(), name=f"connect to {self.host}")
            self._dialling.add_done_callback(_retrieve)
        # Shielded: one caller's deadline must not end the attempt for the others.
        return await asyncio.shield(self._dialling)

    async def _dial(self) -> Dialled:
        if self._current is not None:
            self._current.close()  # its jumps may still be open
            self._current = None
        attempt: Attempt = self._dialler.attempt()
        try:
            dialled = await self._dialler.dial(attempt)
        finally:
            self.offered = attempt.offered
        self._current, self.address = dialled, dialled.address
        return dialled


def _retrieve(task: asyncio.Task[Dialled]) -> None:
    """An attempt whose callers all gave up: its error has no reader, so it is not reported as never retrieved."""
    if not task.cancelled():
        task.exception()
