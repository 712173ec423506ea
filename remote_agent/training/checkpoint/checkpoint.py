"""Checkpoints: model and optimizer state as safetensors, and beside them a JSON document that says what they are.

``step-00000042.safetensors`` is the model's state dict, for anyone to load. ``step-00000042.optimizer.safetensors`` is
what the optimizer remembers, by parameter (``optimizer_state``), so that a run can go on with other hosts, another
number of shards, or another path. ``step-00000042.unsaved.safetensors`` is what training changes and the state dict
leaves out (``persistent=False``), if there is any. ``step-00000042.json`` holds the step, the position in the global
order of samples, seed and configuration.

All are written under another name, flushed to the disk and then renamed, the document last; an old one's document goes
first. So a checkpoint whose document exists is whole. Nothing is pickled: it can be read anywhere without trust.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from remote_agent.errors import no_average, none_is_best
from remote_agent.goals import Goal, Watched
from remote_agent.training.checkpoint import optimizer_state
from remote_agent.training.checkpoint.optimizer_state import NotPortable, TrainingState
from remote_agent.training.errors import JobError, StorageError
from remote_agent.training.shared import flat
from remote_agent.training.shared.average import EMA

FOLDER = "checkpoints"
"""Their folder in a run's."""

_PART = ".part"
_HINT = "name a run's folder, or a checkpoint in it"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint, as its document describes it.

    Attributes:
        path: the safetensors file with the weights.
        step: the last step that is in it.
        position: how many samples of the global order were used up to then.
        seed: of the order.
        dataset_size: samples of its dataset; None where it can't be known.
        optimizer: the safetensors file with the optimizer's state; None: it remembers nothing, or ``missing`` says why.
        missing: why there is no optimizer state.
        kind: of the job's optimizer, as :func:`~.optimizer_state.kind_of` says; empty: not known.
        trained: which parameters were, as :func:`~remote_agent.training.shared.flat.trained_as` says; empty: not known.
        beside: the safetensors file with what training changes and the state dict leaves out; None: there is nothing.
        watched: what came of the evaluations up to the step.
        survey: what its run had measured of the fleet, encoded; empty: not known.
        schedule: the scheduler's state, as plain JSON; None: there is none.
    """

    path: Path
    step: int
    position: int
    seed: int
    config: Mapping[str, Any]
    dataset_size: int | None = None
    optimizer: Path | None = None
    missing: str = ""
    kind: str = ""
    trained: str = ""
    beside: Path | None = None
    watched: Watched = ()
    survey: str = ""
    schedule: Any = None

    @property
    def goal(self) -> Goal:
        """The metric that ``watched`` is of."""
        return Goal.of(str(self.config.get("keep_best", "")))

    def weights(self) -> dict[str, Tensor]:
        """The model's state dict; raises JobError if the file can't be read."""
        return load(self.path)

    def unsaved(self) -> dict[str, Tensor]:
        """What training had changed that is not in the state dict, by name; raises as :meth:`weights`."""
        return load(self.beside) if self.beside is not None else {}

    def best(self) -> Checkpoint:
        """The checkpoint of the best evaluation up to this one.

        Raises:
            JobError: none was kept, or it is not on this host.
        """
        if not self.config.get("keep_best"):
            raise none_is_best()
        found = self.goal.best(self.watched)
        if found is None:
            raise JobError("no evaluation has given a number so far, so no checkpoint is the best one")
        path = path_of(self.path.parent, found[0])
        if not path.is_file():
            cause = f"the best checkpoint, of step {found[0]}, is not on this host"
            raise JobError(cause, hint="it is where that step was made; other hosts have copies of newer ones alone")
        return find(path)

    @torch.no_grad()
    def average_into(self, model: nn.Module) -> None:
        """Put the moving average of the weights into ``model``: a tied weight has one under several names.

        Raises:
            JobError: no average was kept, or the file can't be read.
        """
        remembered = self.training_state().optimizer
        averages = {name: torch.as_tensor(known[EMA]) for name, known in remembered.items() if EMA in known}
        if not averages:
            raise no_average()
        parameters = dict(model.named_parameters())
        for name, average in averages.items():
            parameters[name].copy_(average)

    def training_state(self) -> TrainingState:
        """What the optimizer remembered; raises JobError if the file can't be read."""
        if self.optimizer is None:
            return TrainingState(missing=self.missing)
        try:
            return optimizer_state.unpack(load(self.optimizer), self.missing)
        except NotPortable as error:
            raise JobError(f"{self.optimizer.name} can't be read: {error}", hint=_HINT) from error


def portable_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's state dict on the CPU, each tensor with memory of its own (tied ones too)."""
    return {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor)
    }


def unsaved(model: nn.Module, changing: Sequence[str] = ()) -> dict[str, Tensor]:
    """What training changes and the state dict leaves out, as :func:`portable_state`.

    ``changing``: names of the buffers and frozen parameters that it changes.
    """
    kept, changed = flat.kept(model), {**flat.trained(model), **flat.buffers(model, changing)}
    return {name: each.detach().cpu().clone().contiguous() for name, each in changed.items() if name not in kept}


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    about: Mapping[str, Any],
    state: TrainingState | None = None,
    changing: Sequence[str] = (),
) -> tuple[Path, int]:
    """Write the checkpoint of ``step`` into ``folder``.

    Args:
        folder: made when it does not exist; the one that it is in has to be there.
        step: the last step that is in the weights.
        about: further fields of the JSON document: ``position``, ``config``.
        changing: names of buffers and frozen parameters that training changes.

    Returns:
        The path of the weights, and the size of all files in bytes.

    Raises:
        StorageError: the disk is full, or the folder can't be written; nothing half-written is left, and the
            checkpoints before are as they were.
    """
    state = state or TrainingState()
    path = path_of(folder, step)
    optimizer, document = path.with_suffix(".optimizer.safetensors"), path.with_suffix(".json")
    beside = path.with_suffix(".unsaved.safetensors")
    remembered = optimizer_state.pack(state)
    contents = {path: portable_state(model), optimizer: remembered, beside: unsaved(model, changing)}
    contents = {file: tensors for file, tensors in contents.items() if tensors or file is path}
    files = [*contents, document]
    drafts = [file.with_name(file.name + _PART) for file in files]
    described = {
        "step": step,
        "weights": path.name,
        "optimizer": optimizer.name if optimizer in contents else None,
        "unsaved": beside.name if beside in contents else None,
        "optimizer_missing": state.missing,
        **about,
    }
    try:
        folder.mkdir(exist_ok=True)
        for draft, tensors in zip(drafts, contents.values(), strict=False):
            safetensors.torch.save_file(tensors, draft, metadata={"format": "pt"})
        drafts[-1].write_text(json.dumps(described, indent=2) + "\n")
        for draft in drafts:
            _flush(draft)
        document.unlink(missing_ok=True)  # of an older checkpoint of this step
        for draft, final in zip(drafts, files, strict=True):
            draft.replace(final)
        _flush(folder)
        return path, sum(file.stat().st_size for file in files)
    except (OSError, SafetensorError) as error:
        for draft in drafts:
            _discard(draft)
        reason, hint = str(error), f"free space or correct the rights of {folder}"
        if not folder.parent.exists():
            reason, hint = f"{folder.parent} was deleted", "another host may have a copy of the run: resume it"
        elif isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise StorageError(f"can't save the checkpoint of step {step}: {reason}", hint=hint) from error


def path_of(folder: Path, step: int) -> Path:
    """Where the weights after ``step`` lie, if they were saved."""
    return folder / f"step-{step:08d}.safetensors"


def prune(folder: Path, keep: int, best: int | None = None) -> None:
    """Remove all but the ``keep`` newest checkpoints and that of step ``best``, and what was left half-written.

    What can't be removed stays; the next call tries again.
    """
    whole = sorted(folder.glob("step-*.json"))
    kept = {document.stem for document in whole[max(0, len(whole) - keep) :]}
    if best is not None:
        kept.add(path_of(folder, best).stem)
    for document in whole:
        if document.stem not in kept:
            _discard(document)
    for file in folder.glob("step-*"):
        if file.name.split(".")[0] not in kept:
            _discard(file)


# --- Reading ---------------------------------------------------------------------------------------------------------


def find(place: Path) -> Checkpoint:
    """The checkpoint at ``place``: one of its files, or a run's folder, whose newest whole one is taken.

    Raises:
        JobError: there is none, or it can't be read.
    """
    if place.is_dir():
        folder = place / FOLDER if (place / FOLDER).is_dir() else place
        documents = sorted(folder.glob("step-*.json"))
        if not documents:
            raise JobError(f"{place} holds no whole checkpoint", hint="start the run anew")
        document = documents[-1]
    else:
        document = place.with_name(place.name.split(".")[0] + ".json")
    try:
        described = json.loads(document.read_text())
        config = dict(described["config"])
        optimizer, beside = described.get("optimizer"), described.get("unsaved")
        return Checkpoint(
            path=document.with_name(str(described["weights"])),
            step=int(described["step"]),
            position=int(described["position"]),
            seed=int(config["seed"]),
            config=config,
            dataset_size=described.get("dataset_size"),
            optimizer=document.with_name(optimizer) if optimizer else None,
            missing=str(described.get("optimizer_missing", "")),
            kind=str(described.get("optimizer_kind", "")),
            trained=str(described.get("trained", "")),
            beside=document.with_name(beside) if beside else None,
            watched=tuple((int(at), figure) for at, figure in described.get("watched", ())),
            survey=str(described.get("survey", "")),
            schedule=described.get("schedule"),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        raise JobError(f"there is no checkpoint to read at {place}: {reason}", hint=_HINT) from error


def load(path: Path) -> dict[str, Tensor]:
    """The state dict in a checkpoint's safetensors file; raises JobError if it can't be read."""
    try:
        return safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise JobError(f"the checkpoint {path} can't be read: {error}", hint=_HINT) from error


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder itself is the problem, which the next write into it reports
