"""torchft while it is struck: data parallel as in its ``train_ddp.py``, or LocalSGD, on ``benchmarks.faults``' job.

One replica a host; a loop outside starts the script again whenever it ends. A replica finds its place by itself: it
takes weights and optimizer from a living one. Timeouts are those of torchft's example. Which samples a replica takes
follows from the number of the step and its own place, so that one that was started again neither repeats nor skips any:
what is left out are the parts of replicas that were not there.

Each step that torchft commits is a line in ``~/torchft.jsonl``: ``{"time", "step", "participants", "present"}``, with
its own count of participants, and whether this replica was one of them.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.faulty.job import Paced
from remote_agent.training.data.order import SampleOrder

REPORT_FILE = "torchft.jsonl"
VARIANTS = ("ddp", "localsgd")

GROUP_TIMEOUT, MANAGER_TIMEOUT = timedelta(seconds=5), timedelta(seconds=30)
"""As in torchft's ``train_ddp.py``."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one replica is to train, as JSON in the one argument.

    Attributes:
        variant: of :data:`VARIANTS`.
        rank: this host's place among all.
        hosts: how many there are when all are well.
        lighthouse: ``http://address:port``.
        batch: samples of one step, over all hosts together.
        local_steps: from one synchronization to the next (LocalSGD).
    """

    variant: str
    rank: int
    hosts: int
    lighthouse: str
    batch: int
    local_steps: int


class Replica:
    """The job on this host, with torchft's manager."""

    def __init__(self, settings: Settings) -> None:
        from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found,import-untyped,unused-ignore]

        torch.set_num_threads(1)
        self.settings = settings
        self.job = Paced()
        torch.manual_seed(Paced.config.seed)
        self.model = self.job.create_model()
        self.optimizer = self.job.create_optimizer(self.model, Paced.config)
        self._data = self.job.create_data().tensors
        self._order = SampleOrder(Paced.config.seed, len(self._data[0]), settings.batch)
        self._store = TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
        self.manager: Any = Manager(
            pg=ProcessGroupGloo(timeout=GROUP_TIMEOUT),
            load_state_dict=self._load,
            state_dict=lambda: {"model": self.model.state_dict(), "optim": self.optimizer.state_dict()},
            min_replica_size=1,
            use_async_quorum=settings.variant == "ddp",
            timeout=MANAGER_TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=socket.gethostname(),
            store_port=self._store.port,
            lighthouse_addr=settings.lighthouse,
            replica_id=f"host{settings.rank}",
        )
        self._commit = self.manager.should_commit
        self.manager.should_commit = self._reported_commit

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This host's even part of the samples of step ``step`` (from 0)."""
        indices = torch.from_numpy(self._order.step(step + 1)).chunk(self.settings.hosts)[self.settings.rank]
        x, y = self._data
        return x[indices], y[indices]

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optim"])

    def _reported_commit(self, *arguments: Any, **options: Any) -> bool:
        """What torchft decides on a step; one that is committed is reported."""
        committed = bool(self._commit(*arguments, **options))
        if committed:
            document = {
                "time": time.time(),
                "step": self.manager.current_step(),
                "participants": self.manager.num_participants(),
                "present": self.manager.is_participating(),
            }
            with (Path.home() / REPORT_FILE).open("a") as file:
                file.write(json.dumps(document) + "\n")
        return committed


def ddp(replica: Replica) -> None:
    """Train until the process ends: gradients averaged in every step, as one buffer.

    Without torchft's DDP wrapper, which in 0.2.0 ends the process (``'Future' object has no attribute '_fut'``) where
    an all-reduce can't begin, after a fault: the manager itself goes on.
    """
    from torchft import Optimizer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    optimizer = Optimizer(replica.manager, replica.optimizer)
    parameters = list(replica.model.parameters())
    while True:
        batch = replica.batch(replica.manager.current_step())
        optimizer.zero_grad()
        replica.job.loss(replica.model, batch).backward()  # type: ignore[no-untyped-call]
        gradient = parameters_to_vector(one.grad for one in parameters if one.grad is not None)
        replica.manager.allreduce(gradient).wait()
        vector_to_parameters(gradient, [one.grad for one in parameters if one.grad is not None])
        optimizer.step()


def localsgd(replica: Replica) -> None:
    """Train until the process ends: parameters averaged every ``local_steps`` steps, from within the optimizer's."""
    from torchft.local_sgd import LocalSGD  # type: ignore[import-not-found,import-untyped,unused-ignore]

    steps = replica.settings.local_steps
    with LocalSGD(replica.manager, replica.model, replica.optimizer, sync_every=steps):
        while True:
            first = steps * replica.manager.current_step()
            for step in range(first, first + steps):
                replica.optimizer.zero_grad()
                replica.job.loss(replica.model, replica.batch(step)).backward()  # type: ignore[no-untyped-call]
                replica.optimizer.step()


def main() -> None:
    """Train."""
    settings = Settings(**json.loads(sys.argv[1]))
    {"ddp": ddp, "localsgd": localsgd}[settings.variant](Replica(settings))


if __name__ == "__main__":
    main()
