"""Defines the settings of a run, their ranges, and how they are read from ``--set key=value``.

It does not need torch, so that the laptop can refuse mistakes before anything starts. The engine imports it as
:mod:`remote_agent.training.config`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from remote_agent import job_settings
from remote_agent.errors import ConfigError
from remote_agent.goals import GoalSetting
from remote_agent.kinds import Choice, Range, convert, nearest, spelt_out
from remote_agent.removed import why_removed
from remote_agent.setting_pairs import pairs
from remote_agent.strategies import AUTO, SETTINGS

STREAMS = ("auto", "network")
"""Values of ``stream``."""

OUTER_OPTIMIZERS = ("none", "nesterov")
"""Values of ``outer``."""

SCHEDULES = ("constant", "linear", "cosine")
"""Values of ``schedule``."""

REDUCTIONS = ("auto", "mean", "sum")
"""Values of ``loss_reduction``."""

PRECISIONS = ("fp32", "bf16", "fp16")
"""Values of ``precision``."""

LOGS = ("none", "csv", "tensorboard")
"""Values of ``log_to``."""

ALLOWED = ("exact", "inexact")
"""Values of ``allow``."""

QUANTIZERS = ("none", "nf4")
"""Values of ``quantize``."""

FOR_SCRIPTS = frozenset({"num_gpu_workers", "num_cpu_workers"})
"""Settings that a run on the fleet has no use for: its devices are the inventory's."""

OF_ORDERS: Mapping[str, Any] = types.MappingProxyType({"strategy": AUTO})
"""Defaults of a run on the fleet that differ from those of a script."""

CODECS = ("fp32", "bf16", "int8")
"""Values of ``codec``; see :mod:`remote_agent.training.wire.codecs`."""

GOALS = ("num_iterations", "epochs")
"""Settings that say how long a run is."""

OF_VALIDATION = ("evaluate_every", "keep_best", "early_stopping")
"""Settings that need validation data."""

WHEN_RESUMED = (
    *GOALS,
    *("learning_rate", "schedule", "warmup_steps", "clip_norm"),
    *("checkpoint_every", "checkpoint_seconds", "keep_checkpoints"),
    *("evaluate_every", "keep_best", "early_stopping", "log_to"),
)
"""Settings that may differ when a run goes on. The others are of its model, its order of the samples or its state."""

MOST = 10**12
"""Of steps, samples and the like: without an end for any run, and events can still carry what follows from it."""

Count = Annotated[int, Range(least=1, most=MOST)]
Whole = Annotated[int, Range(least=0, most=MOST)]
Passes = Annotated[int, Range(least=0, most=10**6)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]


_Config = TypeVar("_Config")


def _all_mistakes_at_once(config: type[_Config]) -> type[_Config]:
    """Make the constructor read its arguments as ``--set`` does; an unknown name is one mistake among others."""
    plain = config.__init__

    @functools.wraps(plain)
    def init(self: Any, *unnamed: Any, **settings: Any) -> None:
        values, mistakes = _read(settings, parse=False)
        if unnamed:
            mistakes.insert(0, f"{unnamed[0]!r}: settings are given by name, as in batch_size=64")
        mistakes += _conflicts({**defaults(), **values}, among=_right(settings, values))
        if mistakes:
            raise ConfigError(tuple(mistakes))
        plain(self, **values)
        object.__setattr__(self, "_named", frozenset(values))

    config.__init__ = init  # type: ignore[method-assign]
    return config


@_all_mistakes_at_once
@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The settings of a run. All fields have defaults.

    A wrong type, a value out of its range and an unknown name raise :class:`ConfigError`, which lists every mistake at
    once. numpy's numbers are accepted.

    Attributes:
        num_iterations: optimizer steps to make; with ``local_sgd`` rounds, each of many local steps. With ``--set`` it
            replaces the ``epochs`` of the job or of the resumed run.
        epochs: passes over the data, instead of ``num_iterations`` steps; 0: use ``num_iterations``.
        batch_size: samples of one step, over all devices together; 0: the batches are those of the data loader, or 64
            samples where the data has none.
        micro_batch: most samples that a device computes at a time; the gradients of a larger slice are accumulated. 0:
            as many as fit into memory; with ``pipeline`` an eighth of a batch, the part that goes through the stages.
        in_flight: micro-batches in the stages of a ``pipeline`` at once; each stage holds the activations of all of
            them. 0: the number with the shortest predicted step.
        learning_rate: learning rate, which the job's ``create_optimizer`` gets.
        schedule: of the learning rate, from warm-up to the run's end: ``constant``, ``linear`` (to 0) or ``cosine`` (to
            0). A job's own ``create_scheduler(optimizer, config)`` replaces it.
        warmup_steps: first steps, over which the learning rate rises to its full value.
        clip_norm: largest global norm of the gradient, as in ``torch.nn.utils.clip_grad_norm_``; 0: no limit.
        ema_decay: decay of an exponential moving average of the weights (0.999); 0: no average. The average is in every
            checkpoint and in the result's ``ema_model()``. It is updated after each step, with ``local_sgd`` after each
            round.
        precision: of forward and backward: ``fp32``, or autocast to ``bf16`` or ``fp16`` (with loss scaling) on each
            device that supports it; weights, gradients and optimizer stay fp32.
        loss_reduction: how ``loss`` reduces a batch's samples: ``mean`` or ``sum``. ``auto``: the audit decides,
            and a loss that is neither is refused. A loss that returns ``(sum, weight)`` is a weighted mean.
        unit: samples of a batch that one device always computes together. Batch normalisation, losses over the batch
            (contrastive), padding and random numbers (dropout) then do not depend on the cut; the result equals plain
            torch with gradients accumulated over units. With ``batch_size`` or more, one device computes the whole
            batch. 0: no units, but with batch normalisation at least 32 samples and at most ten units.
        deterministic: the same seed gives bitwise the same weights on devices of the same kind, independent of speeds
            and lost workers: units are added in a fixed order, and each device uses one thread. Slower, since each
            unit's gradient is sent separately. Only for ``strategy=sync``, which then runs as ``allreduce``, and
            ``strategy=allreduce``.
        activation_checkpointing: keep no activations inside repeated blocks, and compute them again in backward.
        quantize: ``nf4`` freezes the weights of the linear layers and holds them in four bits (as QLoRA does), except
            the output layer. Needs ``lora_rank``.
        lora_rank: rank of the adapters beside the linear layers (LoRA), which are trained while the model is frozen; 0:
            no adapters, train the model.
        lora_alpha: scale of the adapters; their output is multiplied by ``lora_alpha / lora_rank``.
        lora_targets: names of the linear layers that get an adapter, separated by commas; empty: all but the output
            layer.
        seed: of the initial weights, the order of the samples and each slice's randomness (dropout).
        strategy: how the workers train together. ``sync``: exact, with a parameter server. ``allreduce``: exact,
            without a server; also used by ``sync`` for a model that a server can't hold (batch normalisation, dtypes
            other than float32). ``local_sgd``: workers exchange weights once a round.
            ``pipeline``: exact; each device holds some layers of a model that is too large for one device.
            ``auto``: the exact strategy and the machines with the shortest predicted step; ``pipeline`` if the model
            fits on no device.
        allow: ``inexact`` lets ``strategy=auto`` also choose strategies and codecs whose weights differ from those of
            one process, and lets ``pipeline`` choose a codec if this makes a step shorter.
        shards: parts of the parameter server, each on a host of its own; 0: the number with the shortest predicted
            step.
        checkpoint_every: steps from one checkpoint to the next; 0: save by time, as ``checkpoint_seconds`` says.
        checkpoint_seconds: seconds from one checkpoint to the next, if ``checkpoint_every`` is 0. The first one is
            saved 5 s after the start or sooner. The pause is longer if saving would take over 1 % of the time (3 % with
            ``pipeline``) or wear the disk. A lost head, or stage of a pipeline, costs the steps since the checkpoint.
            0: save only the last one.
        keep_checkpoints: number of newest checkpoints to keep.
        evaluate_every: steps from one evaluation on the validation data to the next; 0: after each epoch. The last step
            is evaluated, too, unless a user stops the run.
        keep_best: metric by which the best checkpoint is kept beside the newest ones: ``val_loss``, ``min:NAME`` or
            ``max:NAME``. Without ``min:`` or ``max:``, a name has to end in loss, error, perplexity or accuracy. Empty:
            keep only the newest.
        early_stopping: end the run after this many evaluations in a row without a better one by ``keep_best``; 0:
            never.
        measure_seconds: time limit for the measurement of one device before training, without its warm-up.
        rebalance: adapt the shares when the speeds of devices change; False keeps the first cut.
        slice_deadline_s: seconds after which another device gets a late slice as well. If slices are streamed, this is
            done after twice the expected time and two seconds, if that is earlier; with ``allreduce`` after five times
            as long.
        stream: how gradients and weights go between workers and servers: ``auto`` uses shared memory on one computer,
            ``network`` never does.
        codec: encoding of streamed numbers on the network, in both directions: ``fp32``, ``bf16`` or ``int8``. Error
            feedback corrects what a codec loses, but not for activations and their gradients with ``pipeline``. Shared
            memory uses no codec.
        local_steps: local steps of the fastest device in a round of ``local_sgd``; the others make as many as take the
            same time.
        local_batch: samples of one local step; 0: ``batch_size`` / devices.
        overlap: exchange a round of ``local_sgd`` while the next one is computed. This hides the network, but the
            exchanged weights are one round old.
        outer: how a round of ``local_sgd`` ends: ``none`` (mean of the weights, by samples) or ``nesterov`` (DiLoCo).
        outer_learning_rate: learning rate of ``outer=nesterov``.
        outer_momentum: momentum of ``outer=nesterov``.
        log_to: also write metrics of steps and evaluations to the run's folder on the head: ``csv`` (``steps.csv``,
            ``evaluations.csv``), ``tensorboard`` (event files in ``tensorboard/``) or ``none``.
        num_gpu_workers: GPUs to train on, in scripts only; None: all if ``num_cpu_workers`` is None too, else 0.
        num_cpu_workers: CPU workers, in scripts only; None: one on each node without a GPU, or 0 as above.
    """

    num_iterations: Count = 100
    epochs: Passes = 0
    batch_size: Whole = 0
    micro_batch: Whole = 0
    in_flight: Whole = 0
    learning_rate: Positive = 1e-3
    schedule: Annotated[str, Choice(SCHEDULES)] = "constant"
    warmup_steps: Whole = 0
    clip_norm: NotNegative = 0.0
    ema_decay: Annotated[float, Range(least=0, below=1)] = 0.0
    precision: Annotated[str, Choice(PRECISIONS)] = "fp32"
    loss_reduction: Annotated[str, Choice(REDUCTIONS)] = "auto"
    unit: Whole = 0
    deterministic: bool = False
    activation_checkpointing: bool = False
    quantize: Annotated[str, Choice(QUANTIZERS)] = "none"
    lora_rank: Whole = 0
    lora_alpha: Positive = 32.0
    lora_targets: str = ""
    seed: Annotated[int, Range(least=0, most=2**63 - 1)] = 0
    strategy: Annotated[str, Choice(SETTINGS)] = "sync"
    allow: Annotated[str, Choice(ALLOWED)] = "exact"
    shards: Whole = 0
    checkpoint_every: Whole = 0
    checkpoint_seconds: NotNegative = 5.0
    keep_checkpoints: Count = 3
    evaluate_every: Whole = 0
    keep_best: Annotated[str, GoalSetting()] = ""
    early_stopping: Whole = 0
    measure_seconds: Positive = 0.5
    rebalance: bool = True
    slice_deadline_s: Positive = 60.0
    stream: Annotated[str, Choice(STREAMS)] = "auto"
    codec: Annotated[str, Choice(CODECS)] = "fp32"
    local_steps: Count = 20
    local_batch: Whole = 0
    overlap: bool = False
    outer: Annotated[str, Choice(OUTER_OPTIMIZERS)] = "none"
    outer_learning_rate: Positive = 0.7
    outer_momentum: Annotated[float, Range(least=0, below=1)] = 0.9
    log_to: Annotated[str, Choice(LOGS)] = "none"
    num_gpu_workers: Annotated[int | None, Range(least=0)] = None
    num_cpu_workers: Annotated[int | None, Range(least=0)] = None

    def gives(self, setting: str) -> bool:
        """Whether this setting was given when the object was made, rather than left at its default."""
        return setting in self._named  # type: ignore[attr-defined]  # it is no field

    @classmethod
    def from_settings(
        cls,
        settings: Mapping[str, Any],
        defaults: TrainingConfig | None = None,
        own: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> TrainingConfig:
        """A configuration from values that may all be strings, as ``--set key=value`` gives them.

        Args:
            settings: field name to value; fields that are not named keep those of ``defaults``.
            defaults: the job's own configuration.
            own: hints of the job's own settings, by name; theirs among the values are checked, and left out.

        Raises:
            ConfigError: with every mistake: unknown names (and the nearest valid), wrong kinds, values out of range.
        """
        base = {field.name: getattr(defaults or cls(), field.name) for field in dataclasses.fields(cls)}
        values, mistakes = _read(settings, parse=True, own=own)
        if "num_iterations" in values:
            values.setdefault("epochs", 0)  # as in train(num_iterations=...)
        mistakes += job_settings.missing(own, settings)
        mistakes += _conflicts({**base, **values}, among=_right(settings, values))
        if mistakes:
            raise ConfigError(tuple(mistakes))
        return cls(**(base | {name: value for name, value in values.items() if name in base}))


def values_of(settings: Mapping[str, str], rest: Mapping[str, Any] = types.MappingProxyType({})) -> Mapping[str, Any]:
    """What is known of the settings: those of texts that can be read, and beside them as in :func:`check`."""
    return {**rest, **_read({name: text for name, text in settings.items() if name in hints()}, parse=True)[0]}


def with_whole_names(given: Mapping[str, Any], own: Collection[str] = ()) -> dict[str, Any]:
    """Settings by their whole names: ``lr`` is ``learning_rate``, unless that is given as well, or the job has it."""
    whole = {name: spelt_out(name, (*own, *names())) for name in given}
    return {name if whole[name] in given else whole[name]: value for name, value in given.items()}


def names() -> tuple[str, ...]:
    """All settings."""
    return tuple(field.name for field in dataclasses.fields(TrainingConfig))


def check(
    settings: Mapping[str, Any],
    *,
    parse: bool = True,
    own: Mapping[str, Any] = types.MappingProxyType({}),
    is_open: bool = False,
    rest: Mapping[str, Any] = types.MappingProxyType({}),
    swept: Collection[str] = (),
) -> tuple[str, ...]:
    """Every mistake in some settings that shows without the job, whose own configuration has the rest.

    Settings that do not go together are among them where both are known here.

    Args:
        settings: field name to value.
        parse: values are texts, as ``--set key=value`` gives them; False: they are Python's.
        own: hints of the job's own settings, by name.
        is_open: the job may have more of its own, which only its host knows.
        rest: what is known of the other settings: the job's own, and defaults that it leaves as they are.
        swept: settings that have other values beside these, in trials of a sweep.
    """
    values, mistakes = _read(settings, parse=parse, own=own, is_open=is_open)
    mistakes += job_settings.missing(own, {*settings, *swept})
    among = ({*rest, *values} & _right(settings, values)) - set(swept)
    return (*mistakes, *_conflicts({**defaults(), **rest, **values}, among=among))


def _read(
    settings: Mapping[str, Any],
    *,
    parse: bool,
    own: Mapping[str, Any] = types.MappingProxyType({}),
    is_open: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """The settings that are of their kind and in their range, as plain values; a sentence for each of the others."""
    known = {**own, **hints()}
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for name, value in settings.items():
        if name not in own and (removed := why_removed(name, value)):
            mistakes.append(removed)
            continue
        if is_open and name not in known:
            continue
        if name not in known:
            valid = [each for each in known if not parse or each not in FOR_SCRIPTS]
            close = nearest(name, valid)
            advice = f"did you mean {close!r}?" if close else "valid: " + ", ".join(sorted(valid))
            mistakes.append(f"{name}: no such setting; {advice}")
            continue
        try:
            values[name] = convert(known[name], value, parse=parse)
        except ValueError as error:
            mistakes.append(f"{name}={value if parse else repr(value)}: {error}")
    if parse and values.get("epochs") and "num_iterations" in values:
        mistakes.append(f"num_iterations={values['num_iterations']}: epochs={values['epochs']} is set too; set one")
    return values, mistakes


@cache
def hints() -> Mapping[str, Any]:
    """Each setting's annotation: its kind and range."""
    return typing.get_type_hints(TrainingConfig, include_extras=True)


@cache
def defaults() -> Mapping[str, Any]:
    """Each setting's default."""
    return {field.name: field.default for field in dataclasses.fields(TrainingConfig)}


def _right(given: Collection[str], values: Collection[str]) -> set[str]:
    """The settings that were not ``given`` a wrong value: ``values`` are those that were given a right one."""
    return {name for name in hints() if name in values or name not in given}


def _conflicts(values: Mapping[str, Any], among: Collection[str]) -> list[str]:
    """A sentence for each pair of settings, both ``among`` those that count, whose values do not go together."""
    config = types.SimpleNamespace(**values)
    return [sentence for names, sentence in pairs(config) if all(name in among for name in names)]
