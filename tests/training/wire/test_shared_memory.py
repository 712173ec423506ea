"""Workers and a shard on one computer; here each end is a thread or a process of its own."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shared_memory_server import SharedMemoryServer, SharedWeights
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared import dataplane
from remote_agent.training.shared.optimizer_options import encoded
from remote_agent.training.wire.codecs import EXACT
from remote_agent.training.wire.errors import StepIncomplete
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout, plan_layout
from remote_agent.training.wire.shared_memory.client import SharedMemoryChannel
from remote_agent.training.wire.shared_memory.memory import allocate, attach, available
from remote_agent.training.wire.shared_memory.messages import SharedMemoryError

pytestmark = pytest.mark.skipif(not available(), reason="shared memory is for Linux")

NUMEL, CHUNK, PATIENCE_S = 1000, 128, 20.0
LAYOUT = plan_layout([600, 400], [1.0], CHUNK)
CPU = torch.device("cpu")


def optimizer(weights: Tensor) -> torch.optim.Optimizer:
    """Two parameter groups with options of their own."""
    parts = [nn.Parameter(part.clone()) for part in weights.split([600, 400])]
    return torch.optim.AdamW([{"params": [parts[0]]}, {"params": [parts[1]], "weight_decay": 0.3}], lr=0.01)


def test_a_python_built_for_an_old_linux_shares_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As uv's are: ``os`` has no ``memfd_create`` there."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert available()
    descriptor, memory = allocate(NUMEL)
    attach(descriptor, NUMEL).fill_(3)
    os.close(descriptor)
    assert bool((memory == 3).all())


@pytest.fixture
def weights() -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def server(weights: Tensor) -> Iterator[SharedMemoryServer]:
    update = OptimizerUpdate(LAYOUT, functools.partial(dataplane.part_of, optimizer(weights)))
    shared = SharedWeights(LAYOUT, weights)
    served = SharedMemoryServer(Shard(LAYOUT, 0, weights, update, EXACT, keep=shared.keep), shared)
    served.start()
    yield served
    served.close()


def join(server: SharedMemoryServer, layout: Layout = LAYOUT) -> SharedMemoryChannel:
    return SharedMemoryChannel(server.address, layout, EXACT.signature(layout), CPU)


def gradient(step: int, index: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * step + index))


def expected(weights: Tensor, steps: int, slices: int, samples: int) -> Tensor:
    """The same gradients through torch's own optimizer."""
    plain = optimizer(weights)
    parameters = [group["params"][0] for group in plain.param_groups]
    for step in range(1, steps + 1):
        mean = sum((gradient(step, index) for index in range(slices)), torch.zeros(NUMEL)) / samples
        for parameter, part in zip(parameters, mean.split([600, 400]), strict=True):
            parameter.grad = part
        plain.step()
    return torch.cat([parameter.detach() for parameter in parameters])


def test_all_workers_read_the_weights_that_a_plain_optimizer_gives(server: SharedMemoryServer, weights: Tensor) -> None:
    workers = [join(server) for _ in range(3)]
    for worker in workers:
        assert torch.equal(worker.weights[0], weights)
    for step in range(1, 8):
        for index, worker in enumerate(workers):
            worker.begin(step, 2, 30)
            if index < 2:  # the third takes the weights only
                worker.gradient.copy_(gradient(step, index))
                worker.contribute(index)
        for worker in workers:
            worker.finish(PATIENCE_S)
            assert worker.step == step
    for worker in workers:
        torch.testing.assert_close(worker.weights[7 % 2], expected(weights, 7, 2, 30), rtol=1e-5, atol=1e-6)


def test_whoever_waits_for_a_shard_that_is_given_up_is_freed_at_once(server: SharedMemoryServer) -> None:
    worker = join(server)
    worker.begin(1, 2, 30)  # of two slices one will never come
    worker.gradient.copy_(gradient(1, 0))
    worker.contribute(0)
    threading.Timer(0.3, worker.abandon).start()
    began = time.monotonic()
    with pytest.raises(SharedMemoryError):
        worker.finish(6 * PATIENCE_S)
    assert time.monotonic() - began < 3 * PATIENCE_S
    worker.close()


def test_clipping_and_a_schedule_are_those_of_a_plain_loop(weights: Tensor) -> None:
    most_norm, steps = 1.45, 6

    def cycle(over: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(over, [0.1, 0.2], total_steps=steps)

    update = OptimizerUpdate(LAYOUT, functools.partial(dataplane.part_of, optimizer(weights)))
    given = optimizer(weights)
    rates = cycle(given)
    shared = SharedWeights(LAYOUT, weights)
    served = SharedMemoryServer(Shard(LAYOUT, 0, weights, update, EXACT, most_norm=most_norm, keep=shared.keep), shared)
    served.start()
    workers = [join(served) for _ in range(2)]
    for step in range(1, steps + 1):
        options = encoded(tuple({name: group[name] for name in ("lr", "betas")} for group in given.param_groups))
        for index, worker in enumerate(workers):
            worker.begin(step, 2, 30, options)
            worker.gradient.copy_(gradient(step, index))
            worker.contribute(index)
        for worker in workers:
            worker.finish(PATIENCE_S)
        given.step()
        rates.step()
    served.close()

    plain = optimizer(weights)
    scheduler = cycle(plain)
    parameters = [group["params"][0] for group in plain.param_groups]
    norms = []
    for step in range(1, steps + 1):
        mean = (gradient(step, 0) + gradient(step, 1)) / 30
        for parameter, part in zip(parameters, mean.split([600, 400]), strict=True):
            parameter.grad = part
        norms.append(nn.utils.clip_grad_norm_(parameters, most_norm).item())
        plain.step()
        scheduler.step()
    assert min(norms) < most_norm < max(norms), norms
    right = torch.cat([parameter.detach() for parameter in parameters])
    for worker in workers:
        torch.testing.assert_close(worker.weights[steps % 2], right, rtol=1e-5, atol=1e-6)


def test_a_slice_counts_once_when_its_worker_and_another_one_send_it(
    server: SharedMemoryServer, weights: Tensor
) -> None:
    first, second = join(server), join(server)
    for step in range(1, 4):
        for worker in (first, second):
            worker.begin(step, 2, 30)
        first.gradient.copy_(gradient(step, 0))
        first.contribute(0)
        spare = first.spare()
        spare.copy_(gradient(step, 1))
        first.contribute_spare(1, spare)
        second.gradient.copy_(gradient(step, 1))
        second.contribute(1)
        for worker in (first, second):
            worker.finish(PATIENCE_S)
    torch.testing.assert_close(first.weights[1], expected(weights, 3, 2, 30), rtol=1e-5, atol=1e-6)


def test_a_worker_that_leaves_does_not_keep_the_others_from_going_on(
    server: SharedMemoryServer, weights: Tensor
) -> None:
    stays, leaves = join(server), join(server)
    stays.begin(1, 2, 30)
    leaves.begin(1, 2, 30)
    leaves.gradient.copy_(gradient(1, 1))
    leaves.contribute(1)
    leaves.close()
    stays.gradient.copy_(gradient(1, 0))
    stays.contribute(0)
    stays.finish(PATIENCE_S)
    torch.testing.assert_close(stays.weights[1], expected(weights, 1, 2, 30), rtol=1e-5, atol=1e-6)


def test_a_shard_that_is_gone_is_an_error_and_not_a_wait(server: SharedMemoryServer) -> None:
    worker = join(server)
    worker.begin(1, 2, 30)
    server.close()
    with pytest.raises(SharedMemoryError, match="gone"):
        worker.finish(PATIENCE_S)


def test_a_slice_that_never_comes_ends_the_wait_at_its_deadline(server: SharedMemoryServer) -> None:
    worker = join(server)
    worker.begin(1, 2, 30)
    with pytest.raises(StepIncomplete, match=r"not whole within 0\.2 s"):
        worker.finish(0.2)


def test_a_worker_that_reads_nothing_does_not_hold_up_the_others(server: SharedMemoryServer) -> None:
    works, sleeps = join(server), join(server)
    for step in range(1, 1001):
        works.begin(step, 1, 1)
        works.contribute(0)
        works.finish(PATIENCE_S)
    assert (works.step, sleeps.step) == (1000, 0)


def test_a_worker_that_contradicts_the_others_is_told_so_and_they_go_on(server: SharedMemoryServer) -> None:
    right, wrong = join(server), join(server)
    right.begin(1, 2, 30)
    right.contribute(0)
    end = time.monotonic() + PATIENCE_S
    while not all(server.shard.counted(Header(Kind.ASK, step=1))):
        assert time.monotonic() < end
        time.sleep(0.001)
    wrong.begin(1, 3, 30)
    wrong.contribute(1)
    with pytest.raises(SharedMemoryError, match="3 slices"):
        wrong.finish(PATIENCE_S)
    spare = right.spare()
    right.contribute_spare(1, spare.zero_())
    right.finish(PATIENCE_S)
    assert server.failure is None


def test_a_worker_with_another_cut_is_refused(server: SharedMemoryServer) -> None:
    with pytest.raises(SharedMemoryError):
        join(server, plan_layout([NUMEL], [1.0], CHUNK))


def test_nothing_is_left_of_the_memory_when_both_ends_are_gone(weights: Tensor) -> None:
    def held() -> set[str]:
        """Open files and mapped memory; those of earlier tests may still go away."""
        files = set()
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # of the listing itself, which is closed by now
                files.add(f"{entry.name} {entry.readlink()} {entry.stat().st_ino}")
        return files | {line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:hetero-tui" in line}

    before = held()
    update = OptimizerUpdate(LAYOUT, functools.partial(dataplane.part_of, optimizer(weights)))
    shared = SharedWeights(LAYOUT, weights)
    served = SharedMemoryServer(Shard(LAYOUT, 0, weights, update, EXACT, keep=shared.keep), shared)
    served.start()
    worker = join(served)
    assert any("memfd:hetero-tui" in each for each in held() - before)
    worker.close()
    served.close()
    del worker, served, shared, update
    end = time.monotonic() + PATIENCE_S
    while left := held() - before:
        assert time.monotonic() < end, left
        time.sleep(0.01)
