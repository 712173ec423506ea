"""Resumes a run from a checkpoint: checks that it fits, and restores the state before the first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from remote_agent.goals import Goal, Watched
from remote_agent.job_settings import written
from remote_agent.settings import WHEN_RESUMED
from remote_agent.strategies import SPECS
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.checkpoint.checkpoint import Checkpoint
from remote_agent.training.checkpoint.optimizer_state import TrainingState, only_average
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data.extent import Begin
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.user_code import checks

_OTHER = "resume with the job that the checkpoint was made with, or start a new run"


def find(place: Path | None, folder: Path) -> Checkpoint | None:
    """The checkpoint from which the run resumes; None: it is a new run.

    Args:
        place: a checkpoint, or a run's folder; None: it is a new run.
        folder: the folder to which the run will write.

    Raises:
        JobError: there is no checkpoint, or ``folder`` has newer ones, which the run would contradict.
    """
    if place is None:
        return None
    found = checkpoint.find(place)
    newer = [file.name for file in (folder / checkpoint.FOLDER).glob("step-*.json") if file.stem > found.path.stem]
    if newer:
        raise JobError(
            f"{folder} holds checkpoints after step {found.step}, the newest {max(newer)}",
            hint="resume from the newest, or choose another folder for the run",
        )
    return found


def begin(found: Checkpoint | None, folder: Path) -> Begin:
    """The position at which the run in ``folder`` starts, or resumes from the checkpoint ``found``."""
    if found is None:
        return Begin(folder=folder)
    batch, run = int(found.config.get("batch_size", 0)), found.path.parent.parent
    return Begin(folder=folder, done=found.step, start=found.position, batch=batch, earlier=run)


def settings(config: TrainingConfig, found: Checkpoint | None, size: int | None) -> TrainingConfig:
    """``config`` with the checkpoint's seed and units, so that the order of the samples stays the same.

    Raises:
        JobError: the checkpoint's run had another dataset than one of ``size`` samples.
    """
    if found is None:
        return config
    if found.dataset_size != size:
        raise JobError(
            f"the dataset has {_samples(size)}, and the checkpoint's had {_samples(found.dataset_size)}", hint=_OTHER
        )
    return dataclasses.replace(config, seed=found.seed, unit=config.unit or int(found.config.get("unit", 0)))


def watched(found: Checkpoint | None, config: TrainingConfig) -> Watched:
    """The checkpoint's evaluations; none where they are of another metric than the one that ``config`` watches."""
    return found.watched if found is not None and found.goal == Goal.of(config.keep_best) else ()


def scheduler_state(found: Checkpoint | None, config: TrainingConfig) -> Any:
    """The scheduler's state in the checkpoint; None where its run had other settings: they may change the schedule."""
    return found.schedule if found is not None and found.config == dataclasses.asdict(config) else None


def into_model(found: Checkpoint, model: nn.Module) -> None:
    """Load the checkpoint's weights and buffers into ``model``; raises JobError if they are another model's."""
    cause = f"the checkpoint of step {found.step} is of another model"
    checks.load(model, found.weights(), cause, _OTHER)
    state = {**flat.trained(model), **flat.state(model)}
    for name, kept in found.unsaved().items():
        if name not in state or state[name].shape != kept.shape:
            raise JobError(f"{cause}: {name} has no place in it", hint=_OTHER)
        with torch.no_grad():
            state[name].copy_(kept)


def moving(found: Checkpoint | None, model: nn.Module) -> Collection[str]:
    """Names of what is not trained, changed before and is not in the state dict: workers get it with the weights."""
    return found.unsaved().keys() & flat.state(model).keys() if found is not None else ()


def usable(config: TrainingConfig, found: Checkpoint, kind: str = "", trained: str = "") -> TrainingState:
    """The state that this run's optimizers can load; ``missing`` says why, if there is none.

    Another ``kind`` of optimizer can't load what the checkpoint's remembered, nor can one over other parameters, as
    ``trained`` says (:func:`~remote_agent.training.shared.flat.trained_as`); empty: these are the same.
    With ``local_sgd`` the workers have the job's optimizer and the server has another one, so this state does not fit
    the other strategies.

    Raises:
        JobError: the checkpoint can't be read.
    """
    state, before = found.training_state(), found.config.get("strategy")
    if (state.optimizer or state.inner) and trained and found.trained and trained != found.trained:
        also = "; so does the weights' average" if config.ema_decay else ""
        return TrainingState(missing=f"other parameters were trained before (requires_grad){also}")
    rounds = {name for name, spec in SPECS.items() if spec.rounds}
    if config.strategy != before and rounds & {config.strategy, before}:
        missing = f"strategy={before} made the checkpoint"
        return TrainingState(optimizer=only_average(state.optimizer), missing=missing)
    if config.strategy in rounds and config.outer != found.config.get("outer"):
        missing = f"outer={found.config.get('outer')} made the checkpoint"
        return dataclasses.replace(state, optimizer=only_average(state.optimizer), missing=missing)
    if (state.optimizer or state.inner) and kind and found.kind and kind != found.kind:
        missing = f"the checkpoint is of {found.kind}, and the job's optimizer is {kind} now"
        return TrainingState(optimizer=only_average(state.optimizer), missing=missing)
    return state


def notes(found: Checkpoint, config: TrainingConfig, state: TrainingState, workers: int) -> tuple[str, ...]:
    """Notes about what will differ from before; ``config`` is this run's, ``state`` is the result of :func:`usable`."""
    said = [
        f"{name} is {written(now)}, it was {written(before)}"
        for name in WHEN_RESUMED
        if not (name == "num_iterations" and config.epochs)  # then it follows from the epochs, and is no setting
        if (before := found.config.get(name)) is not None and before != (now := getattr(config, name))
    ]
    if found.watched != watched(found, config):
        said.append(f"the evaluations before are left out: they were compared by {found.goal.metric}")
    if state.missing:
        said.append(f"the optimizer starts afresh: {state.missing}")
    if state.inner and len(state.inner) != workers:
        said.append(f"{workers} workers start with the mean of what {len(state.inner)} optimizers remembered")
    if found.config.get("codec", "fp32") != "fp32":
        said.append("what the codec had put off for later is left out")
    return tuple(said)


def _samples(size: int | None) -> str:
    return "no known number of samples" if size is None else f"{size} samples"
