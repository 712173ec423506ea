"""Reads the user's commands during a run: lines that others append to ``control.jsonl`` in the run's folder.

A coordinator reads the file from its end, since earlier commands were for an earlier coordinator; after a takeover it
continues where its predecessor was. Invalid lines are skipped, since a newer version may write the file.
"""

from __future__ import annotations

from pathlib import Path

from remote_agent import tail
from remote_agent.protocol import ProtocolError, RunCommand, decode


class Control:
    """Follows the file at ``path``, which may not exist, from ``offset`` on; None: from its end.

    Attributes:
        offset: number of bytes that were read.
    """

    def __init__(self, path: Path, offset: int | None = None) -> None:
        self._path = path
        self.offset = tail.size_of(path) if offset is None else offset

    def poll(self) -> tuple[RunCommand, ...]:
        """The commands that were added since the last call."""
        whole = tail.new_lines(self._path, self.offset)
        self.offset += len(whole)
        commands = []
        for line in whole.splitlines():
            try:
                commands.append(decode(RunCommand, line.decode("utf-8", "replace")))
            except ProtocolError:
                continue
        return tuple(commands)
