"""Gradients are sent while backward still computes others, and only where that can't make anything wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from remote_agent.training.data.datasets import as_dataset
from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared.dataplane import StreamPlan
from remote_agent.training.shared.messages import Failed, ShardLinkDown, Slice, StreamedResult, StreamedTask
from remote_agent.training.wire.codecs import EXACT
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import plan_layout
from remote_agent.training.worker.channels import NetworkChannel
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.streamed import Streaming
from tests.training.cuts import cut

SECRET, PATIENCE_S, SAMPLES = b"a secret of the test's own", 30.0, 12
CPU = torch.device("cpu")


class Tower(nn.Module):
    """Layers of equal size; ``shared`` uses the middle one twice, in two passes of backward."""

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.shared = shared

    def forward(self, x: Tensor) -> Any:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if self.shared and number in (1, 2):
                x = torch.tanh(checkpoint(self.layers[1], x, use_reentrant=True))
        return x


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(SAMPLES, 16, generator=generator), torch.randn(SAMPLES, 16, generator=generator)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


def sgd(_group: int, part: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([part], lr=0.1, momentum=0.9)


@dataclass
class OneWorker:
    """A worker, and two shards that its chunks alternate between."""

    model: Tower
    shards: list[Shard]
    compute: SliceComputer
    streaming: Streaming
    channel: NetworkChannel

    def step(self, step: int, samples: int = SAMPLES) -> object:
        own = Slice.whole(np.arange(samples))
        return self.streaming.step(StreamedTask(step=step, spans=cut(samples), own=own))

    def counted(self, step: int) -> int:
        """Chunks of the step's slice that the shards have."""
        return sum(sum(shard.counted(Header(Kind.ASK, step=step))) for shard in self.shards)

    def at_the_last_gradient(self, do: Callable[[], None]) -> None:
        """The first layer's gradient is the last that backward computes."""
        first = self.model.layers[0].weight
        assert isinstance(first, Tensor)
        first.register_hook(lambda _: do())  # type: ignore[no-untyped-call]


Open = Callable[..., OneWorker]


@pytest.fixture
def worker() -> Iterator[Open]:
    with ExitStack() as stack:

        def start(model: Tower, most: int | None = None) -> OneWorker:
            parameters = dict(model.named_parameters())
            weights = torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])
            layout = plan_layout([len(weights)], [1.0, 1.0], 136)  # half a layer
            shards = [Shard(layout, number, weights, OptimizerUpdate(layout, sgd), EXACT) for number in range(2)]
            servers = [stack.enter_context(ShardServer(shard, SECRET, "127.0.0.1")) for shard in shards]
            plan = StreamPlan(names=tuple(parameters), groups=(len(weights),), watched=())
            channel = NetworkChannel(layout, [server.address for server in servers], SECRET, weights, EXACT, 0)
            stack.callback(channel.close)
            compute = SliceComputer(model, loss, as_dataset(data()), CPU, 0, most)
            streaming = Streaming(model, plan, channel, compute)
            compute.on_repeat = streaming.again
            return OneWorker(model, shards, compute, streaming, channel)

        yield start


def plain(model: Tower, steps: int) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, data()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def until_counted(worker: OneWorker, step: int) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while not worker.counted(step) and time.monotonic() < deadline:
        time.sleep(0.001)
    return worker.counted(step)


@pytest.mark.parametrize("most", [None, 5])
def test_shards_have_the_last_layers_gradient_while_the_first_ones_is_computed(worker: Open, most: int | None) -> None:
    one = worker(Tower(), most)
    passes: list[int] = []
    seen: list[int] = []

    def look() -> None:
        passes.append(one.counted(2))
        if len(passes) == 2 * (1 if most is None else 3):  # the last pass of step 2
            seen.append(until_counted(one, 2))

    one.at_the_last_gradient(look)
    assert isinstance(one.step(1), StreamedResult)
    assert one.counted(2) == 0
    result = one.step(2)
    assert isinstance(result, StreamedResult)
    assert seen[0] > 0
    assert not any(passes[: 1 if most is None else -1]), "a gradient that is not final was sent"
    assert isinstance(one.step(3), StreamedResult)
    torch.testing.assert_close(one.channel.weights[3 % 2], plain(Tower(), 3), rtol=1e-5, atol=1e-7)


def test_nothing_is_sent_when_the_loss_is_not_finite(worker: Open) -> None:
    one = worker(Tower())
    assert isinstance(one.step(1), StreamedResult)
    with torch.no_grad():
        one.model.layers[3].bias.fill_(float("nan"))  # type: ignore[operator]
    answer = one.step(2)
    assert isinstance(answer, Failed)
    assert "nan" in answer.cause
    assert one.counted(2) == 0


def test_a_parameter_whose_gradient_comes_in_several_parts_is_sent_when_it_is_whole(worker: Open) -> None:
    one = worker(Tower(shared=True))
    early: list[int] = []
    one.at_the_last_gradient(lambda: early.append(one.counted(2)))
    for step in (1, 2, 3):
        assert isinstance(one.step(step), StreamedResult)
    assert early == [0, 0, len(one.channel.gradient) // 136]
    torch.testing.assert_close(one.channel.weights[1], plain(Tower(shared=True), 3), rtol=1e-5, atol=1e-7)


def test_full_memory_after_a_part_was_sent_leaves_the_slice_to_another_worker(worker: Open) -> None:
    one = worker(Tower())
    assert isinstance(one.step(1), StreamedResult)

    def fill() -> None:
        until_counted(one, 2)
        raise torch.OutOfMemoryError("no more")

    one.at_the_last_gradient(fill)
    answer = one.step(2)
    assert isinstance(answer, ShardLinkDown)
    assert "memory was full" in answer.cause


def test_a_larger_slice_than_any_before_is_sent_when_it_is_whole(worker: Open) -> None:
    one = worker(Tower())
    early: list[int] = []
    one.at_the_last_gradient(lambda: early.append(one.counted(2)))
    assert isinstance(one.step(1, SAMPLES // 2), StreamedResult)
    assert isinstance(one.step(2), StreamedResult)
    assert early == [0, 0]
