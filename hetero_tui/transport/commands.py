"""Commands on a host, the same for every transport: run to the end, follow line by line, write a file.

A transport says how a command is started (:class:`Running`); deadlines, limits and the ending are here, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from hetero_tui import deadlines
from hetero_tui.errors import BadAnswer, CommandFailed, DeadlineExceeded, HostError, Unreachable
from hetero_tui.text import HostText, last_lines, one_line
from hetero_tui.transport.base import Completed, Conversation

OUTPUT_LIMIT = 8 * 1024 * 1024
"""Bytes of stdout (and of stderr) that ``run`` keeps; a command that prints more is ended."""

LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of the longest line that ``stream`` accepts."""

_TAIL = 16 * 1024

# stdin is counted before the file gets its name: when a connection breaks, cat sees an ordinary end of input.
_PUT = """umask 077
mkdir -p -- "$1" || exit 1
t="$2.part.$$"
trap 'rm -f -- "$t"' EXIT
trap 'exit 1' TERM
cat > "$t" && [ "$(($(wc -c < "$t")))" -eq "$3" ] && chmod "$4" "$t" && mv -f -- "$t" "$2"
"""

# Runs a command for $0 seconds at most, in its process group. A shell that is told to end waits for the command's end.
# Without `sleep` on the host it runs without a limit. What the shell says of a command's end is left out.
_LIMITED = """exec 3>&2 2>/dev/null
(
  trap 'kill "$!"; exit' TERM
  sleep "$0" & wait "$!" || exit
  trap "" TERM; kill -s TERM -- "-$$"; sleep 1; kill -s KILL -- "-$$"
) </dev/null >/dev/null 3>&- &
w=$!
trap : TERM
(exec "$@") 2>&3 3>&-
status=$?
kill "$w" 2>/dev/null; wait "$w" 2>/dev/null
exit "$status"
"""
_SIGNALLED = 128  # a shell's exit status of a command that was ended by a signal is this and the signal's number


class Running(Protocol):
    """A command that was started. Every method raises only HostError."""

    async def feed(self, data: bytes) -> None:
        """Give ``data`` to stdin, then close it; a command that does not read it all is no error."""

    async def write(self, data: bytes) -> None:
        """Give ``data`` to stdin, which stays open; what a command that has ended is given is lost."""

    async def read_stdout(self) -> bytes:
        """Some bytes of stdout; empty at its end."""

    async def read_stderr(self) -> bytes:
        """Some bytes of stderr; empty at its end."""

    async def wait(self) -> int:
        """The exit status (negative: a signal) once the command has ended."""

    @property
    def said_before(self) -> str | None:
        """What a shell said last, which has not come to the command yet; None: it has, or there is no shell."""

    async def end(self) -> None:
        """End the command, with its process group, if it still runs; never raises for one that is gone."""


class CommandTransport:
    """What the two transports share; see :class:`~hetero_tui.transport.base.Transport` for the contract."""

    host: str

    def start(self, command: Sequence[str], step: str) -> AbstractAsyncContextManager[Running]:
        """Start a command; leaving the context ends it. Raises HostError."""
        raise NotImplementedError

    async def run(self, command: Sequence[str], *, step: str, deadline: float, stdin: bytes | None = None) -> Completed:
        """Run to the end; see :meth:`Transport.run <hetero_tui.transport.base.Transport.run>`."""
        begun: Running | None = None
        words = limited(command, deadline + deadlines.VANISHED) if stdin else command
        try:
            async with asyncio.timeout(deadline), self.start(words, step) as running:
                begun = running
                async with asyncio.TaskGroup() as group:
                    group.create_task(running.feed(stdin or b""))
                    stdout = group.create_task(self._collect(running.read_stdout, step))
                    stderr = group.create_task(self._collect(running.read_stderr, step))
                status = await running.wait()
        except TimeoutError:
            raise self._late(command, step, deadline, begun) from None
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None
        if stdin and status > _SIGNALLED:
            status = _SIGNALLED - status
        return Completed(status, _decoded(stdout.result()), _decoded(stderr.result()))

    @asynccontextmanager
    async def stream(
        self, command: Sequence[str], *, step: str, silence: float, stdin: bytes | None = None
    ) -> AsyncIterator[AsyncIterator[HostText]]:
        """Lines of stdout as they come; see :meth:`Transport.stream <hetero_tui.transport.base.Transport.stream>`."""
        async with self._conversation(command, step, silence, stdin) as conversation:
            yield conversation.lines

    def converse(
        self, command: Sequence[str], *, step: str, silence: float
    ) -> AbstractAsyncContextManager[Conversation]:
        """See :meth:`Transport.converse <hetero_tui.transport.base.Transport.converse>`."""
        return self._conversation(command, step, silence)

    @asynccontextmanager
    async def _conversation(
        self, command: Sequence[str], step: str, silence: float, stdin: bytes | None = None
    ) -> AsyncIterator[_Conversation]:
        async with self.start(command, step) as running:
            errors = bytearray()
            helpers = [asyncio.ensure_future(_keep_tail(running.read_stderr, errors))]
            if stdin is not None:  # else stdin stays open: its end tells the command that its reader is gone
                helpers.append(asyncio.ensure_future(running.feed(stdin)))
            lines = self._lines(running, command, step, silence, helpers, errors)
            try:
                yield _Conversation(running, lines)
            finally:
                await lines.aclose()
                for helper in helpers:
                    helper.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)

    async def put(self, data: bytes, path: str, *, step: str, deadline: float, mode: int = 0o600) -> None:
        """Write a file, whole or not at all; see :meth:`Transport.put <hetero_tui.transport.base.Transport.put>`."""
        command = ("sh", "-c", _PUT, "put", posixpath.dirname(path) or ".", path, str(len(data)), f"{mode:o}")
        done = await self.run(command, step=step, deadline=deadline, stdin=data)
        if done.exit_status != 0:
            said = one_line(last_lines(done.stderr, count=1)) or f"exit status {done.exit_status}"
            raise CommandFailed(
                self.host,
                f"{one_line(path)} could not be written: {said}",
                step=step,
                hint="check free space and permissions of that folder on the host",
                output=last_lines(done.stderr),
            )

    async def _lines(
        self,
        running: Running,
        command: Sequence[str],
        step: str,
        silence: float,
        helpers: Sequence[asyncio.Future[None]],
        errors: bytearray,
    ) -> AsyncGenerator[HostText, None]:
        pending = b""
        while True:
            try:
                async with asyncio.timeout(silence):
                    chunk = await running.read_stdout()
            except TimeoutError:
                cause = f"nothing came for {silence:g} s"
                raise Unreachable(
                    self.host, cause, step=step, hint="the connection is opened again on the next try"
                ) from None
            if not chunk:
                break
            *whole, pending = (pending + chunk).split(b"\n")
            for line in whole:
                yield _decoded(line)
            if len(pending) > LINE_LIMIT:
                raise self._too_much(step, "one line", LINE_LIMIT)
        if pending:
            yield _decoded(pending)
        try:
            async with asyncio.timeout(deadlines.COMMAND):
                await helpers[0]
                status = await running.wait()
        except TimeoutError:
            raise self._late(command, step, deadlines.COMMAND, running) from None
        if status != 0:
            output = last_lines(_decoded(bytes(errors)))
            raise CommandFailed(
                self.host,
                f"{_shown(command)} ended {_status(status)}",
                step=step,
                hint="its last words say why" if output else "",
                output=output,
                exit_status=status,
            )

    async def _collect(self, read: Callable[[], Awaitable[bytes]], step: str) -> bytes:
        output = bytearray()
        while chunk := await read():
            output += chunk
            if len(output) > OUTPUT_LIMIT:
                raise self._too_much(step, "its output", OUTPUT_LIMIT)
        return bytes(output)

    def _too_much(self, step: str, what: str, limit: int) -> BadAnswer:
        cause = f"the command was ended: {what} grew past {limit // 2**20} MiB"
        return BadAnswer(self.host, cause, step=step, hint="look for a shell start-up file that prints without end")

    def _late(self, command: Sequence[str], step: str, deadline: float, running: Running | None) -> HostError:
        if running is None:
            cause = f"no connection within {deadline:.3g} s"
            return Unreachable(self.host, cause, step=step, hint="check that it is switched on")
        if (said := running.said_before) is not None:
            cause = f"its login shell ran no command within {deadline:.3g} s: a start-up file or a forced command waits"
            cause += f'; the last that it said is "{said}"' if said else ""
            hint = "let nothing there ask a question or start another shell but at a terminal: `[ -t 0 ] || return`"
            return DeadlineExceeded(self.host, cause, step=step, hint=hint)
        cause = f"{_shown(command)} did not end within {deadline:.3g} s and was ended"
        return DeadlineExceeded(self.host, cause, step=step, hint="the host may be overloaded; try again")


class _Conversation:
    """See :class:`~hetero_tui.transport.base.Conversation`."""

    def __init__(self, running: Running, lines: AsyncIterator[HostText]) -> None:
        self._running = running
        self.lines = lines

    async def say(self, data: bytes) -> None:
        await self._running.write(data)

    async def finish(self) -> None:
        await self._running.feed(b"")


def limited(command: Sequence[str], seconds: float) -> list[str]:
    """The command, which ends by itself after so long: one that waits for input from a laptop that has vanished."""
    return ["sh", "-c", _LIMITED, str(math.ceil(seconds)), *check_words(command)]


def check_words(command: Sequence[str]) -> Sequence[str]:
    """The words themselves. Raises ValueError for what no command can hold: no word at all, a NUL, half a character."""
    if not command:
        raise ValueError("a command needs at least one word")
    for word in command:
        if "\0" in word:
            raise ValueError(f"a word of a command holds a NUL: {word!r}")
        word.encode()
    return command


async def _keep_tail(read: Callable[[], Awaitable[bytes]], tail: bytearray) -> None:
    with contextlib.suppress(HostError):  # a broken connection is reported by stdout's reader
        while chunk := await read():
            tail += chunk
            del tail[:-_TAIL]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _decoded(data: bytes) -> HostText:
    return HostText(data.decode("utf-8", "replace"))


def _shown(command: Sequence[str]) -> str:
    """What a message calls it: the text of a script of ours tells a user nothing, and the step stands beside it."""
    return "what was asked of it" if list(command[:2]) == ["sh", "-c"] else one_line(" ".join(command), 60)


def _status(status: int) -> str:
    return f"by signal {-status}" if status < 0 else f"with status {status}"
