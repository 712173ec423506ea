"""A shard's memory is its model's, however many workers push to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from remote_agent.training.wire import codecs
from remote_agent.training.wire.client import ExchangeClient
from remote_agent.training.wire.codecs import Codecs
from remote_agent.training.wire.layout import plan_layout
from tests.training.wire.conftest import push_pull

ROOT = Path(__file__).resolve().parents[3]
NUMBERS, DEADLINE = 4_000_000, 60.0
SHARD = f"""
import re, sys, torch
from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.wire import codecs
from remote_agent.training.wire.codecs import Codecs
from remote_agent.training.wire.layout import plan_layout
torch.set_num_threads(1)
layout = plan_layout([{NUMBERS}], [1.0])
pair = Codecs(codecs.create("fp32"), codecs.create("fp32"))
update = OptimizerUpdate(layout, lambda group, parameter: torch.optim.SGD([parameter], lr=0.1, momentum=0.9))
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
tiny = torch.nn.Parameter(torch.ones(1))
tiny.grad = torch.ones(1)
torch.optim.SGD([tiny], lr=0.1, momentum=0.9).step()  # imports what a first step imports
before = peak()
with ShardServer(Shard(layout, 0, torch.zeros({NUMBERS}), update, pair), b"token", "127.0.0.1") as server:
    print(server.address[1], flush=True)
    for line in sys.stdin:
        print(peak() - before, flush=True)
"""


def test_a_shards_memory_does_not_grow_with_workers(together: Callable[..., None]) -> None:
    layout, pair = plan_layout([NUMBERS], [1.0]), Codecs(codecs.create("fp32"), codecs.create("fp32"))
    gradient = torch.ones(NUMBERS)
    process = subprocess.Popen(
        [sys.executable, "-c", SHARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    peaks = {}
    try:
        port = int(process.stdout.readline())
        step = 0
        for count in (2, 8):
            with ExitStack() as stack:
                start = step or 0
                clients = [
                    stack.enter_context(ExchangeClient(layout, [("127.0.0.1", port)], b"token", pair, step=start))
                    for _ in range(count)
                ]
                buffers = [[torch.empty(NUMBERS), torch.empty(NUMBERS)] for _ in clients]
                for step in range(start + 1, start + 3):
                    together(
                        *(
                            partial(push_pull, client, step, n, count, count, gradient, *buffers[n])
                            for n, client in enumerate(clients)
                        )
                    )
                    for own in buffers:
                        own.reverse()
            process.stdin.write("\n")
            process.stdin.flush()
            peaks[count] = int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(DEADLINE)
    model = 4 * NUMBERS
    assert peaks[8] - peaks[2] < model, "8 workers' gradients would be 8 times the model"
    assert peaks[8] < (4 + 1) * model, "weights, sums, payloads of two steps at most, and the momentum"
