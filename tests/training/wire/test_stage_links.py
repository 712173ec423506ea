"""The links between a pipeline's stages say what they were waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.stage_links import Name, Purpose, StageLinks

PAUSE_S = 0.5
SOON_S = 0.4
"""Less than the pause, and far more than a message takes."""


@pytest.fixture
def pair() -> Iterator[tuple[StageLinks, StageLinks]]:
    """The first and the second stage, connected."""
    first, second = (StageLinks(stage, b"secret", "127.0.0.1") for stage in (0, 1))
    opening = threading.Thread(target=second.open, args=({0: first.address}, (0,), 20.0))
    opening.start()
    first.open({}, (1,), 20.0)
    opening.join()
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
