"""Workers beside the shard and workers away from it, in one run: what a codec does to each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.shared_memory_server import SharedMemoryServer, SharedWeights
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared.dataplane import StreamPlan
from remote_agent.training.wire import codecs
from remote_agent.training.wire.agreement import Codecs
from remote_agent.training.wire.endpoint import ShardEndpoint, StreamInfo, place
from remote_agent.training.wire.layout import plan_layout
from remote_agent.training.wire.shared_memory.client import SharedMemoryChannel
from remote_agent.training.wire.shared_memory.memory import available
from remote_agent.training.worker.channels import Channel, NetworkChannel, open_channel

pytestmark = pytest.mark.skipif(not available(), reason="shared memory is for Linux")

NUMEL, PATIENCE_S = 3000, 20.0
LAYOUT = plan_layout([NUMEL], [1.0], 1024)
SECRET = b"a secret of the test's own"


def sgd(_group: int, part: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([part], lr=0.02)


def numbers(seed: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["int8", "bf16"])
def channels(request: pytest.FixtureRequest) -> Iterator[tuple[Channel, Channel]]:
    """One worker's way through memory and another's over the network, to one shard."""
    codec = codecs.create(request.param)
    agreed = Codecs(codec, codec)
    shared = SharedWeights(LAYOUT, numbers(0))
    shard = Shard(LAYOUT, 0, numbers(0), OptimizerUpdate(LAYOUT, sgd), agreed, keep=shared.keep)
    servers = (ShardServer(shard, SECRET, "127.0.0.1"), SharedMemoryServer(shard, shared))
    for server in servers:
        server.start()
    here = ShardEndpoint(address=servers[0].address, place=place(), memory=servers[1].address)
    away = ShardEndpoint(address=servers[0].address, place="another computer", memory=servers[1].address)
    plan = StreamPlan(names=("weight",), groups=(NUMEL,), watched=())
    entries = (
        StreamInfo(plan=plan, layout=LAYOUT, shards=(endpoint,), secret=SECRET, codecs=agreed)
        for endpoint in (here, away)
    )
    opened = tuple(open_channel(entry, numbers(0), 0) for entry in entries)
    yield opened[0], opened[1]
    for each in (*opened, *servers):
        each.close()


def test_with_a_codec_all_workers_hold_the_same_weights_to_the_bit(channels: tuple[Channel, Channel]) -> None:
    assert isinstance(channels[0], SharedMemoryChannel)
    assert isinstance(channels[1], NetworkChannel)
    for step in range(1, 201):
        for index, channel in enumerate(channels):
            channel.begin(step, len(channels), 2)
            channel.gradient.copy_(channel.weights[(step - 1) % 2] - 1)  # towards 1
            channel.contribute(index)
        for channel in channels:
            channel.finish(PATIENCE_S)
        assert torch.equal(channels[0].weights[step % 2], channels[1].weights[step % 2])
    # What a codec loses is made up for later: the weights are where they would be without it, nearly.
    assert (channels[0].weights[0] - 1).abs().mean() < 0.1 * (numbers(0) - 1).abs().mean()
