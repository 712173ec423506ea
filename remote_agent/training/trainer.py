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
from remote_agent.training import actors, cluster, engine
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import StorageError, TrainingError
from remote_agent.training.job import Job
from remote_agent.training.journal import Journal
from remote_agent.training.placing import placement
from remote_agent.training.saving import checkpoint

EVENTS_FILE = "events.jsonl"
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

    def train(
        self,
        num_iterations: int | None = None,
        folder: Path | str | None = None,
        resume: Path | str | None = None,
    ) -> TrainingResult:
        """Train and return the result; blocks until the run has ended.

        Args:
            num_iterations: steps to make, those of a checkpoint included, in the place of the configuration's
                ``num_iterations`` or ``epochs``.
            folder: for events, record and checkpoints; default: a new one below ``runs/``, or the resumed run's.
            resume: go on from a checkpoint (one of its files), or from the newest one in a run's folder. Weights,
                optimizer state and the position in the order of the samples are as they were; seed and dataset have to
                be.

        Raises:
            TrainingError: the run can't go on; its text says where, what happened, and what to do.
        """
        config = self.config
        if num_iterations is not None:
            config = dataclasses.replace(config, num_iterations=num_iterations, epochs=0)
        place = _place(folder, resume)
        name = type(self.model_factory).__name__
        evaluate = getattr(self.model_factory, "evaluate", None)
        ours = cluster.connect_script()
        journal = Journal(place / EVENTS_FILE)
        try:
            nodes = placement.living_nodes()
            devices = placement.choose(config, nodes)
            request = actors.Request(
                run=place.name,
                job=Job(name, self.model_factory, lambda: self.data_loader, evaluate, config),
                config=config,
                devices=devices,
                server_host=placement.here(nodes).host,
                host=socket.gethostname(),
                folder=place,
                resume=Path(resume) if resume is not None else None,
                gpus=1,
            )
            outcome = engine.run(request, journal)
        except TrainingError as error:
            engine.fail(journal, error, socket.gethostname(), 0)  # the first word counts: the engine's own, if it began
            raise
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


def _place(folder: Path | str | None, resume: Path | str | None) -> Path:
    """The run's folder, which is there afterwards.

    Raises:
        StorageError: it can't be made, or holds a run that is not resumed.
    """
    if folder is not None:
        place = Path(folder)
    elif resume is not None and Path(resume).is_dir():
        place = Path(resume)
        place = place.parent if place.name == checkpoint.FOLDER else place
    else:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        places = (Path(RUNS_FOLDER) / (stamp + suffix) for suffix in ("", *(f"-{n}" for n in range(2, 100))))
        place = next(place for place in places if not place.exists())
    if resume is None and (place / EVENTS_FILE).exists():
        raise StorageError(f"{place} holds a run already", hint="choose another folder, or pass resume= to go on")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"can't make {place}: {error.strerror}", hint="choose another folder") from error
    return place


def _steps(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The step events of a run as rows; those of steps that were made again after a resume are left out."""
    rows: dict[int, Mapping[str, Any]] = {}
    for line in path.read_text().splitlines():
        match protocol.decode_event(line):
            case protocol.Step() as event:
                rows[event.step] = dataclasses.asdict(event)
            case protocol.RunResumed() as event:
                rows = {step: row for step, row in rows.items() if step <= event.step}
    return tuple(rows.values())
