"""What every peer trains, and how it reports: one task, one clock, one evaluation for all.

The same as in our own runs: the job (model, first weights by seed, optimizer, loss), the one global order of samples
(:class:`~remote_agent.training.data.order.SampleOrder`), the simulated devices
(:mod:`remote_agent.training.worker.device.simulation`) and the evaluation. Weights are only copied while the clock
runs; they are evaluated after it has stopped, so evaluation counts against none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.worker.device.simulation import SimulatedDevice

START_DEADLINE = 120.0
"""Seconds for all hosts of a peer to be ready to train."""

REPORT_DEADLINE = 200.0
"""Seconds for the evaluation of all snapshots; the caller waits somewhat longer."""

LINGER = 1.0
"""Seconds by which the other hosts outlast the first one, so that it does not see them go while it trains."""

STORE_PORT = 29400
"""On the first host: where the hosts meet."""

PEER_PORT = 29500
"""On the first host: for the peer's own server."""

_SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one process of a peer is to train.

    Attributes:
        job: ``module:Class`` of the job.
        variant: which of the script's ways.
        rank: this host's place among ``addresses``.
        addresses: of the hosts that train; the first one leads.
        speeds: the hosts' simulated speeds.
        reference_speed: samples/s of this computer, which the simulated devices refer to.
        reference_overhead_s: its fixed seconds of a step.
        batch: samples of one step, over all hosts together.
        seed: of the weights and of the samples' order.
        steps: most steps.
        seconds: longest time of training.
        snapshot_every: steps from one copy of the weights to the next; 0: none, and no evaluation.
        round_steps: inner steps of a round, for peers that train in rounds.
        learning_rate: in the place of the job's own; 0: that.
    """

    job: str
    variant: str
    rank: int
    addresses: tuple[str, ...]
    speeds: tuple[float, ...]
    reference_speed: float
    reference_overhead_s: float
    batch: int
    seed: int
    steps: int
    seconds: float
    snapshot_every: int
    round_steps: int
    learning_rate: float = 0.0

    def encode(self) -> str:
        """As JSON, for a command line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_command_line(cls) -> Settings:
        """The settings in this process's one argument."""
        document = json.loads(sys.argv[1])
        return cls(**document | {name: tuple(document[name]) for name in ("addresses", "speeds")})

    @property
    def hosts(self) -> int:
        """How many hosts train."""
        return len(self.addresses)


class Task:
    """The job on this host's simulated device.

    Attributes:
        model: with the run's first weights, the same on every host.
        optimizer: the job's own.
        settings: of this process.
        device: this host's simulated device.
    """

    def __init__(self, settings: Settings) -> None:
        # Three hosts share the computer's cores; the headroom of the simulation is made for one thread each.
        torch.set_num_threads(1)
        module, _, name = settings.job.partition(":")
        self.job: Any = getattr(importlib.import_module(module), name)()
        self.settings = settings
        torch.manual_seed(settings.seed)
        self.model: torch.nn.Module = self.job.create_model()
        config = dataclasses.replace(self.job.config, batch_size=settings.batch, seed=settings.seed)
        if settings.learning_rate:
            config = dataclasses.replace(config, learning_rate=settings.learning_rate)
        self.optimizer: torch.optim.Optimizer = self.job.create_optimizer(self.model, config)
        reference = DeviceProfile(settings.reference_speed, settings.reference_overhead_s)
        self.device = SimulatedDevice(settings.speeds[settings.rank], reference)
        self._data = self.job.create_data()
        self._order = SampleOrder(settings.seed, len(self._data), settings.batch)

    def whole_batch(self, step: int) -> Tensor:
        """All samples of step ``step`` (from 1), as indices."""
        return torch.from_numpy(self._order.step(step))

    def even_part(self, step: int) -> Tensor:
        """This host's even part of the samples of step ``step`` (from 1), as indices.

        Raises:
            ValueError: the batch can't be cut evenly, so that a mean of means would not be the mean.
        """
        indices = self.whole_batch(step)
        if len(indices) % self.settings.hosts:
            raise ValueError(f"a batch of {len(indices)} can't be cut evenly over {self.settings.hosts} hosts")
        return indices.chunk(self.settings.hosts)[self.settings.rank]

    def loss(self, indices: Tensor, model: torch.nn.Module | None = None) -> Tensor:
        """The job's loss of these samples under ``model`` (default: the task's own)."""
        loss: Tensor = self.job.loss(model or self.model, self._data.batch(indices))
        return loss

    def job_batch(self, step: int) -> Any:
        """The samples of step ``step`` (from 1), as the job's data gives them."""
        return self._data.batch(self.whole_batch(step))

    def gradient(self, indices: Tensor) -> None:
        """Leave the mean gradient of these samples in ``model``, at the pace of this host's simulated device."""
        started = time.perf_counter()
        for parameter in self.model.parameters():
            parameter.grad = None
        self.loss(indices).backward()  # type: ignore[no-untyped-call]
        self.device.sleep_until_target(len(indices), started)

    def warm_up(self) -> None:
        """Everything that is slow the first time, before the clock starts."""
        for _ in range(2):
            self.loss(self.even_part(1)).backward()  # type: ignore[no-untyped-call]
        for parameter in self.model.parameters():
            parameter.grad = None

    def evaluate(self, weights: dict[str, Tensor]) -> float:
        """The job's validation loss with these weights, in a model of its own: training may still be going on."""
        model = self.job.create_model()
        model.load_state_dict(weights)
        model.eval()
        with torch.no_grad():
            return float(self.job.evaluate(model)["validation_loss"])


@dataclass(frozen=True)
class Snapshot:
    """A copy of the weights, ``time`` seconds of training after the start."""

    time: float
    step: int
    samples: int
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Whole:
    """What this host had done when its last whole step ended: nothing half-done is counted, or paid for."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    sent: int = 0


@dataclass
class Record:
    """The clock and the report of one process: start it when all are ready, tell it every step, finish it at the end.

    When the time is up it reports by itself and ends the process, wherever the training is: in a collective, too.
    """

    task: Task
    snapshots: list[Snapshot] = field(default_factory=list)
    steps: int = 0
    samples: int = 0
    _whole: Whole = field(default_factory=Whole)

    def start(self) -> None:
        """The clock runs from now on."""
        settings = self.task.settings
        self._once = threading.Lock()
        self._sent = device_sent_bytes()
        limit = settings.seconds + (LINGER if settings.rank else 0.0)
        sys.excepthook = self._on_error
        self._started = time.monotonic()
        threading.Timer(limit, self.finish).start()
        self.snapshot()

    def step(self, samples: int, *, whole: bool = True) -> None:
        """This host has taken part in one more step, with so many samples of its own.

        Args:
            samples: of this host in this step.
            whole: what the step costs is all behind it; False inside a round, whose exchange is still to come.
        """
        self.steps += 1
        self.samples += samples
        if whole:
            sent = device_sent_bytes() - self._sent
            self._whole = Whole(self.steps, self.samples, time.monotonic() - self._started, sent)

    def snapshot_if_due(self) -> None:
        """Copy the weights when ``snapshot_every`` steps have passed; for rounds: call it at the end of each."""
        if self.snapshots and self.steps - self.snapshots[-1].step >= self.task.settings.snapshot_every:
            self.snapshot()

    def snapshot(self, samples: int | None = None) -> None:
        """Copy the weights, on the first host only; ``samples`` are those of all hosts so far."""
        settings = self.task.settings
        if settings.rank or not settings.snapshot_every:
            return
        seen = self.steps * settings.batch if samples is None else samples
        now = time.monotonic() - self._started
        weights = {name: tensor.detach().clone() for name, tensor in self.task.model.state_dict().items()}
        self.snapshots.append(Snapshot(now, self.steps, seen, weights))

    def _on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Training failed: so has the peer, unless the time was up and another host has just gone."""
        sys.__excepthook__(kind, error, trace)
        if time.monotonic() - self._started < self.task.settings.seconds - LINGER:
            end_children()
            sys.stderr.flush()
            os._exit(1)

    def finish(self) -> None:
        """Stop the clock, evaluate, report, and end the process; only the first call counts."""
        if not self._once.acquire(blocking=False):
            threading.Event().wait(REPORT_DEADLINE)  # the other call ends the process
            os._exit(1)
        end = dataclasses.asdict(self._whole)
        snapshots = tuple(self.snapshots)
        for one in snapshots:
            figures = {"time": one.time, "step": one.step, "samples": one.samples}
            print(json.dumps(figures | {"validation_loss": self.task.evaluate(one.weights)}))
        print(json.dumps({"end": end}), flush=True)
        end_children()
        os._exit(0)


def end_children() -> None:
    """End the processes that this one has started (hivemind does): they would hold the report's pipe open."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def device_sent_bytes() -> int:
    """Bytes that this host's network device has sent so far."""
    return int(_SENT.read_text())


class Meeting:
    """Where the hosts of a peer meet: a key-value store on the first host, and a barrier on it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._barriers = 0
        self.store = TCPStore(
            settings.addresses[0],
            STORE_PORT,
            is_master=settings.rank == 0,
            wait_for_workers=False,
            timeout=timedelta(seconds=START_DEADLINE),
        )

    def wait_for_all(self) -> None:
        """Return when all hosts have come here.

        Raises:
            torch.distributed.DistStoreError: one did not within :data:`START_DEADLINE`.
        """
        self._barriers += 1
        key = f"barrier{self._barriers}"
        if self.store.add(key, 1) == self._settings.hosts:
            self.store.set(f"{key}-open", "1")
        self.store.wait([f"{key}-open"])
