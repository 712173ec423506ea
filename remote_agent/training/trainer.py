"""Defines :class:`DistributedTrainer`, which trains from any Python script on a Ray cluster.

::

    trainer = DistributedTrainer(model_factory=Factory(), data_loader=dataset, config=TrainingConfig(batch_size=64))
    result = trainer.train(num_iterations=100)
    model.load_state_dict(result.state_dict)
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from remote_agent.training import job
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import cluster, engine
from remote_agent.training.coordinator.interrupts import Interrupts
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.prints import Prints, to_stderr
from remote_agent.training.coordinator.reporting import failure
from remote_agent.training.coordinator.reporting.progress import ProgressLine
from remote_agent.training.coordinator.request import Request
from remote_agent.training.errors import Interrupted, StorageError, TrainingError
from remote_agent.training.result import TrainingResult, rows_of
from remote_agent.training.user_code import importing

EVENTS_FILE = "events.jsonl"
RUNS_FOLDER = "runs"
"""Folder in the current one in which ``train`` makes a run's folder, if the caller names none."""


class DistributedTrainer:
    """Trains one model on several devices of a Ray cluster; the share of each device follows its speed.

    All arguments are keywords.

    Args:
        model_factory: an object with ``create_model``, and optionally ``create_optimizer``, ``loss``, ``metrics``,
            ``evaluate`` and others; see :mod:`remote_agent.training.job`. ``config``, ``create_validation_data`` and
            ``create_callbacks`` count where the argument for the same is not given.
        data_loader: the training data: a torch ``DataLoader`` or ``Dataset``, a list of samples, a tuple of tensors, or
            another form that docs/data.md lists.
        config: the settings.
        validation_data: data on which the model is validated during training, as ``config.evaluate_every`` says. It
            can be indexed, or is a ``DataLoader`` over such data, whose batches are used.
        callbacks: objects with the methods of :class:`~remote_agent.training.Callback`, for example loggers.
    """

    def __init__(
        self,
        *,
        model_factory: Any,
        data_loader: Any,
        config: TrainingConfig | None = None,
        validation_data: Any = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        self.model_factory = model_factory
        self.data_loader = data_loader
        self.validation_data = validation_data
        self.callbacks = tuple(callbacks)
        own = getattr(model_factory, "config", None)
        self.config = config or (own if isinstance(own, TrainingConfig) else TrainingConfig())

    def train(
        self,
        num_iterations: int | None = None,
        folder: Path | str | None = None,
        resume: Path | str | None = None,
        progress: bool = True,
    ) -> TrainingResult:
        """Train, block until the run has ended, and return the result.

        The run uses the cluster that the script is connected to (``ray.init(address)``), else the one that
        ``RAY_ADDRESS`` names, else one that runs on this computer. If there is none, the call starts one here and ends
        it afterwards.

        Ctrl-C ends the run after the current step, with a checkpoint; the result then has ``stopped`` set. A second
        Ctrl-C, or one before the first step, ends the run at once. Workers' prints go to stderr.

        If ``hetero-tui train`` imports this script, the call does nothing, and the rest of the script does not run; see
        :mod:`remote_agent.training.user_code.importing`.

        Args:
            num_iterations: steps to make, including those before a checkpoint; replaces the configuration's
                ``num_iterations`` or ``epochs``.
            folder: folder for events and checkpoints; default: a new one below ``runs/``, or that of the resumed run.
            resume: a file of a checkpoint, or a run's folder, whose newest checkpoint is used. Weights, optimizer state
                and the position in the order of the samples are restored; the seed and the dataset have to be the same.
            progress: show a progress line on stderr.

        Raises:
            TrainingError: the run can't go on. The text says where, what happened, and what to do; the notes name the
                step, the newest checkpoint and the file of events.
            KeyboardInterrupt: Ctrl-C ended the run at once.
        """
        if importing.is_importing():
            importing.leave_out_training()
            return cast("TrainingResult", None)
        config = self.config
        if num_iterations is not None:
            config = dataclasses.replace(config, num_iterations=num_iterations, epochs=0)
        place = _place(folder, resume)
        ours = cluster.connect_script()
        journal = Journal(place / EVENTS_FILE)
        line = ProgressLine() if progress else None
        prints, interrupts = Prints(line.show_output if line is not None else to_stderr), Interrupts(journal)
        try:
            with interrupts:
                request = self._request(config, place, resume, prints)
                outcome = engine.run(
                    request, journal, interrupts.stopping, callbacks=[line] if line is not None else []
                )
        except Interrupted:
            ended = TrainingError("Ctrl-C ended it", hint="start it again, or resume it from its last checkpoint")
            engine.fail(journal, ended, socket.gethostname(), interrupts.made or 0)
            raise KeyboardInterrupt from None
        except TrainingError as error:
            engine.fail(journal, error, socket.gethostname(), 0)  # ignored if the engine has written a final event
            raise failure.annotate(error, journal.path) from None
        finally:
            prints.close()
            journal.close()
            if ours:
                cluster.disconnect()
        steps, evaluations = rows_of(journal.path)
        return TrainingResult(
            state_dict=checkpoint.portable_state(outcome.model),
            metrics=steps,
            evaluations=evaluations,
            evaluation=outcome.evaluation,
            best=outcome.best,
            stopped=outcome.stopped,
            reason=outcome.reason,
            final_loss=outcome.final_loss,
            checkpoint=outcome.checkpoint,
            events=journal.path,
            factory=self.model_factory,
        )

    def _request(self, config: TrainingConfig, place: Path, resume: Path | str | None, prints: Prints) -> Request:
        """Make the engine's request."""
        nodes = placement.living_nodes()
        return Request(
            run=place.name,
            job=job.of_trainer(type(self.model_factory).__name__, self, config),
            config=config,
            devices=placement.choose(config, nodes),
            server_host=placement.here(nodes).host,
            host=socket.gethostname(),
            folder=place,
            resume=Path(resume) if resume is not None else None,
            gpus=1,
            prints=prints,
        )


def _place(folder: Path | str | None, resume: Path | str | None) -> Path:
    """Choose and make the run's folder; raises StorageError, also if it holds a run that is not resumed."""
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
