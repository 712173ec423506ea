"""``torch.distributed.pipelining`` over gloo: a stage of ``sized_text``'s model on each host, cut as the variant says.

The variant is ``SCHEDULE:BOUNDS``, the first layer of each stage and the number of layers: ``1f1b:0,6,10,12``. ``1f1b``
is torch's schedule of Narayanan et al., "PipeDream-2BW" (2021); ``one`` has one micro-batch in flight, as HeteroShard:
torch's schedule for a single micro-batch, called once for each. Torch's stages share no weights: the first and the last
one add up the gradients of the tied embedding here.

Prints the seconds of each step; the last weights of the stage are in the file :data:`WEIGHTS` of the host's home.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from benchmarks.peers.ddp import FORWARD_PART
from benchmarks.peers.task import PEER_PORT, START_DEADLINE, Settings, Task
from benchmarks.sized_text import SizedGPT

MICRO_BATCHES = 8
WEIGHTS = "pipelining.safetensors"
CPU = torch.device("cpu")


class Piece(nn.Module):
    """Some layers of a model; the first piece has the embeddings too, the last one the output layer."""

    def __init__(self, model: SizedGPT, first: int, last: int) -> None:
        super().__init__()
        layers = model.blocks.layers
        self.begins, self.ends = first == 0, last == len(layers)
        self.blocks: Any = nn.Module()
        self.blocks.layers = nn.ModuleDict({str(number): layers[number] for number in range(first, last)})
        if self.begins or self.ends:
            self.tokens = model.tokens
        if self.begins:
            self.positions = model.positions
        if self.ends:
            self.blocks.add_module("norm", model.blocks.norm)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(n, t)`` for the first piece, else activations; logits from the last one, else activations."""
        if self.begins:
            x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.blocks.layers.values():
            x = layer(x, src_mask=mask, is_causal=True)
        return functional.linear(self.blocks.norm(x), self.tokens.weight) if self.ends else x


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """As the job's."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def paced(task: Task, function: Callable[..., Any], samples: int, part: float) -> Callable[..., Any]:
    """``function``, which takes as long as this host's simulated device for a part of the model and of its work."""

    @wraps(function)
    def stretched(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = function(*args, **kwargs)
        task.device.sleep_until_target(samples, started, part)
        return result

    return stretched


def main() -> None:
    """Train."""
    settings = Settings.from_command_line()
    task = Task(settings)
    schedule, _, cut = settings.variant.partition(":")
    bounds = [int(bound) for bound in cut.split(",")]
    rank, last = settings.rank, settings.hosts - 1
    assert isinstance(task.model, SizedGPT)
    piece = Piece(task.model, bounds[rank], bounds[rank + 1])
    config = task.job.config
    optimizer = task.job.create_optimizer(piece, config)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{settings.addresses[0]}:{PEER_PORT}",
        rank=rank,
        world_size=settings.hosts,
        timeout=timedelta(seconds=START_DEADLINE),
    )
    stage = PipelineStage(piece, rank, settings.hosts, CPU)
    samples = settings.batch // MICRO_BATCHES
    here = (bounds[rank + 1] - bounds[rank]) / bounds[-1]
    one = schedule == "one"
    calls, kind = (MICRO_BATCHES, ScheduleGPipe) if one else (1, Schedule1F1B)
    pipeline = kind(stage, MICRO_BATCHES // calls, next_byte_loss, scale_grads=False)
    ends = distributed.new_group([0, last])

    def step(number: int) -> None:
        inputs, targets = task.job_batch(number)
        optimizer.zero_grad()
        for given, wanted in zip(inputs.chunk(calls), targets.chunk(calls), strict=True):
            arguments = (given,) if piece.begins else ()
            pipeline.step(*arguments, target=wanted if piece.ends else None, return_outputs=False)
        if piece.begins or piece.ends:
            distributed.all_reduce(piece.tokens.weight.grad, group=ends)
        for parameter in piece.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(MICRO_BATCHES)
        optimizer.step()

    before = {name: value.clone() for name, value in piece.state_dict().items()}
    step(1)  # everything that is slow the first time
    piece.load_state_dict(before)
    optimizer = task.job.create_optimizer(piece, config)
    work: Any = stage
    work.forward_one_chunk = paced(task, stage.forward_one_chunk, samples, here * FORWARD_PART)
    work.backward_one_chunk = paced(task, stage.backward_one_chunk, samples, here * (1 - FORWARD_PART))
    seconds = []
    for number in range(1, settings.steps + 1):
        distributed.barrier()
        began = time.perf_counter()
        step(number)
        distributed.barrier()  # a step ends where all have made the optimizer's
        seconds.append(time.perf_counter() - began)
    save_file({name: value.contiguous() for name, value in piece.state_dict().items()}, Path.home() / WEIGHTS)
    print(json.dumps({"seconds": seconds}), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
