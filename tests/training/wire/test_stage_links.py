"""The links between a pipeline's stages: what arrives, and what they were waited for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from remote_agent.training.wire import codecs, handshake
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.errors import ConnectionBroken, MalformedFrame
from remote_agent.training.wire.stage_links import Name, Purpose, StageLinks, pack, unpack

PAUSE_S = 0.5
SOON_S = 0.4
"""Less than the pause, and far more than a message takes."""


def connected(first: StageLinks, second: StageLinks) -> None:
    opening = threading.Thread(target=second.open, args=({0: first.address}, (0,), 20.0))
    opening.start()
    first.open({}, (1,), 20.0)
    opening.join()


@pytest.fixture
def pair() -> Iterator[tuple[StageLinks, StageLinks]]:
    """The first and the second stage, connected."""
    first, second = (StageLinks(stage, b"secret", "127.0.0.1") for stage in (0, 1))
    connected(first, second)
    yield first, second
    first.close()
    second.close()


def name(peer: int) -> Name:
    return Name(peer, Purpose.ACTIVATIONS, 1, 0)


def slow(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """As a slow link does it."""
    original = getattr(Connection, method)

    def slowly(connection: Connection, *arguments: Any) -> None:
        threading.Event().wait(PAUSE_S)
        original(connection, *arguments)

    monkeypatch.setattr(Connection, method, slowly)


def test_waiting_for_a_stage_that_computes_is_neither_sending_nor_receiving(pair: Any) -> None:
    first, second = pair
    later = threading.Timer(PAUSE_S, first.send, (name(1), [torch.ones(4)]))
    later.start()
    second.take(name(0))
    assert second.waited.sending_s + second.waited.receiving_s < SOON_S


def test_waiting_for_what_is_on_its_way_is_receiving(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair
    slow(monkeypatch, "receive_into")
    first.send(name(1), [torch.ones(4)])
    second.take(name(0))
    assert second.waited.receiving_s > PAUSE_S / 2


def test_waiting_while_something_is_sent_is_sending(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair
    slow(monkeypatch, "send")
    first.send(name(1), [torch.ones(4)])
    threading.Timer(2 * PAUSE_S, second.send, (name(0), [torch.ones(4)])).start()
    first.take(name(1))
    assert first.waited.sending_s > PAUSE_S / 2


SENT = (
    torch.randn(3, 700, generator=torch.Generator().manual_seed(0)),
    None,
    torch.arange(5),
    torch.ones(2, 0),
    torch.full((1,), 3.0),
    torch.linspace(-1, 1, 9, dtype=torch.bfloat16),
)


@pytest.mark.parametrize(("codec", "most"), [(None, 0.0), ("bf16", 2**-8), ("int8", 0.02)])
def test_what_arrives_is_what_was_sent_to_the_codecs_precision(codec: str | None, most: float) -> None:
    chosen = codecs.create(codec) if codec is not None else None
    for sent, found in zip(SENT, unpack(pack(SENT, chosen), chosen), strict=True):
        if sent is None or found is None:
            assert sent is found
            continue
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
        off = (found.double() - sent.double()).abs().max() if sent.numel() else torch.zeros(())
        assert float(off) <= most * float(sent.abs().max() if sent.numel() else 0.0)
        assert sent.is_floating_point() or torch.equal(sent, found)


def test_a_codec_makes_messages_smaller() -> None:
    many = [torch.randn(100, 700)]
    assert len(pack(many, codecs.create("int8"))) < len(pack(many)) / 3.9
    assert len(pack(many, codecs.create("bf16"))) < len(pack(many)) / 1.99


def test_a_message_that_says_wrong_sizes_is_refused() -> None:
    payload = pack(SENT)
    with pytest.raises(MalformedFrame):
        unpack(payload[: len(payload) // 2])
    with pytest.raises(MalformedFrame, match="codec"):
        unpack(pack(SENT, codecs.create("int8")))


def test_weights_go_as_they_are_whatever_the_codec(pair: Any) -> None:
    for links in pair:
        links.codec = codecs.create("int8")
    first, second = pair
    numbers = torch.randn(1000)
    for purpose, is_exact in (
        (Purpose.SHARED_WEIGHTS, True),
        (Purpose.SHARED_GRADIENT, True),
        (Purpose.GRADIENTS, False),
    ):
        first.send(Name(1, purpose, 1, 0), [numbers])
        (found,) = second.take(Name(0, purpose, 1, 0))
        assert torch.equal(found, numbers) is is_exact


def test_a_stage_that_connects_to_one_that_is_lost_can_be_told_so() -> None:
    lost, stage = StageLinks(0, b"secret", "127.0.0.1"), StageLinks(1, b"secret", "127.0.0.1")
    lost.close()
    telling = threading.Timer(PAUSE_S, stage.fail, ("the model is cut anew",))
    telling.start()
    try:
        with pytest.raises(ConnectionBroken, match="cut anew"):  # at the deadline it would say something else
            stage.open({0: lost.address}, (0,), 60.0)
    finally:
        stage.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_stages_connect_at_an_address_of_either_kind_whoever_else_connects_and_is_silent(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 600.0)  # who waits for the silent one comes too late to connect
    if ":" in address and not socket.has_ipv6:
        pytest.skip("this computer has no IPv6")
    first, second = (StageLinks(stage, b"secret", address) for stage in (0, 1))
    with socket.create_connection(first.address, timeout=20.0):
        connected(first, second)
    first.close()
    second.close()
