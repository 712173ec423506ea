"""Sends a large file to a host in pieces; received pieces stay if the connection or the laptop's command ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from hetero_tui import deadlines
from hetero_tui.errors import CommandFailed, DeadlineExceeded
from hetero_tui.text import last_lines
from hetero_tui.transport import Completed, Transport

STEP = "send packages"
SMALLEST, LARGEST = 1 << 16, 1 << 22
"""Bytes of one piece: as many as the link carries in a small part of the deadline, so that a slow one will do."""

_AIM = 1 / 12
"""The part of the deadline that a piece should take."""

_LOOK = """umask 077; mkdir -p "$1" && cd "$1" || exit 1
if [ -f "$2" ] && [ "$(($(wc -c < "$2")))" -eq "$3" ]; then echo "there: whole"; exit 0; fi
[ -f "$2.part" ] || : > "$2.part"
echo "there: $(($(wc -c < "$2.part")))"
"""
# Another sender's piece, or a part of one, may have come in between: only what goes on where the file ends is added.
_ADD = 'cd "$1" && [ "$(($(wc -c < "$2.part")))" -eq "$3" ] && cat >> "$2.part"'
_FINISH = """cd "$1" || exit 1
sum=$( (sha256sum "$2.part" || shasum -a 256 "$2.part") 2>/dev/null | cut -d ' ' -f 1)
if [ "$sum" = "$3" ]; then mv -f "$2.part" "$2"; else rm -f "$2.part"; echo "its SHA256 is $sum" >&2; exit 1; fi
"""


async def send_file(
    transport: Transport, source: Path, folder: str, digest: str, progress: Callable[[int], None]
) -> None:
    """Send the file into ``folder`` on the host, under the same name; ``progress`` gets the received bytes.

    Raises:
        HostError: the file could not be written, or arrived damaged.
    """
    name, size = source.name, await asyncio.to_thread(lambda: source.stat().st_size)
    there = _there(transport, await _run(transport, _LOOK, folder, name, str(size)))
    if there is None:
        progress(size)
        return
    if there > size:
        there = 0
        await _run(transport, 'cd "$1" && : > "$2.part"', folder, name)
    length = 4 * SMALLEST
    with source.open("rb") as file:
        while there is not None and there < size:
            file.seek(there)
            piece = await asyncio.to_thread(file.read, length)
            began = time.monotonic()
            try:
                await _run(transport, _ADD, folder, name, str(there), stdin=piece)
            except DeadlineExceeded:
                if length == SMALLEST:
                    raise
                length = SMALLEST  # the link has become slower, by other transfers or radio; a part may have arrived
                there = _there(transport, await _run(transport, _LOOK, folder, name, str(size)))
                continue
            fits = len(piece) * _AIM * deadlines.SEND_PIECE / max(time.monotonic() - began, 1e-3)
            length = int(min(max(fits, SMALLEST), 4 * length, LARGEST))
            there += len(piece)
            progress(there)
    await _run(transport, _FINISH, folder, name, digest)


async def _run(transport: Transport, script: str, *words: str, stdin: bytes | None = None) -> Completed:
    done = await transport.run(
        ["sh", "-c", script, "send", *words], step=STEP, deadline=deadlines.SEND_PIECE, stdin=stdin
    )
    if done.exit_status != 0:
        said = last_lines(done.stderr, 1) or f"exit status {done.exit_status}"
        hint = "check the free space there, then run it again: what has arrived stays"
        raise CommandFailed(transport.host, f"{words[1]} could not be sent: {said}", step=STEP, hint=hint)
    return done


def _there(transport: Transport, done: Completed) -> int | None:
    """The number of received bytes; None: all."""
    said = (done.stdout.last("there: ") or "").removeprefix("there: ").strip()
    if said == "whole":
        return None
    if said.isdecimal() and len(said) < 16:
        return int(said)
    raise CommandFailed(transport.host, "can't tell what has arrived there", step=STEP, hint="run it again")
