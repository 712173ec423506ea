"""What is trained: the user's model, optimizer, loss, data and evaluation, checked and made ready to travel.

A job is any object (or class without arguments) with::

    create_model() -> nn.Module
    create_optimizer(model, config) -> Optimizer    # optional; default: AdamW at config.learning_rate
    create_scheduler(optimizer, config) -> LRScheduler  # optional; stepped once a step; default: the config's schedule
    loss(model, batch) -> Tensor                    # optional; mean over the samples; default: cross entropy of (x, y)
    create_data() -> dataset                        # anything data.as_dataset takes
    evaluate(model) -> dict[str, float]             # optional; on the coordinator's host when the run ends
    config: TrainingConfig                          # optional; the job's own defaults

or a ``DistributedTrainer``, which brings its factory, its data and its configuration.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from ray import cloudpickle
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError

DETAIL_LINES = 8
"""Lines of a user's exception that are shown."""


@dataclass(frozen=True)
class Job:
    """A job's parts. ``factory`` travels to the workers; the rest runs on the coordinator's host."""

    name: str
    factory: Any
    create_data: Callable[[], Any]
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None
    config: TrainingConfig | None = None


def from_object(name: str, target: Any) -> Job:
    """The job that ``target`` describes; see the module.

    Raises:
        JobError: a part is missing.
    """
    if inspect.isclass(target):
        target = guard("creating the job", target)
    if hasattr(target, "model_factory") and hasattr(target, "data_loader"):
        factory = target.model_factory
        return Job(name, factory, lambda: target.data_loader, getattr(factory, "evaluate", None), target.config)
    missing = [part for part in ("create_model", "create_data") if not callable(getattr(target, part, None))]
    if missing:
        raise JobError(
            f"the job {name!r} has no {' and no '.join(missing)}",
            hint="a job has create_model() and create_data(), or is a DistributedTrainer",
        )
    config = getattr(target, "config", None)
    if config is not None and not isinstance(config, TrainingConfig):
        raise JobError(f"the job {name!r}: its config is a {type(config).__name__}, not a TrainingConfig")
    return Job(name, target, target.create_data, getattr(target, "evaluate", None), config)


def load(name: str, folder: Path) -> Job:
    """The ready job of that name, or the job ``file.py:Name`` whose file lies in ``folder``.

    Raises:
        JobError: there is no such job or file, or the file can't be imported.
    """
    from remote_agent import jobs

    if ":" not in name:
        return from_object(name, jobs.ready(name))
    file, _, attribute = name.partition(":")
    path = folder / Path(file).name
    if not path.is_file():
        raise JobError(f"there is no job file {path}", hint="name an existing file.py:Name")
    spec = importlib.util.spec_from_file_location(f"hetero_job_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise JobError(f"{path.name} is not a Python file", hint="name an existing file.py:Name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    guard(f"importing {path.name}", spec.loader.exec_module, module)
    if not hasattr(module, attribute):
        public = [entry for entry in vars(module) if not entry.startswith("_")]
        raise JobError(f"{path.name} has no {attribute!r}", hint=f"it defines: {', '.join(public)}")
    cloudpickle.register_pickle_by_value(module)
    return from_object(name, getattr(module, attribute))


def dumps(factory: Any) -> bytes:
    """``factory`` as bytes; its module goes along when it is the user's own, since the workers have no copy of it.

    Raises:
        JobError: it holds something that can't be sent, for example an open file.
    """
    module = inspect.getmodule(factory if inspect.isclass(factory) else type(factory))
    try:
        if module is not None and _is_users_own(module):
            cloudpickle.register_pickle_by_value(module)
        return bytes(cloudpickle.dumps(factory))
    except Exception as error:
        raise JobError(
            f"the job can't be sent to the workers: {error}",
            hint="keep open files, locks and connections out of the job object",
        ) from error


def loads(blob: bytes) -> Any:
    """What :func:`dumps` packed; runs the user's code, on the cluster's hosts only."""
    return cloudpickle.loads(blob)


def _is_users_own(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__" or module.__name__.split(".")[0] == "remote_agent":
        return False
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]
    return not any(Path(file).resolve().is_relative_to(folder) for folder in installed)


def create_model(factory: Any, seed: int) -> nn.Module:
    """A new model from the job's factory, with torch's random numbers seeded by ``seed``.

    Raises:
        JobError: the factory raised, or gave something that is not a module with trained parameters.
    """
    torch.manual_seed(seed)
    model = guard("create_model", factory.create_model)
    if not isinstance(model, nn.Module):
        raise JobError(f"create_model gave a {type(model).__name__}", hint="return a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise JobError("the model has no parameter to train", hint="leave requires_grad on for at least one parameter")
    return model


def create_optimizer(factory: Any, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """The job's optimizer for ``model``; AdamW when it has none of its own.

    Raises:
        JobError: the factory raised, or gave something that is not an optimizer.
    """
    create = getattr(factory, "create_optimizer", None)
    if create is None:
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    optimizer = guard("create_optimizer", create, model, config)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise JobError(
            f"create_optimizer gave a {type(optimizer).__name__}", hint="return a torch.optim.Optimizer over the model"
        )
    return optimizer


def has_scheduler(factory: Any) -> bool:
    """Whether the job brings a learning rate scheduler of its own."""
    return getattr(factory, "create_scheduler", None) is not None


def create_scheduler(factory: Any, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> LRScheduler:
    """The job's own scheduler over ``optimizer``.

    Raises:
        JobError: the factory raised, or gave something that does not go by the number of steps alone.
    """
    scheduler = guard("create_scheduler", factory.create_scheduler, optimizer, config)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise JobError(
            "create_scheduler gave a ReduceLROnPlateau, which needs a metric of each step",
            hint="use a scheduler that goes by the number of steps, for example CosineAnnealingLR or OneCycleLR",
        )
    if not isinstance(scheduler, LRScheduler):
        raise JobError(
            f"create_scheduler gave a {type(scheduler).__name__}", hint="return a torch LRScheduler over the optimizer"
        )
    if scheduler.optimizer is not optimizer:
        raise JobError("create_scheduler's scheduler is over another optimizer", hint="use the optimizer that it gets")
    return scheduler


def loss_function(factory: Any) -> Callable[[nn.Module, Any], Tensor]:
    """``loss(model, batch)``: the job's own, or the mean cross entropy over ``(x, y)``."""
    own: Callable[[nn.Module, Any], Tensor] | None = getattr(factory, "loss", None)
    return own or _cross_entropy


def _cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch.values() if isinstance(batch, Mapping) else batch
    return functional.cross_entropy(model(inputs), targets)


def guard(where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's ``function``; whatever it raises becomes a :class:`JobError` with its own last lines."""
    try:
        return function(*arguments)
    except Exception as error:
        raise as_job_error(where, error) from error


def as_job_error(where: str, error: Exception) -> JobError:
    """``error`` of the user's code as a :class:`JobError` with the lines that the user wrote."""
    if isinstance(error, JobError):
        return error
    text = str(error).strip().splitlines()
    cause = f"{where}: {type(error).__name__}" + (f": {text[0]}" if text else "")
    hint = "correct the job's code; its last lines are shown with this event"
    if isinstance(error, torch.OutOfMemoryError):
        hint = "the device's memory is full: lower batch_size, or set max_batch for the host"
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return JobError(cause, hint=hint, detail="\n".join(lines[-DETAIL_LINES:]))
