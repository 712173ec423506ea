"""Packs our code for hosts (the agent), sends it if it differs, and calls its modules there.

The agent is in ``~/.hetero-tui/<cluster>/agent``. The shell script ``run`` beside it knows the host's Python, so
commands such as ``status`` and ``down`` need no probe. A new agent replaces the old one by a rename, so that a command
that starts meanwhile finds one of them, complete.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import shlex
import sys
import tarfile
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TypeVar

from hetero_tui import answers, deadlines
from hetero_tui.errors import BadAnswer, CommandFailed, HostError
from hetero_tui.inventory import Host
from hetero_tui.text import HostText, last_lines
from hetero_tui.transport import Completed, Conversation, Transport
from remote_agent import protocol

T = TypeVar("T")

_OF_TRAINING = tuple(f"remote_agent/{name}/" for name in ("training", "models", "jobs", "planning"))

WITHOUT_PYTHON_VARIABLES = "for name in $(env | sed -n 's/^\\(PYTHON[A-Z0-9_]*\\)=.*/\\1/p'); do unset \"$name\"; done;"
"""Shell code for a host that unsets the user's PYTHONHOME, PYTHONPATH and the like, which would break our Python."""

_PYTHONS = ("python3", "python3.13", "python3.12", "python3.11")

NOT_THERE, NO_PYTHON = 96, 97
"""Exit status of a call when the host has no agent of this cluster; of :func:`with_python` when it has no Python."""


def folder(cluster: str) -> str:
    """The cluster's folder on every host, relative to the home that commands start in."""
    return f".hetero-tui/{cluster}"


def home_folder(cluster: str) -> str:
    """The same folder with ``~``, for the agent's own arguments, which expand it."""
    return f"~/{folder(cluster)}"


async def ship(transport: Transport, cluster: str, python: str) -> None:
    """Make sure that the host has this agent and calls it with ``python`` (absolute path).

    Raises:
        CommandFailed: the folder can't be written (full disk, no permission, no tar).
    """
    archive, digest = _archive(python)
    script = (
        'set -e; umask 077; mkdir -p "$0"\n'
        'if [ "$(cat "$0/agent/digest" 2>/dev/null)" = "$1" ]; then cat >/dev/null; exit 0; fi\n'
        # Another laptop may do the same now: each uses its own folder, and they swap one after the other.
        'find "$0/" -maxdepth 1 \\( -name "agent.new.*" -o -name "agent.old.*" \\) -mmin +10 -exec rm -rf {} +\n'
        'cd "$0"\n'
        'new=$(mktemp -d agent.new.XXXXXX); tar xzf - -C "$new"\n'
        "i=0; until mkdir agent.lock 2>/dev/null; do\n"
        '  i=$((i + 1)); if [ "$i" -gt 100 ]; then rmdir agent.lock; fi; sleep 0.1\n'  # its owner must have been killed
        "done\n"
        'if [ -d agent ]; then mv agent "$new.old"; fi\n'
        'mv "$new" agent; rmdir agent.lock; rm -rf "$new.old"\n'
    )
    step = "send agent"
    done = await transport.run(
        ["sh", "-c", script, folder(cluster), digest], step=step, deadline=deadlines.SHIP_AGENT, stdin=archive
    )
    if done.exit_status != 0:
        raise CommandFailed(
            transport.host,
            f"the agent can't be unpacked in {home_folder(cluster)}: {last_lines(done.stderr, 1) or 'unknown reason'}",
            step=step,
            hint="check that tar and gzip are there, the disk's free space, and who owns the folder",
            output=last_lines(done.stderr),
        )


def words(cluster: str, module: str, *arguments: str) -> list[str]:
    """The command that runs ``python -m remote_agent.<module>`` on a host with the agent's own Python."""
    script = f'test -f "$0" || exit {NOT_THERE}; exec sh "$0" "$@"'
    return ["sh", "-c", script, f"{folder(cluster)}/agent/run", f"remote_agent.{module}", *arguments]


async def call(
    transport: Transport,
    cluster: str,
    module: str,
    *arguments: str,
    step: str,
    deadline: float = deadlines.COMMAND,
    stdin: bytes | None = None,
) -> Completed | None:
    """Run a module of the agent to its end; None: the host has no agent of this cluster."""
    done = await transport.run(words(cluster, module, *arguments), step=step, deadline=deadline, stdin=stdin)
    return None if done.exit_status == NOT_THERE else done


@asynccontextmanager
async def follow(
    transport: Transport, cluster: str, module: str, *arguments: str, step: str
) -> AsyncIterator[AsyncIterator[HostText]]:
    """Yield the output lines of a module of the agent as they arrive; see :meth:`Transport.stream`."""
    command = words(cluster, module, *arguments)
    async with transport.converse(command, step=step, silence=deadlines.SILENCE) as talk, _alive(talk):
        yield talk.lines


@asynccontextmanager
async def follow_unsent(
    transport: Transport, pythons: Sequence[str], module: str, *arguments: str, step: str
) -> AsyncIterator[AsyncIterator[HostText]]:
    """As :func:`follow`, on a host without an agent: the sources are sent over stdin, and no file is written there.

    ``pythons`` are the usable Pythons, the best first; the exit status is :data:`NO_PYTHON` if there is none.
    """
    command = with_python(inline("host/unsent.py", f"remote_agent.{module}", *arguments), pythons)
    async with transport.converse(command, step=step, silence=deadlines.SILENCE) as talk:
        await talk.say(_stream_of_sources())
        async with _alive(talk):
            yield talk.lines


@asynccontextmanager
async def _alive(talk: Conversation) -> AsyncIterator[None]:
    """Send signs of life to a module that prints lines; without them it ends (:mod:`remote_agent.stream`)."""

    async def beat() -> None:
        with suppress(HostError):  # the lines say that the connection is broken
            while True:
                await talk.say(b"\n")
                await asyncio.sleep(deadlines.SIGN_OF_LIFE)

    beating = asyncio.create_task(beat(), name="signs of life")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


@cache
def _stream_of_sources() -> bytes:
    """The sources for :mod:`remote_agent.host.unsent`, without those that only training needs."""
    texts = {name: data.decode() for name, data in _sources() if not name.startswith(_OF_TRAINING)}
    packed = zlib.compress(json.dumps(texts).encode())
    return b"%d\n%s" % (len(packed), packed)


def answer(cls: type[T], host: str, done: Completed, *, step: str) -> T:
    """Decode the value in the last JSON line of a module's output (a login shell may print other lines before).

    Raises:
        CommandFailed: there is no such line.
        BadAnswer: the value is invalid.
    """
    line = done.stdout.last("{")
    if line is not None:
        try:
            return answers.value(cls, HostText(line))
        except protocol.ProtocolError as error:
            raise refused(host, error, step) from None
    tail = last_lines(done.stderr) or last_lines(done.stdout)
    raise CommandFailed(
        host,
        f"no answer from the agent (exit status {done.exit_status}): {last_lines(tail, 1) or 'it printed nothing'}",
        step=step,
        hint="run `hetero-tui probe` to see whether its Python still works",
        output=tail,
    )


def refused(host: str, error: protocol.ProtocolError, step: str) -> HostError:
    """Make the error for an invalid answer of ``host``."""
    hint = "look at what runs there under this user; `hetero-tui up` sends it the agent again"
    return BadAnswer(host, f"its answer is refused: {error}", step=step, hint=hint)


@cache
def _sources() -> tuple[tuple[str, bytes], ...]:
    """Name and bytes of every file of the agent."""

    def walk(folder: Traversable, prefix: str) -> Sequence[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_dir() and entry.name != "__pycache__":
                found.extend(walk(entry, f"{prefix}{entry.name}/"))
            elif entry.name.endswith(".py"):
                found.append((f"{prefix}{entry.name}", entry.read_bytes()))
        return found

    return tuple(walk(resources.files("remote_agent"), "remote_agent/"))


@cache
def code() -> str:
    """A digest of the agent's sources, which tells versions apart."""
    return _digest(_sources())


def source(name: str) -> bytes:
    """The source of an agent file that runs alone and is sent by itself: ``probe.py``, ``host/hold.py``."""
    return dict(_sources())[f"remote_agent/{name}"]


def inline(name: str, *arguments: str) -> str:
    """Arguments for :func:`with_python` that run such a file on a host."""
    return f"-I -c {shlex.join((source(name).decode(), *arguments))}"


def with_python(arguments: str, candidates: Sequence[str], name: str = "sh") -> list[str]:
    """Make a command that runs the first of these Pythons that runs, without variables that affect Python.

    One that is there may not run: our environment's, whose base was replaced, a shim of pyenv without a version, the
    stub of macOS. The only candidate is not tried before, so that its own error shows.

    ``arguments`` are in shell syntax; ``name`` is the value of ``$0`` in them. The exit status is :data:`NO_PYTHON` if
    there is no Python.
    """
    script = (
        f'{WITHOUT_PYTHON_VARIABLES} for python in "$@"; do '
        'case "$python" in "~/"*) python="$HOME/${python#??}";; esac; '
        'command -v "$python" >/dev/null 2>&1 || continue; '
        '[ "$#" -eq 1 ] || "$python" -E -s -S -c "" </dev/null >/dev/null 2>&1 || continue; '
        f'exec "$python" {arguments}; done; exit {NO_PYTHON}'
    )
    return ["sh", "-c", script, name, *candidates]


def python_candidates(cluster: str, host: Host) -> list[str]:
    """The usable Pythons of a host, the best first."""
    if host.python is not None:
        return [host.python]
    own = [sys.executable] if host.connection == "local" else []
    return [f"{folder(cluster)}/env/bin/python", *own, *_PYTHONS]


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


@cache
def _archive(python: str) -> tuple[bytes, str]:
    """The agent as a gzipped tar, and a digest of its contents."""
    # -P: a user's file with the name of a standard module must not be imported instead.
    runner = (
        "#!/bin/sh\n"
        "# Runs a module of the agent with the Python that was chosen for this host.\n"
        'agent=$(unset CDPATH; cd "$(dirname "$0")" && pwd) || exit 1\n'
        f"{WITHOUT_PYTHON_VARIABLES}\n"
        f"python={shlex.quote(python)}\n"
        "# An environment may be gone by now, or broken; what ends all of ours needs the standard library alone.\n"
        'what="is gone"; [ ! -x "$python" ] || what="does not run"\n'
        f'"$python" -E -s -S -c "" </dev/null >/dev/null 2>&1 || for other in {" ".join(_PYTHONS)}; do\n'
        '  "$other" -c "import sys; sys.exit(sys.version_info < (3, 11))" </dev/null 2>/dev/null || continue\n'
        '  echo "$python $what, so $other is used" >&2; python=$other; break\n'
        "done\n"
        'cd && PYTHONPATH="$agent" exec "$python" -P -m "$@"\n'
    )
    files = [*_sources(), ("run", runner.encode())]
    digest = _digest(files)
    files.append(("digest", digest.encode()))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o600
            # Python tells by a source's time and size whether byte code is of it, so another text has another time.
            entry.mtime = zlib.crc32(data) % 10**9  # in the past: tar warns of others
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue(), digest
