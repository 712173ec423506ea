"""A file reaches a machine over a link of any speed, whole, and goes on where it was."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetero_tui import deadlines
from hetero_tui.errors import DeadlineExceeded
from hetero_tui.fleet.install import sending
from hetero_tui.inventory import Host
from hetero_tui.transport.base import Completed
from hetero_tui.transport.local import LocalTransport


class Slow(LocalTransport):
    """A machine behind a link that carries so many bytes per second, and fewer after some pieces.

    Only the link takes time, ``now``: what this computer needs to start a program depends on its other work.
    """

    def __init__(self, rate: float, later: float) -> None:
        super().__init__(Host(name="nas", connection="local"))
        self.rate, self.later = rate, later
        self.pieces: list[int] = []
        self.now = 0.0

    async def run(self, command: Sequence[str], *, step: str, deadline: float, stdin: bytes | None = None) -> Completed:
        if stdin:
            self.pieces.append(len(stdin))
            seconds = len(stdin) / (self.rate if len(self.pieces) < 4 else self.later)
            self.now += min(seconds, deadline)
            if seconds > deadline:
                raise DeadlineExceeded("nas", "too slow", step=step)
        return await super().run(command, step=step, deadline=60, stdin=stdin)


@pytest.mark.parametrize(("rate", "later"), [(2e6, 2e6), (1e12, 1e12), (1e12, 2e6)])
async def test_a_file_arrives_over_a_link_that_carries_no_large_piece_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: float, later: float
) -> None:
    monkeypatch.setattr(deadlines, "SEND_PIECE", 0.6)
    source, machine = tmp_path / "wheel", Slow(rate, later)
    monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: machine.now))
    source.write_bytes(bytes(range(256)) * 4 * 4096 + b"end")
    arrived: list[int] = []
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    await sending.send_file(machine, source, str(tmp_path / "there"), digest, arrived.append)
    assert (tmp_path / "there/wheel").read_bytes() == source.read_bytes()
    assert arrived[-1] == source.stat().st_size
    assert len(machine.pieces) < (6 if later == 1e12 else 100), "a fast link is not slowed down by small pieces"
