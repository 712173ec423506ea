"""torchft's LocalSGD and DiLoCo: every host trains alone for a round, then parameters (or their changes) are averaged.

Stich, "Local SGD Converges Fast and Communicates Little" (2018); Douillard et al., "DiLoCo" (2023). One replica a host,
with torchft's lighthouse on the first one. Rounds have the same number of inner steps on every host: torchft has no
other. Its quantized all-reduce needs CUDA, so what travels is fp32.
"""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.peers.task import PEER_PORT, START_DEADLINE, Meeting, Record, Settings, Task

OUTER_LEARNING_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""Of DiLoCo's outer optimizer, as in its paper."""

ROUND_DEADLINE = timedelta(seconds=600)
"""For a quorum: the slowest host's round and the exchange."""

JOIN_MS = 10_000


def main() -> None:
    """Train."""
    from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from torchft.coordination import LighthouseServer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    settings = Settings.from_command_line()
    task = Task(settings)
    task.warm_up()
    meeting = Meeting(settings)
    lighthouse = None
    if settings.rank == 0:
        lighthouse = LighthouseServer(bind=f"[::]:{PEER_PORT}", min_replicas=settings.hosts, join_timeout_ms=JOIN_MS)
    meeting.wait_for_all()
    # The lab's hosts resolve their own names to their addresses, as torchft needs.
    own = TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=ROUND_DEADLINE),
        load_state_dict=task.model.load_state_dict,
        state_dict=task.model.state_dict,
        min_replica_size=settings.hosts,
        use_async_quorum=False,
        timeout=ROUND_DEADLINE,
        quorum_timeout=ROUND_DEADLINE,
        connect_timeout=timedelta(seconds=START_DEADLINE),
        rank=0,
        world_size=1,
        store_addr=socket.gethostname(),
        store_port=own.port,
        lighthouse_addr=f"http://{settings.addresses[0]}:{PEER_PORT}",
        replica_id=f"host{settings.rank}",
        init_sync=False,
    )
    record = Record(task)
    with _rounds(settings, task, manager):
        meeting.wait_for_all()
        record.start()
        for step in range(1, settings.steps + 1):
            indices = task.even_part(step)
            task.gradient(indices)
            task.optimizer.step()
            is_round_end = step % settings.round_steps == 0
            record.step(len(indices), whole=is_round_end)
            if is_round_end:
                record.snapshot_if_due()
        record.finish()
    assert lighthouse is not None


def _rounds(settings: Settings, task: Task, manager: Any) -> AbstractContextManager[Any]:
    """The context of torchft, which averages from within ``optimizer.step()``."""
    from torchft.local_sgd import DiLoCo, LocalSGD  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if settings.variant == "localsgd":
        context: AbstractContextManager[Any] = LocalSGD(manager, task.model, task.optimizer, settings.round_steps)
        return context
    outer = torch.optim.SGD(task.model.parameters(), lr=OUTER_LEARNING_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
    context = DiLoCo(
        manager, [task.model], task.optimizer, outer, sync_every=settings.round_steps, use_bucketization=True
    )
    return context  # noqa: RET504 - the library has no types of its own


if __name__ == "__main__":
    main()
