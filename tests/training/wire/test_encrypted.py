"""The exchange under TLS: the same weights, none of them readable on the way, a cut cable, and a stranger's shard."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import pytest
import torch

from hetero_tui.fleet import authority
from remote_agent import tls
from remote_agent.training.wire import handshake
from remote_agent.training.wire.errors import ConnectionRefused
from remote_agent.training.wire.layout import plan_layout
from tests.training.wire.conftest import TOKEN, Cable, push_pull

CONSTANT = 0.123456
NUMBERS, STEPS = 200_000, 4
SGD = partial(torch.optim.SGD, lr=0.5)
NEEDLE = torch.full((8,), CONSTANT).numpy().tobytes()


class Tapped(Cable):
    """A cable that keeps what went through it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.heard = bytearray()
        super().__init__(target)

    def _forward(self, source, target, to_shard: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                self.heard += data
                if self._limit is not None:
                    self._limit -= len(data)
                    if self._limit < 0:
                        self.cut()
                        return
                target.sendall(data)


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tls.pem"
    path.write_text(authority.certificate(authority.create("lab"), "mercer", []))
    for name, value in tls.variables(path, encrypted=True).items():
        monkeypatch.setenv(name, value)
    return path


@pytest.fixture(params=[True, False], ids=["tls", "clear"])
def encrypted(request: pytest.FixtureRequest) -> bool:
    if request.param:
        request.getfixturevalue("certificate")
    return bool(request.param)


def test_weights_are_those_of_a_plain_loop_and_are_not_seen_on_a_cable_that_is_cut_once(fleet, encrypted: bool) -> None:
    layout = plan_layout([NUMBERS], [1.0], NUMBERS // 10)
    start = torch.full((NUMBERS,), CONSTANT)
    made = fleet(layout, start, SGD)
    with contextlib.closing(Tapped(made.servers[0].address)) as cable:
        client = made.connect([cable.address])
        weights, new = torch.empty(NUMBERS), torch.empty(NUMBERS)
        client.fetch(weights, 20.0)
        assert torch.equal(weights, start)
        gradient = torch.zeros(NUMBERS)
        for step in range(1, STEPS + 1):
            if step == 2:
                cable.break_after(NUMBERS)
            push_pull(client, step, 0, 1, 1, gradient, weights, new)
            weights, new = new, weights
        assert cable.broken.is_set()
        assert torch.equal(weights, start)
        assert len(cable.heard) > 4 * NUMBERS * STEPS
        assert (NEEDLE in cable.heard) is not encrypted


def test_a_shard_of_another_authority_is_refused_at_once(fleet, certificate: Path, tmp_path: Path) -> None:
    made = fleet(plan_layout([100], [1.0], 100), torch.zeros(100), SGD)
    signed = certificate.read_text()
    foreign = authority.certificate(authority.create("lab"), "nas", [])
    # It is a member's token, and a key that another authority has signed.
    certificate.write_text(foreign[: foreign.rindex("-----BEGIN CERT")] + signed[signed.rindex("-----BEGIN CERT") :])
    with pytest.raises(ConnectionRefused, match="certificates"):
        handshake.connect(made.addresses[0], TOKEN)
