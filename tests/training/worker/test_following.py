"""A worker that joins late, or missed steps, follows the others and then takes part, with the very same weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.training.data.datasets import as_dataset
from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.shared_memory_server import SharedMemoryServer, SharedWeights
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared.dataplane import StreamPlan
from remote_agent.training.shared.messages import Counted, ShardLinkDown, Slice, StreamedResult, StreamedTask
from remote_agent.training.wire.codecs import EXACT
from remote_agent.training.wire.endpoint import ShardEndpoint, StreamInfo, place
from remote_agent.training.wire.layout import plan_layout
from remote_agent.training.wire.shared_memory.memory import available
from remote_agent.training.worker.channels import Channel, open_channel
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.streamed import Streaming
from tests.training.cuts import cut

SECRET, PATIENCE_S, SAMPLES, STEPS = b"a secret of the test's own", 30.0, 12, 9
CPU = torch.device("cpu")


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(SAMPLES, 6, generator=generator), torch.randn(SAMPLES, 3, generator=generator)


def loss(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.mse_loss(network(batch[0]), batch[1])


def flat(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


def sgd(_group: int, part: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([part], lr=0.1, momentum=0.9)


def plain(steps: int) -> Tensor:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(network, data()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return flat(network)


def task(step: int, begin: int = 0, end: int = SAMPLES, slices: int = 1) -> StreamedTask:
    own = Slice(index=0 if begin == 0 else 1, indices=np.arange(begin, end), total=SAMPLES)
    spans = cut(SAMPLES) if slices == 1 else cut(end - begin, SAMPLES - end + begin)
    return StreamedTask(step=step, spans=spans, own=own)


Open = Callable[[int | None], tuple[Streaming, Channel]]


@pytest.fixture(params=["network", "memory"])
def worker(request: pytest.FixtureRequest) -> Iterator[Open]:
    """`worker(step)` connects a worker whose weights are those of a step; None: it joins late."""
    if request.param == "memory" and not available():
        pytest.skip("this operating system has no shared memory")
    with ExitStack() as stack:
        first = flat(model())
        layout = plan_layout([len(first)], [1.0], 40)
        shared = SharedWeights(layout, first) if request.param == "memory" else None
        keep = shared.keep if shared is not None else None
        shard = Shard(layout, 0, first, OptimizerUpdate(layout, sgd), EXACT, keep=keep)
        server = stack.enter_context(ShardServer(shard, SECRET, "127.0.0.1"))
        address = ""
        if shared is not None:
            memory = SharedMemoryServer(shard, shared)
            memory.start()
            stack.callback(memory.close)
            address = memory.address
        endpoint = ShardEndpoint(address=server.address, place=place(), memory=address)

        def start(step: int | None) -> tuple[Streaming, Channel]:
            network = model()
            names = tuple(name for name, _ in network.named_parameters())
            plan = StreamPlan(names=names, groups=(len(first),), watched=())
            entry = StreamInfo(plan=plan, layout=layout, shards=(endpoint,), secret=SECRET, codecs=EXACT)
            channel = open_channel(entry, first, step)
            stack.callback(channel.close)
            compute = SliceComputer(network, loss, as_dataset(data()), CPU, 0)
            return Streaming(network, plan, channel, compute), channel

        yield start


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def beside(do: Callable[[], object]) -> Callable[[], object]:
    """Carry out in another thread; the result is waited for."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(do()), daemon=True)
    thread.start()

    def result() -> object:
        thread.join(PATIENCE_S)
        (only,) = results
        return only

    return result


def test_a_worker_that_joins_late_follows_and_then_takes_part(worker: Open) -> None:
    old, channel = worker(0)
    for step in (1, 2, 3):
        assert isinstance(old.step(task(step)), StreamedResult)
    new, joined = worker(None)
    followed = beside(new.follow)
    until(lambda: new.following and joined.step == 3)
    for step in (4, 5):
        assert isinstance(old.step(task(step)), StreamedResult)
    until(lambda: joined.step == 5)
    new.enter(7)
    assert isinstance(old.step(task(6)), StreamedResult)
    assert followed() is None
    for step in range(7, STEPS + 1):
        other = beside(lambda step=step: new.step(task(step, 5, SAMPLES, 2)))  # type: ignore[misc]
        assert isinstance(old.step(task(step, 0, 5, 2)), StreamedResult)
        assert isinstance(other(), StreamedResult)
    expected = plain(STEPS)
    for each in (channel, joined):
        torch.testing.assert_close(each.weights[STEPS % 2], expected, rtol=1e-5, atol=1e-7)


def test_a_worker_that_missed_many_steps_catches_up(worker: Open) -> None:
    old, channel = worker(0)
    late, behind = worker(0)
    both = [beside(lambda: old.step(task(1, 0, 5, 2))), beside(lambda: late.step(task(1, 5, SAMPLES, 2)))]
    assert all(isinstance(made(), StreamedResult) for made in both)
    assert (channel.step, behind.step) == (1, 1)
    for step in range(2, STEPS):
        assert isinstance(old.step(task(step)), StreamedResult)
    followed = beside(late.follow)
    until(lambda: late.following and late.contributed == STEPS - 1)
    late.enter(STEPS)
    assert followed() is None
    other = beside(lambda: late.step(task(STEPS, 5, SAMPLES, 2)))
    assert isinstance(old.step(task(STEPS, 0, 5, 2)), StreamedResult)
    assert isinstance(other(), StreamedResult)
    torch.testing.assert_close(behind.weights[STEPS % 2], plain(STEPS), rtol=1e-5, atol=1e-7)


def test_steps_that_were_given_to_others_are_not_computed(worker: Open) -> None:
    one, channel = worker(0)
    one.set_aside(1)
    assert isinstance(one.step(task(1)), ShardLinkDown)
    one.enter(1)
    assert isinstance(one.step(task(1)), StreamedResult)
    assert isinstance(one.step(task(1)), Counted), "it is whole"
    torch.testing.assert_close(channel.weights[1], plain(1), rtol=1e-5, atol=1e-7)
