"""The exchange without waiting, over real sockets: nothing is lost, doubled or held up by another worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from remote_agent.training.server.stale_server import StaleServer
from remote_agent.training.server.stale_shard import StaleShard
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.wire import codecs
from remote_agent.training.wire.agreement import Codecs
from remote_agent.training.wire.client import ExchangeClient
from remote_agent.training.wire.errors import ConnectionRefused, ExchangeError, StepIncomplete
from remote_agent.training.wire.layout import Layout, plan_layout
from remote_agent.training.wire.stale_client import StaleClient
from tests.training.wire.conftest import Cable, until

NUMBERS, BATCH, DEADLINE = 200_000, 12, 20.0
TOKEN = b"the cluster's token"
CUT = plan_layout([NUMBERS], [1, 1], 10_000)


def gradient(number: int) -> Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(number))


@dataclass
class Shards:
    """Shards that serve, and workers of theirs; all end with the test."""

    codecs: Codecs
    servers: Sequence[StaleServer]
    stack: contextlib.ExitStack

    def connect(self, addresses: Sequence[tuple[str, int]] | None = None) -> StaleClient:
        ways = addresses or [server.address for server in self.servers]
        return self.stack.enter_context(StaleClient(CUT, ways, TOKEN, self.codecs))

    def cables(self) -> list[Cable]:
        return [self.stack.enter_context(contextlib.closing(Cable(server.address))) for server in self.servers]

    def weights(self) -> Tensor:
        """What the shards hold."""
        out = torch.full((NUMBERS,), torch.nan)
        self.connect().pull(out, DEADLINE)
        return out


Make = Callable[..., Shards]


@pytest.fixture
def shards() -> Iterator[Make]:
    """Makes shards: `shards(gradients="fp32", weights="fp32", optimizer=...)`; weights begin at 0."""
    with contextlib.ExitStack() as stack:

        def make(gradients: str = "fp32", weights: str = "fp32", rate: float = BATCH) -> Shards:
            pair = Codecs(codecs.create(gradients), codecs.create(weights))
            servers = []
            for number in range(CUT.shards):
                update = OptimizerUpdate(CUT, lambda _group, part: torch.optim.SGD([part], lr=rate))
                shard = StaleShard(CUT, number, torch.zeros(NUMBERS), update, pair, batch=BATCH)
                servers.append(stack.enter_context(StaleServer(shard, TOKEN, "127.0.0.1")))
            return Shards(pair, servers, stack)

        yield make


def test_a_worker_gets_the_weights_with_its_slice_in_them_while_others_send_nothing(shards: Make) -> None:
    fleet = shards()
    one, _silent = fleet.connect(), fleet.connect()
    out = torch.full((NUMBERS,), torch.nan)
    timings = one.exchange(1, 4, gradient(1), out).finish(DEADLINE)
    torch.testing.assert_close(out, -gradient(1))
    assert one.watermark == 1
    assert 4 * NUMBERS < timings.bytes_out < 4.1 * NUMBERS
    assert 4 * NUMBERS < timings.bytes_in < 4.1 * NUMBERS


def test_slices_of_many_workers_are_all_in_the_weights_at_the_end(shards: Make, together: Callable[..., None]) -> None:
    fleet = shards()

    def work(numbers: range) -> None:
        client, out = fleet.connect(), torch.empty(NUMBERS)
        for number in numbers:
            client.exchange(number, 1 + number % BATCH, gradient(number), out).finish(DEADLINE)

    together(*(partial(work, range(1 + worker, 25, 4)) for worker in range(4)))
    expected = -sum((gradient(number) for number in range(1, 25)), torch.zeros(NUMBERS))
    torch.testing.assert_close(fleet.weights(), expected, atol=1e-4, rtol=0)
    assert all(len(server.shard._entries[chunk].log) == 1 for server in fleet.servers for chunk in server.shard.chunks)


@pytest.mark.parametrize("direction", ["gradients", "weights"])
@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_a_connection_that_breaks_is_made_again_and_nothing_counts_twice(
    shards: Make, codec: str, direction: str
) -> None:
    fleet, calm = (shards(codec, "fp32" if codec == "fp32" else "bf16") for _ in range(2))
    cables = fleet.cables()
    shaky, steady = fleet.connect([cable.address for cable in cables]), calm.connect()
    out, other = torch.empty(NUMBERS), torch.empty(NUMBERS)
    for number in range(1, 5):
        for cable in cables:
            size = (fleet.codecs.gradients if direction == "gradients" else fleet.codecs.weights).size(NUMBERS // 2)
            cable.break_after(size * number // 5, to_shard=direction == "gradients")
        out.fill_(torch.nan)
        shaky.exchange(number, 3, gradient(number), out).finish(DEADLINE)
        steady.exchange(number, 3, gradient(number), other).finish(DEADLINE)
        assert all(cable.broken.is_set() for cable in cables)
        assert torch.equal(out, other)
    assert torch.equal(fleet.weights(), calm.weights())


def test_a_slice_that_a_dead_worker_sent_in_part_is_completed_by_another(shards: Make) -> None:
    fleet = shards()
    cables = fleet.cables()
    dying = fleet.connect([cable.address for cable in cables])
    for cable in cables:
        cable.break_after(150_000)
    dying.exchange(1, 3, gradient(1), torch.empty(NUMBERS))
    assert all(cable.broken.wait(DEADLINE) for cable in cables)
    for cable in cables:
        cable.close()
    until(lambda: any(any(server.shard.counted(1)) for server in fleet.servers))
    assert sum(sum(server.shard.counted(1)) for server in fleet.servers) < len(CUT.chunks)
    out = torch.empty(NUMBERS)
    fleet.connect().exchange(1, 3, gradient(1), out, feedback=False).finish(DEADLINE)
    torch.testing.assert_close(out, -gradient(1))


def test_a_pull_that_is_cut_is_made_again_and_holds_what_was_counted_before(shards: Make) -> None:
    fleet = shards(weights="bf16")
    cables = fleet.cables()
    shaky = fleet.connect([cable.address for cable in cables])
    out, fresh = torch.empty(NUMBERS), torch.empty(NUMBERS)
    for number in range(1, 6):
        fleet.connect().exchange(number, 3, gradient(number), out).finish(DEADLINE)
        for cable in cables:
            cable.break_after(4 * NUMBERS // 2 * number // 6, to_shard=False)
        fresh.fill_(torch.nan)
        shaky.pull(fresh, DEADLINE)
        assert torch.equal(fresh, fleet.weights()), "in fp32, whatever the codec of answers"
        assert shaky.watermark == number


def test_errors_of_compression_are_made_up_for(shards: Make) -> None:
    fleet = shards("int8", "bf16")
    client, out, rounds = fleet.connect(), torch.empty(NUMBERS), 20
    for number in range(1, rounds + 1):
        client.exchange(number, 3, gradient(1), out).finish(DEADLINE)
    once = shards("int8", "bf16")
    once.connect().exchange(1, 3, gradient(1), out).finish(DEADLINE)
    alone = (once.weights() + gradient(1)).abs().max()
    assert (fleet.weights() + rounds * gradient(1)).abs().max() < 2 * alone


def test_one_exchange_at_a_time(shards: Make) -> None:
    fleet = shards()
    (cable, _) = cables = fleet.cables()
    cable.close()
    client, out = fleet.connect([each.address for each in cables]), torch.empty(NUMBERS)
    exchanging = client.exchange(1, 3, gradient(1), out)
    until(lambda: sum(fleet.servers[1].shard.counted(1)) == 10)
    with pytest.raises(StepIncomplete, match="10 of 20 chunks"):
        exchanging.finish(1.0)
    with pytest.raises(ExchangeError, match="another one is open"):
        client.pull(out)


def test_a_worker_of_a_synchronous_run_is_refused_with_the_reason(shards: Make) -> None:
    fleet = shards()
    addresses = [server.address for server in fleet.servers]
    with ExchangeClient(CUT, addresses, TOKEN, fleet.codecs) as client, pytest.raises(ExchangeError) as caught:
        client.fetch(torch.empty(NUMBERS), DEADLINE)
    assert "another cut of the buffer" in str(caught.value)


def test_a_worker_of_another_cut_is_refused(shards: Make) -> None:
    fleet = shards()
    other: Layout = plan_layout([NUMBERS], [1, 1], 20_000)
    addresses = [server.address for server in fleet.servers]
    client = fleet.stack.enter_context(StaleClient(other, addresses, TOKEN, fleet.codecs))
    with pytest.raises((ExchangeError, ConnectionRefused), match="another cut"):
        client.pull(torch.empty(NUMBERS), DEADLINE)


def test_an_optimizer_that_fails_ends_the_exchange_for_everybody_with_the_reason(shards: Make) -> None:
    fleet = shards(rate=0.1)
    client, out = fleet.connect(), torch.empty(NUMBERS)
    update = fleet.servers[0].shard._update

    def broken(*_arguments: object) -> None:
        raise RuntimeError("no such state")

    update.apply = broken  # type: ignore[method-assign]
    with pytest.raises(ExchangeError, match="no such state"):
        client.exchange(1, 3, gradient(1), out).finish(DEADLINE)
    assert fleet.servers[0].failure is not None
    with pytest.raises(ExchangeError, match="no such state"):
        fleet.connect().pull(out, DEADLINE)
