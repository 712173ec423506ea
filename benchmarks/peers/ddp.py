"""Torch's DistributedDataParallel over gloo, the batch cut evenly; gradients travel as fp32 or bf16.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (2020). Buckets are reduced while
the backward pass goes on. A simulated device's backward is stretched where it happens: a bucket is handed to gloo at
the time at which the simulated device would have it, two thirds of a step being backward.

``torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook`` refuses gloo; the hook here does the
same: divide, round to bf16, all-reduce, widen.
"""

# No `from __future__ import annotations`: DDP checks the types in a hook's signature.
import time
from datetime import timedelta

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.task import PEER_PORT, START_DEADLINE, Record, Settings, Task

FORWARD_PART = 1 / 3
"""Of the time of forward and backward: the backward pass computes two gradients for each product of the forward."""


class Pacer:
    """Reduces buckets, each at the simulated time at which the device would have it."""

    def __init__(self, task: Task, wire: torch.dtype) -> None:
        self._task, self._wire = task, wire
        self._numbers = sum(parameter.numel() for parameter in task.model.parameters())
        self._done = 0
        self._started = 0.0
        self._target = 0.0

    def begin(self, samples: int) -> None:
        """A step with so many samples of this host begins."""
        self._started, self._done = time.perf_counter(), 0
        self._target = self._task.device.profile.seconds(samples)

    def reduce(
        self,
        _: object,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """DDP's communication hook."""
        buffer = bucket.buffer()
        self._done += buffer.numel()
        part = FORWARD_PART + (1 - FORWARD_PART) * self._done / self._numbers
        left = self._started + part * self._target - time.perf_counter()
        if left > 0:
            time.sleep(left)
        travelling = buffer.div_(self._task.settings.hosts).to(self._wire)
        work = distributed.all_reduce(travelling, async_op=True)
        assert work is not None
        done: torch.futures.Future[Tensor] = work.get_future().then(lambda sum_: buffer.copy_(sum_.value()[0]))
        return done


def main() -> None:
    """Train."""
    settings = Settings.from_command_line()
    task = Task(settings)
    task.warm_up()
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{settings.addresses[0]}:{PEER_PORT}",
        rank=settings.rank,
        world_size=settings.hosts,
        timeout=timedelta(seconds=START_DEADLINE),
    )
    pacer = Pacer(task, {"fp32": torch.float32, "bf16": torch.bfloat16}[settings.variant])
    model = DistributedDataParallel(task.model)
    model.register_comm_hook(None, pacer.reduce)
    record = Record(task)
    distributed.barrier()
    record.start()
    for step in range(1, settings.steps + 1):
        indices = task.even_part(step)
        task.optimizer.zero_grad()
        pacer.begin(len(indices))
        task.loss(indices, model).backward()  # type: ignore[no-untyped-call]
        task.optimizer.step()
        record.step(len(indices))
        record.snapshot_if_due()
    record.finish()


if __name__ == "__main__":
    main()
