"""A worker that waits for shards which will not answer any more is freed at once, and goes on with other shards."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
import torch

from remote_agent.training.wire.codecs import EXACT
from remote_agent.training.wire.errors import ExchangeError
from remote_agent.training.wire.layout import plan_layout
from remote_agent.training.worker.channels import NetworkChannel

NUMBERS, DEADLINE = 20_000, 20.0
TOKEN = b"the cluster's token"
CUT = plan_layout([NUMBERS], [1, 1], 1000)
SGD = partial(torch.optim.SGD, lr=0.5)


def weights() -> torch.Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))


def channel(shards, step: int = 0) -> NetworkChannel:
    return NetworkChannel(CUT, shards.addresses, TOKEN, weights(), EXACT, step)


def test_whoever_waits_for_a_step_is_freed_at_once(fleet) -> None:
    waiting = channel(fleet(CUT, weights(), SGD))
    waiting.begin(1, 2, 10)  # of two slices one will never come
    waiting.gradient.fill_(1.0)
    waiting.contribute(0)
    threading.Timer(0.3, waiting.abandon).start()
    began = time.monotonic()
    with pytest.raises(ExchangeError, match="other shards"):
        waiting.finish(6 * DEADLINE)
    assert time.monotonic() - began < 3 * DEADLINE
    with pytest.raises(ExchangeError, match="other shards"):
        waiting.begin(2, 1, 10)
    waiting.close()


def test_steps_are_made_again_with_shards_that_begin_at_the_same_weights(fleet) -> None:
    before = channel(fleet(CUT, weights(), SGD))
    before.begin(1, 2, 10)
    before.gradient.fill_(1.0)
    before.contribute(0)  # counted by shards that are then lost, with the step half made
    before.abandon()
    after = channel(fleet(CUT, weights(), SGD))
    after.begin(1, 1, 10)
    after.gradient.fill_(5.0)
    after.contribute(0)
    after.finish(DEADLINE)
    torch.testing.assert_close(after.weights[1], weights() - 0.5 * 5.0 / 10)
    before.close()
    after.close()
