"""Loads the user's job (model, optimizer, loss, data, evaluation), and checks it.

A job is any object (or class without arguments) with::

    create_model() -> nn.Module
    create_optimizer(model, config) -> Optimizer    # optional; default: AdamW at config.learning_rate
    phases(model, config) -> [(loss, Optimizer), ...]   # optional, in their place; see in_turns
    create_scheduler(optimizer, config) -> LRScheduler  # optional; stepped once a step; default: the config's schedule;
                                                    # ReduceLROnPlateau: stepped once an evaluation
    loss(model, batch) -> Tensor, or (sum, weight)  # optional; mean over the samples; default: cross entropy of (x, y);
                                                    # or a list of these
    create_data() -> dataset                        # anything data.as_dataset takes
    create_validation_data() -> dataset             # optional; indexable; evaluated as the config's evaluate_every says
    create_callbacks() -> list                      # optional; see reporting.callbacks; on the coordinator's host
    metrics(model, batch) -> dict[str, float]       # optional; of a validation batch; default: val_loss (and accuracy)
    evaluate(model) -> dict[str, float]             # optional; on the coordinator's host when the run ends
    save_beside(folder)                             # optional; writes files that belong to exported weights
    made_from() -> list[Path]                       # optional; the files that create_model reads; each host keeps the
    outline() -> nn.Module                          # four-bit model of these files; outline: on the device meta
    config: TrainingConfig                          # optional; the job's own defaults
    settings: an object of a frozen dataclass       # optional; see remote_agent.job_settings
    check(config)                                   # optional; called first; raises if the job can't be trained

or a ``DistributedTrainer``, which has a factory, data and a configuration.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from remote_agent import job_settings, strategies
from remote_agent.current_call import HERE
from remote_agent.kinds import nearest
from remote_agent.models import kept
from remote_agent.models.adapters import adapt
from remote_agent.protocol import CLUSTER_MARK
from remote_agent.settings import OF_ORDERS, names, with_whole_names
from remote_agent.training import in_turns
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import Interrupted, JobError
from remote_agent.training.shared import file_memory, optimizer_options
from remote_agent.training.user_code import checks, job_code, losses, seeding
from remote_agent.training.user_code.names import refuse_uncallable, refuse_uncalled
from remote_agent.training.user_code.user_errors import CREATING
from remote_agent.training.user_code.user_errors import as_job_error as as_job_error

KEPT = "quantized"
"""Folder of four-bit models, in the cluster's folder on each host."""

DETAIL_LINES = 8
"""Lines of an exception of the engine's own that are shown."""


@dataclass(frozen=True)
class Job:
    """A job's parts. The workers get ``factory``; the rest runs on the coordinator's host."""

    name: str
    factory: Any
    create_data: Callable[[], Any]
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None
    config: TrainingConfig | None = None
    create_validation: Callable[[], Any] | None = None
    create_callbacks: Callable[[], Sequence[Any]] | None = None
    phases: in_turns.Phases | None = None


def from_object(name: str, target: Any) -> Job:
    """Make the job that ``target`` describes, see the module; raises JobError if a part is missing."""
    if inspect.isclass(target):
        target = guard(CREATING, target)
    if hasattr(target, "model_factory") and hasattr(target, "data_loader"):
        return of_trainer(name, target, target.config)
    if missing := [part for part in ("create_model", "create_data") if not callable(getattr(target, part, None))]:
        raise JobError(
            f"the job {name!r} is {_kind(target)}, and has no {' and no '.join(missing)}",
            hint=job_settings.WHAT_A_JOB_IS,
        )
    config = getattr(target, "config", None)
    if config is not None and not isinstance(config, TrainingConfig):
        raise JobError(f"the job {name!r}: its config is a {type(config).__name__}, not a TrainingConfig")
    refuse_uncalled(target)
    refuse_uncallable(target)
    return Job(
        name,
        target,
        target.create_data,
        getattr(target, "evaluate", None),
        config,
        getattr(target, "create_validation_data", None),
        getattr(target, "create_callbacks", None),
        in_turns.of(target),
    )


def _kind(target: object) -> str:
    """What is named as a job, as a message says it."""
    if inspect.isroutine(target):
        return "a function"
    name = type(target).__qualname__
    return f"a model ({name})" if isinstance(target, nn.Module) else f"an object of {name}"


def of_trainer(name: str, trainer: Any, config: TrainingConfig) -> Job:
    """Make the job of a ``DistributedTrainer``, or of an object with the same attributes.

    What the trainer is not given is the factory's: ``create_validation_data``, ``create_callbacks``.

    Raises:
        JobError: it can't be trained.
    """
    factory, validation = trainer.model_factory, getattr(trainer, "validation_data", None)
    callbacks = getattr(trainer, "callbacks", ())
    refuse_uncalled(factory)
    refuse_uncallable(factory)
    return Job(
        name,
        factory,
        lambda: trainer.data_loader,
        getattr(factory, "evaluate", None),
        config,
        (lambda: validation) if validation is not None else getattr(factory, "create_validation_data", None),
        (lambda: callbacks) if callbacks else getattr(factory, "create_callbacks", None),
        in_turns.of(factory),
    )


def load(name: str, folder: Path) -> Job:
    """Load a ready-made job by name, or ``file.py:Name`` from ``folder`` (no name: its only job); raises JobError."""
    from remote_agent import jobs

    if ":" not in name:
        return from_object(name, jobs.ready(name))
    file, _, attribute = name.partition(":")
    file = Path(file).name
    module = guard(f"importing {file}", job_code.import_here, folder, file, attribute)
    if not attribute:
        found = job_code.jobs_in(module)
        if len(found) > 1:
            raise JobError(f"{file} has several jobs: {', '.join(found)}", hint=f"say which: {file}:{found[0]}")
        attribute = found[0] if found else ""
        name += attribute
    if not attribute or not hasattr(module, attribute):
        public = [entry for entry, value in vars(module).items() if entry[0] != "_" and not inspect.ismodule(value)]
        close = nearest(attribute, public)
        raise JobError(
            f"{file} has no {attribute!r}" + (f"; did you mean {close!r}?" if close else "")
            if attribute
            else f"{file} has no job",
            hint=f"it defines: {', '.join(public) or 'nothing'}"
            + ("" if attribute else f". {job_settings.WHAT_A_JOB_IS}"),
        )
    return from_object(name, getattr(module, attribute))


def configured(job: Job, given: Mapping[str, Any]) -> TrainingConfig:
    """Apply the values of ``--set`` to the job's configuration and to its own ``settings``.

    Settings that neither of them names get the values of :data:`~remote_agent.settings.OF_ORDERS`.

    Raises:
        ConfigError: some values are invalid; it lists every mistake.
        JobError: ``settings`` is not a dataclass object, or a field has the name of an engine's setting.
    """
    left = {name: value for name, value in OF_ORDERS.items() if job.config is None or not job.config.gives(name)}
    given = {**left, **given}
    own = getattr(job.factory, "settings", None)
    if own is None:
        return TrainingConfig.from_settings(with_whole_names(given), job.config)
    if not dataclasses.is_dataclass(own) or isinstance(own, type):
        cause = f"the job {job.name!r}: its settings are a {type(own).__name__}"
        raise JobError(cause, hint="make it an object of a frozen dataclass: settings = Mine()")
    hints = {setting.name: setting.hint for setting in job_settings.of_class(type(own))}
    if both := sorted(hints.keys() & set(names())):
        hint = "call it otherwise; config.NAME has the engine's"
        raise JobError(f"the job {job.name!r}: its setting {both[0]!r} is called as one of the engine's", hint=hint)
    given = with_whole_names(given, hints)
    config = TrainingConfig.from_settings(given, job.config, hints)
    job.factory.settings = guard("filling the job's settings", job_settings.filled, own, given)
    return config


def check(job: Job, config: TrainingConfig) -> None:
    """Call the job's own ``check(config)`` on the coordinator's host; raises JobError if that raises."""
    own = getattr(job.factory, "check", None)
    if callable(own):
        guard("check", own, config)


def create_model(factory: Any, seed: int, config: TrainingConfig | None = None, *, trains: bool = True) -> nn.Module:
    """Make a model with the job's factory, on the CPU, after seeding torch's, numpy's and Python's random numbers.

    Args:
        config: settings of adapters and four-bit weights; None: leave the model as the factory makes it.
        trains: parameters that the job's optimizer does not have become state.

    Raises:
        CannotAdapt: the model has no layers for the adapters.
        JobError: the factory raised, or returned something that is not a module with trained parameters.
    """
    seeding.seed_all(seed)
    torch.manual_seed(seed)  # accelerators, too
    place = _kept_as(factory, config)
    if place is not None and config is not None:
        found = kept.load(lambda: _adapted(guard("outline", _outlined, factory), seed, config), *place, seed)
        if found is not None:
            return found
    # A model that is cut may be larger than the host's memory.
    with file_memory.making(wanted=config is not None and strategies.spec_of(config.strategy).split) as into_files:
        model = guard("create_model", factory.create_model)
        if not isinstance(model, nn.Module):
            raise JobError(f"create_model gave a {type(model).__name__}", hint="return a torch.nn.Module")
        checks.check_model(model)
        if any(tensor.device.type != "cpu" for tensor in (*model.parameters(), *model.buffers())):
            model = model.to("cpu")  # the worker moves it to its own device
        into_files(model)
        if config is not None and config.lora_rank:
            _adapted(model, seed, config)
            into_files(model)
    if place is not None:
        kept.keep(model, *place)
    if config is not None and trains:
        _freeze_others(factory, model, config)
    return model


def _freeze_others(factory: Any, model: nn.Module, config: TrainingConfig) -> None:
    """Turn parameters that the job's optimizer does not have into state: a target network, a teacher."""
    if getattr(factory, "create_optimizer", None) is None:
        return
    optimizer = guard("create_optimizer", factory.create_optimizer, model, config)
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, list):
        return  # the check of the optimizer reports it
    own = {id(parameter) for group in groups for parameter in group["params"]}
    others = [parameter for parameter in model.parameters() if id(parameter) not in own]
    if len(others) < len(list(model.parameters())):  # else it is over another model, which the check reports
        for parameter in others:
            parameter.requires_grad_(False)


def _adapted(model: nn.Module, seed: int, config: TrainingConfig) -> nn.Module:
    """Freeze the model and add adapters, in place."""
    torch.manual_seed(seed)
    targets = tuple(each.strip() for each in config.lora_targets.split(",") if each.strip())
    four_bits = config.quantize == "nf4"
    return adapt(model, four_bits=four_bits, rank=config.lora_rank, alpha=config.lora_alpha, targets=targets)


def _outlined(factory: Any) -> nn.Module:
    with torch.device("meta"):
        model: nn.Module = factory.outline()
    return model


def _kept_as(factory: Any, config: TrainingConfig | None) -> tuple[Path, str] | None:
    """Folder and name of the job's four-bit model on this host; None: the host keeps none.

    The job names the files of the model (``made_from``), and makes the model without memory (``outline``).
    """
    cluster, files_of = os.environ.get(CLUSTER_MARK), getattr(factory, "made_from", None)
    if config is None or config.quantize != "nf4" or not cluster or files_of is None:
        return None
    try:
        files = files_of()
        folder = Path(cluster) / KEPT
        return (folder, kept.key_of(files, folder, torch.__version__)) if files else None
    except OSError:
        return None


def create_optimizer(factory: Any, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Make the job's optimizer for ``model``, by default AdamW; raises JobError."""
    create = getattr(factory, "create_optimizer", None)
    if create is None:
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    optimizer = checks.check_optimizer(guard("create_optimizer", create, model, config), model)
    if not has_scheduler(factory):
        checks.refuse_scheduled(optimizer)
    optimizer_options.begin(optimizer)
    return optimizer


def has_scheduler(factory: Any) -> bool:
    """Whether the job has its own learning rate scheduler."""
    return getattr(factory, "create_scheduler", None) is not None


def create_scheduler(factory: Any, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> LRScheduler:
    """Make the job's own scheduler over ``optimizer``; raises JobError if it is none over it."""
    scheduler = guard("create_scheduler", factory.create_scheduler, optimizer, config)
    if not isinstance(scheduler, LRScheduler):
        raise JobError(
            f"create_scheduler gave a {type(scheduler).__name__}", hint="return a torch LRScheduler over the optimizer"
        )
    if scheduler.optimizer is not optimizer:
        raise JobError("create_scheduler's scheduler is over another optimizer", hint="use the optimizer that it gets")
    return scheduler


def loss_function(factory: Any) -> Callable[[nn.Module, Any], Any]:
    """``loss(model, batch)``: see :func:`losses.function_of`."""
    return losses.function_of(getattr(factory, "loss", None))


def guard(where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's ``function``, and turn any exception into a :class:`JobError` with its last lines.

    ``sys.exit`` is treated the same, since Ray would end a worker without a message. Ctrl-C is passed on.
    """
    try:
        with HERE.during(where):
            return function(*arguments)
    except Interrupted:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise as_job_error(where, error) from error
