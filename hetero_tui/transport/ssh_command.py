r"""One command over SSH: how it is written for the host's shell, and how it is surely ended there.

sshd passes signals on only since OpenSSH 7.9, and never to a command of root (it then runs without the process that
could), and closing a channel ends nothing. So the command first says its process id on stdout and stderr, in a line
that is taken out again, and ending it is a second short command: SIGTERM to its group, a moment, SIGKILL.

The line is made for any login shell: sh, bash, zsh, fish, csh and tcsh read all of it alike. A newline in quotes is an
error to csh, which then runs each further line of a script by itself, in the home folder; ``!`` is its history, and a
backslash in quotes is one of fish's signs. So every word is in single quotes, those and other unusual characters are
written as ``\\0ooo``, and ``sh`` makes the words of them again.

The line of the process id also says that the login shell's start-up files are done. What these print on stdout is not
the command's, and stdin is not theirs to read: one that says ``exec bash`` would run what we send to a Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence

import asyncssh

from hetero_tui import deadlines
from hetero_tui.errors import HostError
from hetero_tui.text import HostText, last_lines
from hetero_tui.transport import failures
from hetero_tui.transport.commands import check_words
from hetero_tui.transport.failures import SSH_ERRORS, Place

_CHUNK = 64 * 1024
_MARK = re.compile(rb"hetero-tui-pid:(\d{1,10})\n")
_LONGEST_MARK = 30  # bytes
_SAID = 4096  # bytes of stdout that are kept, to show what answered in a command's place
_BEFORE = 64 * 1024  # bytes that are kept of the end of what login shells print before it
_MOST_BEFORE = 64 * 1024 * 1024  # bytes that they may print: it takes about a second to pass over these

# The exec's keep one process id from sshd's child to the command, which makes it the leader of a process group.
# A start-up file may have gone elsewhere: commands start in the home folder. With CDPATH, cd says where it went, and a
# umask may take a file's owner the right to read it.
_START = (
    'unset CDPATH; umask u+rwx 2>/dev/null; cd 2>/dev/null; echo "hetero-tui-pid:$$"; echo "hetero-tui-pid:$$" >&2; '
)
_DECODE = (  # what follows each word keeps newlines at its end
    'for word; do shift; word=$(printf %b. "$word") || exit 126; set -- "$@" "${word%.}"; done; exec "$@"'
)
_NOT_ALIKE = re.compile(rb"[^ -~]|['!\\]")
_END = """p=$1
end() { kill -s "$1" -- "-$p" 2>/dev/null || kill -s "$1" "$p" 2>/dev/null; }
end TERM
i=0
while [ "$i" -lt 5 ] && kill -0 "$p" 2>/dev/null; do sleep 0.1; i=$((i + 1)); done
end KILL
"""


Session = Callable[[str], Awaitable[asyncssh.SSHClientProcess[bytes]]]
"""Starts a line of the host's shell, on the connection that a command runs over or on another one."""


def command_line(command: Sequence[str]) -> str:
    """The words as one line for the host's shell. Raises ValueError for what no command can hold."""
    return _line(_START + _DECODE, check_words(command))


def _line(script: str, words: Sequence[str]) -> str:
    encoded = [_NOT_ALIKE.sub(lambda found: b"\\%04o" % found[0][0], word.encode()).decode() for word in words]
    return " ".join(("exec sh -c", *(f"'{word}'" for word in (script, "sh", *encoded))))


class SshCommand:
    """A command that runs on the host; see :class:`~hetero_tui.transport.commands.Running`."""

    def __init__(self, session: Session, process: asyncssh.SSHClientProcess[bytes], place: Place) -> None:
        self._session = session
        self._connection: asyncssh.SSHClientConnection = process.get_extra_info("connection")
        self._process = process
        self._place = place
        self._begun = asyncio.Event()  # the command runs, or never will
        self._stdout = _Output(process.stdout, self._begun)
        self._stderr = _Output(process.stderr, self._begun)
        self._said = self._said_on_stderr = b""

    async def feed(self, data: bytes) -> None:
        """Give ``data`` to stdin; a command that does not read it, and a broken connection, are seen elsewhere."""
        await self._begun.wait()
        with contextlib.suppress(*SSH_ERRORS):
            for start in range(0, len(data), _CHUNK):
                self._process.stdin.write(data[start : start + _CHUNK])
                await self._process.stdin.drain()
            self._process.stdin.write_eof()

    async def write(self, data: bytes) -> None:
        """Give ``data`` to stdin, which stays open; a broken connection is seen elsewhere."""
        await self._begun.wait()
        with contextlib.suppress(*SSH_ERRORS):
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    async def read_stdout(self) -> bytes:
        """Some bytes of stdout, without what the login shell printed before the command; empty at its end."""
        while True:
            before, chunk = await self._read(self._stdout)
            self._said += chunk[: _SAID - len(self._said)]
            if chunk or not before:
                return chunk

    async def read_stderr(self) -> bytes:
        """Some bytes of stderr, without the line that tells the process id; empty at its end."""
        before, chunk = await self._read(self._stderr)
        if self._stderr.lacks_mark:
            self._said_on_stderr += chunk[: _SAID - len(self._said_on_stderr)]
        return before + chunk

    async def wait(self) -> int:
        """The exit status, once the command has ended. Raises Unreachable when the connection broke before.

        Raises CommandFailed where another program answered in the command's place, and ended by itself.
        """
        await self._process.wait_closed()
        status = self._process.returncode
        if status is None:
            raise failures.lost(self._place)
        if self._stderr.lacks_mark and self._stdout.pid is None and status >= 0:
            said = [HostText(each.decode("utf-8", "replace")) for each in (self._said, self._said_on_stderr)]
            shown = last_lines(said[0], 1, 120) or last_lines(said[1], 1, 120)
            raise failures.foreign_answer(self._place, status, shown)
        return status

    @property
    def said_before(self) -> str | None:
        """The last line that start-up files printed, while these have not come to their end; None once they have."""
        if not (self._stdout.waits and self._stderr.waits):
            return None
        said = [HostText(each.before.decode("utf-8", "replace")) for each in (self._stdout, self._stderr)]
        return last_lines(said[0], 1, 120) or last_lines(said[1], 1, 120)

    async def end(self) -> None:
        """End the command and its process group if it still runs."""
        killer: asyncssh.SSHClientProcess[bytes] | None = None
        try:
            if self._process.returncode is not None or self._connection.is_closed():
                return
            with contextlib.suppress(TimeoutError, HostError, *SSH_ERRORS):
                async with asyncio.timeout(2 * deadlines.COMMAND_END):
                    self._process.terminate()
                    while self._stderr.waits and self._stdout.pid is None:
                        await self.read_stderr()  # the shell may be slow to start: what starts late is ended too
                    pid = self._stderr.pid or self._stdout.pid  # a start-up file may have closed either
                    if pid is not None:
                        killer = await self._session(_line(_DECODE, ("sh", "-c", _END, "sh", str(pid))))
                    await self._process.wait_closed()
                    if killer is not None:
                        await killer.wait_closed()  # so that nothing of ours is left once this returns
            if self._process.returncode is None:
                with contextlib.suppress(OSError):
                    self._process.kill()
        finally:
            if killer is not None:
                killer.close()
            self._process.close()

    async def _read(self, output: _Output) -> tuple[bytes, bytes]:
        try:
            return await output.read()
        except SSH_ERRORS as error:
            raise failures.explain(error, self._place) from None
        except _PrintsWithoutEnd:
            raise failures.prints_without_end(self._place, _MOST_BEFORE) from None
        finally:
            self._begun.set()  # so that nobody waits for what is broken


class _PrintsWithoutEnd(Exception):
    """A login shell printed more than any start-up file does, and no command began."""


class _Output:
    """One of the two outputs of a command: what the login shell wrote to it, the mark, and what the command writes.

    Attributes:
        before: the end of what the login shell wrote, as long as :attr:`waits`.
        pid: the command's, from the mark.
        lacks_mark: it ended without one.
        waits: whether the mark may still come.
    """

    def __init__(self, reader: asyncssh.SSHReader[bytes], begun: asyncio.Event) -> None:
        self._reader = reader
        self._begun = begun
        self._passed = 0
        self.before = b""
        self.waits = True
        self.pid: int | None = None
        self.lacks_mark = False

    async def read(self) -> tuple[bytes, bytes]:
        """Some bytes from before the mark and from after it; both empty at the end. Returns no sooner than the mark."""
        while self.waits:
            chunk = await self._reader.read(_CHUNK)
            seen = self.before + chunk
            self._passed += len(chunk)
            found = _MARK.search(seen, max(0, len(self.before) - _LONGEST_MARK))
            if found is not None:
                self.waits, self.pid = False, int(found[1])
                self._begun.set()
                if len(found[0]) < len(seen):
                    return seen[: found.start()], seen[found.end() :]
            elif not chunk:
                self.waits, self.lacks_mark = False, True
                return b"", seen
            elif self._passed > _MOST_BEFORE:
                raise _PrintsWithoutEnd
            else:
                self.before = seen[-_BEFORE:]
        return b"", await self._reader.read(_CHUNK)
