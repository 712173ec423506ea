"""What a slice costs on a device, beside the same forward and backward in plain torch.

``python -m benchmarks.slice_cost [--device cuda:0] [--rounds N]``

One process, no Ray: the worker's own :class:`~remote_agent.training.worker.device.compute.SliceComputer` computes
slices of a perceptron and of two transformers, in float32 and in bfloat16. Plain torch does zero_grad, forward and
backward of the same batch. Its data lies on the device already; ours is fetched from the CPU for each slice, as in a
run, and it knows each slice's loss before it begins the next one, while plain torch lets a GPU compute behind its back.
The two take turns, and a ratio is the median of the rounds' own. Then a four-bit layer of 4096 x 4096, and what the
codecs take for 16.9 million numbers of the device.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.models.nf4 import Nf4Linear
from remote_agent.settings import CODECS
from remote_agent.training.data import datasets
from remote_agent.training.shared.messages import Slice
from remote_agent.training.wire import codecs
from remote_agent.training.worker.device import backend
from remote_agent.training.worker.device.compute import SliceComputer

VOCABULARY, CLASSES, NUMBERS = 8192, 10, 16_900_000
BLOCK_S = 0.25
"""A round of one way takes about so long."""


class Transformer(nn.Module):
    """Tokens to the next tokens."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Shape: (samples, tokens) to (samples, tokens, vocabulary)."""
        return self.out(self.body(self.tokens(ids) + self.places[: ids.shape[1]]))  # type: ignore[no-any-return]


def loss(model: nn.Module, batch: Any) -> Tensor:
    """The mean cross entropy of classes or of tokens."""
    return functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


@dataclass(frozen=True)
class Workload:
    """A model with as many samples as a slice has."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor


def workloads() -> tuple[Workload, ...]:
    """The three of the table."""
    torch.manual_seed(1)
    layers = nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    images = Workload(
        "perceptron", lambda: nn.Sequential(*layers), torch.randn(256, 784), torch.randint(CLASSES, (256,))
    )

    def text(width: int, depth: int, length: int) -> Workload:
        ids = torch.randint(VOCABULARY, (32, length))
        return Workload(f"transformer of {width}", lambda: Transformer(width, depth, length), ids, ids)

    return images, text(512, 5, 256), text(768, 10, 512)


def seconds(call: Callable[[], object], wait: Callable[[], None], calls: int) -> float:
    """What one of so many calls takes."""
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - began) / calls


def turns(ways: Sequence[Callable[[], object]], wait: Callable[[], None], rounds: int) -> list[list[float]]:
    """Seconds of a call of each way in each round, taken in turn."""
    for way in ways:
        seconds(way, wait, 2)
    calls = [max(1, round(BLOCK_S / seconds(way, wait, 1))) for way in ways]
    return [[seconds(way, wait, count) for way, count in zip(ways, calls, strict=True)] for _ in range(rounds)]


def slices(
    load: Workload, device: torch.device, dtype: torch.dtype | None, rounds: int, wait: Callable[[], None]
) -> str:
    """A line of the table."""
    model = load.make().train().to(device)
    parameters, count = list(model.parameters()), len(load.inputs)
    ours = SliceComputer(model, loss, datasets.as_dataset((load.inputs, load.targets)), device, seed=3, dtype=dtype)
    batch = load.inputs.to(device), load.targets.to(device)

    def plain() -> None:
        for each in parameters:
            each.grad = None
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            found = loss(model, batch)
        found.backward()  # type: ignore[no-untyped-call]

    whole = Slice.whole(np.arange(count))
    found = turns((lambda: ours(1, whole), plain), wait, rounds)
    own = statistics.median(each[0] for each in found)
    times = statistics.median(each[0] / each[1] for each in found)
    size = sum(each.numel() for each in parameters) / 1e6
    about = f"{load.name}, {size:.1f}M, {tuple(load.inputs.shape)}, {dtype or torch.float32}"
    return f"{about}: {own * 1e3:.2f} ms, {times:.2f}x"


def both_ways(layer: nn.Module, x: Tensor) -> None:
    """Forward and backward of a layer."""
    layer(x).sum().backward()


def brought(encoded: Callable[[], Tensor]) -> Tensor:
    """What was encoded, on the CPU."""
    return encoded().cpu()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slice_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, mps, xpu:0")
    parser.add_argument("--rounds", type=int, default=5, help="of each way")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    found = backend.of(device)

    def wait() -> None:
        found.synchronize(device)

    for load in workloads():
        for dtype in (None, torch.bfloat16):
            print(slices(load, device, dtype, options.rounds, wait), flush=True)
    layer = Nf4Linear(nn.Linear(4096, 4096, bias=False)).to(device)
    for rows in (1, 64, 4096):
        x = torch.randn(rows, 4096, device=device, requires_grad=True)
        times = turns((functools.partial(both_ways, layer, x),), wait, options.rounds)
        print(f"four-bit layer, {rows} rows: {statistics.median(each[0] for each in times) * 1e3:.2f} ms", flush=True)
    values = torch.randn(NUMBERS, device=device)
    for name in CODECS:
        encoded = functools.partial(codecs.create(name).encode, values)
        times = turns((encoded, functools.partial(brought, encoded)), wait, options.rounds)
        encode, bring = (statistics.median(each[way] for each in times) * 1e3 for way in (0, 1))
        print(f"codec {name}: encoded in {encode:.2f} ms, with the way to the CPU {bring:.2f} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
