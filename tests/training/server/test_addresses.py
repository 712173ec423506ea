"""A shard is reached at its host's address, of either kind."""

from __future__ import annotations

import socket

import pytest
import torch
from torch import nn

from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.wire import codecs
from remote_agent.training.wire.codecs import Codecs
from remote_agent.training.wire.layout import plan_layout

LAYOUT = plan_layout([10], [1.0], 1024)


def sgd(_group: int, part: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([part], lr=0.1)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_shard_listens_at_an_address_of_either_kind(address: str) -> None:
    if ":" in address and not socket.has_ipv6:
        pytest.skip("this computer has no IPv6")
    codec = codecs.create("fp32")
    shard = Shard(LAYOUT, 0, torch.zeros(10), OptimizerUpdate(LAYOUT, sgd), Codecs(codec, codec))
    with ShardServer(shard, b"secret", address) as server:
        assert server.address[0] == address
        socket.create_connection(server.address, timeout=20).close()
