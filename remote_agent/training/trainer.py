"""The public API: train from any Python script, on a running Ray cluster or on one that is started for it.

::

    trainer = DistributedTrainer(model_factory=Factory(), data_loader=dataset, config=TrainingConfig(batch_size=64))
    result = trainer.train(num_iterations=100)
    model.load_state_dict(result.state_dict)
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from remote_agent import protocol
from remote_agent.training import actors, checkpoint, cluster, engine, placement
from remote_agent.training.config import TrainingConfig
from remote_agent.training.job import Job
from remote_agent.training.journal import Journal

RUNS_FOLDER = "runs"
"""Where ``train`` makes a run's folder, below the present one, unless it is told another."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a run gave.

    Attributes:
        state_dict: the trained weights, on the CPU, for ``model.load_state_dict``.
        metrics: one row a step: ``step, loss, samples, seconds, bytes_pushed, bytes_pulled, workers``.
        final_loss: mean loss of the last step's samples, before its update.
        checkpoint: the safetensors file with these weights.
        events: the run's ``events.jsonl``.
    """

    state_dict: dict[str, Tensor]
    metrics: tuple[Mapping[str, Any], ...]
    final_loss: float
    checkpoint: Path
    events: Path


class DistributedTrainer:
    """Trains one model on several devices of a Ray cluster, each with a share that fits its speed.

    Args:
        model_factory: an object with ``create_model``, and optionally ``create_optimizer``, ``loss`` and ``evaluate``;
            see :mod:`remote_agent.training.job`.
        data_loader: a torch ``Dataset``, a list of ``(x, y)`` samples, or a tuple of tensors.
        config: how to train.
    """

    def __init__(self, *, model_factory: Any, data_loader: Any, config: TrainingConfig | None = None) -> None:
        self.model_factory = model_factory
        self.data_loader = data_loader
        self.config = config or TrainingConfig()

    def train(self, num_iterations: int | None = None, folder: Path | str | None = None) -> TrainingResult:
        """Train and return the result; blocks until the run has ended.

        Args:
            num_iterations: steps to make; default: the configuration's.
            folder: for events and checkpoints; default: a new one below ``runs/``.

        Raises:
            TrainingError: the run can't go on; its text says where, what happened, and what to do.
        """
        config = self.config
        if num_iterations is not None:
            config = dataclasses.replace(config, num_iterations=num_iterations)
        run = time.strftime("%Y%m%d-%H%M%S")
        place = Path(folder) if folder is not None else Path(RUNS_FOLDER) / run
        place.mkdir(parents=True, exist_ok=True)
        name = type(self.model_factory).__name__
        evaluate = getattr(self.model_factory, "evaluate", None)
        ours = cluster.connect_script()
        journal = Journal(place / "events.jsonl")
        try:
            nodes = placement.living_nodes()
            devices = placement.choose(config, nodes)
            request = actors.Request(
                run=run,
                job=Job(name, self.model_factory, lambda: self.data_loader, evaluate, config),
                config=config,
                devices=devices,
                server_host=placement.here(nodes).host,
                host=socket.gethostname(),
                folder=place,
                gpus=1,
            )
            outcome = engine.run(request, journal)
        finally:
            journal.close()
            if ours:
                cluster.disconnect()
        return TrainingResult(
            state_dict=checkpoint.portable_state(outcome.model),
            metrics=_steps(journal.path),
            final_loss=outcome.final_loss,
            checkpoint=outcome.checkpoint,
            events=journal.path,
        )


def _steps(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The step events of a run as rows."""
    events = (protocol.decode_event(line) for line in path.read_text().splitlines())
    return tuple(dataclasses.asdict(event) for event in events if isinstance(event, protocol.Step))
