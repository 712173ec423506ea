"""A worker's delayed rounds: when the common weights come in the middle of the next round, no local step is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.shared_memory_server import SharedMemoryServer, SharedWeights
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared.dataplane import StreamPlan
from remote_agent.training.shared.messages import Counted, Slice, StreamedResult, StreamedTask
from remote_agent.training.shared.slices import Indices
from remote_agent.training.wire.codecs import EXACT
from remote_agent.training.wire.endpoint import ShardEndpoint, StreamInfo, place
from remote_agent.training.wire.layout import plan_layout
from remote_agent.training.wire.shared_memory.memory import available
from remote_agent.training.worker.channels import Channel, open_channel
from remote_agent.training.worker.device.compute import SliceLoss
from remote_agent.training.worker.local_rounds import LocalRounds
from tests.training.cuts import cut

pytestmark = pytest.mark.skipif(not available(), reason="shared memory is for Linux")

SIZE, SAMPLES, BATCH, PATIENCE_S = 20, 200, 2, 20.0
STEPS = (4, 2)
RATE = 0.05
LAYOUT = plan_layout([SIZE], [1.0], 8)
SECRET = b"a secret of the test's own"
X = torch.randn(SAMPLES, SIZE, generator=torch.Generator().manual_seed(1))
Y = X @ torch.randn(SIZE, generator=torch.Generator().manual_seed(2))
FIRST = torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
PLAN = StreamPlan(names=("weight",), groups=(SIZE,), watched=())


class Replica:
    """A worker of a small regression; ``before`` is called before each of its local steps."""

    def __init__(self, channel: Channel, made: Callable[[nn.Module], torch.optim.Optimizer] | None = None) -> None:
        self.channel = channel
        self.model = nn.Linear(SIZE, 1, bias=False)
        self.before: Callable[[int, int], None] = lambda step, number: None
        self._number = {0: 0}
        optimizer = made(self.model) if made else torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.rounds = LocalRounds(self.model, PLAN, channel, self._compute, optimizer, 0.0)

    def _compute(self, step: int, own: Slice) -> SliceLoss:
        self.before(step, own.index // len(STEPS))
        self.model.weight.grad = None
        loss = loss_of(self.model.weight, own.indices)
        (loss * len(own.indices)).backward()  # type: ignore[no-untyped-call]
        return SliceLoss(float(loss.detach()), float(len(own.indices)))

    def step(self, task: StreamedTask) -> StreamedResult:
        result = self.rounds.step(task)
        assert isinstance(result, StreamedResult), result
        return result

    def wait_until_ready(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while not self.channel.ready():
            assert time.monotonic() < end
            threading.Event().wait(0.001)


def loss_of(weight: Tensor, indices: Indices) -> Tensor:
    return ((X[indices] @ weight.reshape(-1) - Y[indices]) ** 2).mean()


def samples_of(step: int, index: int) -> Indices:
    begin = 20 * (step - 1) + (BATCH * STEPS[0] if index else 0)
    return torch.arange(begin, begin + BATCH * STEPS[index]).numpy()


def task(step: int, index: int, *, delayed: bool) -> StreamedTask:
    own = Slice.whole(samples_of(step, index), index)
    spans = cut(*(BATCH * steps for steps in STEPS))
    return StreamedTask(step=step, spans=spans, own=own, local_batch=BATCH, delayed=delayed)


@pytest.fixture(params=["memory", "network"])
def replicas(request: pytest.FixtureRequest) -> Iterator[tuple[Replica, Replica]]:
    """Two workers of one shard that takes the mean; the first one through memory, or both over the network."""
    shared = SharedWeights(LAYOUT, FIRST.clone())
    update = OptimizerUpdate(LAYOUT, lambda _, part: torch.optim.SGD([part], lr=1.0))
    shard = Shard(LAYOUT, 0, FIRST.clone(), update, EXACT, keep=shared.keep)
    servers = (ShardServer(shard, SECRET, "127.0.0.1"), SharedMemoryServer(shard, shared))
    for server in servers:
        server.start()
    here, away = (
        ShardEndpoint(address=servers[0].address, place=where, memory=servers[1].address)
        for where in (place(), "elsewhere")
    )
    endpoints = (here if request.param == "memory" else away, away)
    entries = [
        StreamInfo(plan=PLAN, layout=LAYOUT, shards=(endpoint,), secret=SECRET, codecs=EXACT) for endpoint in endpoints
    ]
    channels = [open_channel(entry, FIRST.clone(), 0) for entry in entries]
    yield Replica(channels[0]), Replica(channels[1])
    for each in (*channels, *servers):
        each.close()


def local_steps(weight: Tensor, indices: Indices, corrected_after: int, correction: Tensor) -> Tensor:
    """The textbook's: SGD, with a correction in between."""
    for number, begin in enumerate(range(0, len(indices), BATCH), start=1):
        weight = weight.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(weight, indices[begin : begin + BATCH]), weight)
        weight = weight.detach() - RATE * gradient
        if number == corrected_after:
            weight = weight + correction
    return weight


def expected(corrected_after: dict[tuple[int, int], int], last: int) -> Tensor:
    """The common weights after round ``last``: the corrections come after so many local steps of (round, worker)."""
    common, own, assumed = FIRST, [FIRST, FIRST], [FIRST, FIRST]
    for step in range(1, last + 1):
        for index in range(len(STEPS)):
            at = corrected_after.get((step, index), 1)
            own[index] = local_steps(own[index], samples_of(step, index), at, common - assumed[index])
        assumed = own
        own = list(own)
        common = sum((weight * steps for weight, steps in zip(own, STEPS, strict=True)), torch.zeros(SIZE)) / sum(STEPS)
    return common


def test_weights_that_come_in_the_middle_of_a_round_correct_it_from_there(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    first = one.step(task(1, 0, delayed=True))
    assert first.bytes_in == 0  # nobody has waited: the other worker has not contributed

    def let_the_other_end_its_round(step: int, number: int) -> None:
        if (step, number) == (2, 2):
            other.step(task(1, 1, delayed=True))
            one.wait_until_ready()
            other.wait_until_ready()

    one.before = let_the_other_end_its_round
    one.step(task(2, 0, delayed=True))
    other.step(task(2, 1, delayed=True))
    for replica in replicas:
        replica.wait_until_ready()
    ending = threading.Thread(target=one.step, args=(task(3, 0, delayed=False),))
    ending.start()
    other.step(task(3, 1, delayed=False))
    ending.join(PATIENCE_S)
    assert torch.equal(one.model.weight, other.model.weight)
    # The third of the four local steps was under way when the weights came to the one; the other had them by then.
    torch.testing.assert_close(one.model.weight.reshape(-1), expected({(2, 0): 3}, 3), rtol=1e-5, atol=1e-6)


def test_a_lost_slice_is_made_up_for_in_the_middle_of_the_next_round(replicas: tuple[Replica, Replica]) -> None:
    one, _ = replicas
    one.step(task(1, 0, delayed=True))
    before = one.model.weight.detach().clone()
    repaired = one.rounds.repair(task(1, 1, delayed=True))
    assert isinstance(repaired, StreamedResult)
    assert torch.equal(one.model.weight, before)  # its own round goes on from where it was
    one.wait_until_ready()
    one.step(task(2, 0, delayed=True))
    common = expected({}, 1)
    torch.testing.assert_close(one.channel.weights[1], common, rtol=1e-5, atol=1e-6)
    assert isinstance(one.rounds.repair(task(1, 1, delayed=True)), Counted)
