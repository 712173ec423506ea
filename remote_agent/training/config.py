"""The settings of a run, and how they are read from ``--set key=value``."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remote_agent.training.codecs import CODECS
from remote_agent.training.errors import ConfigError

STRATEGIES = ("sync", "ssp", "async", "local_sgd", "allreduce")
"""Strategies that exist; see :mod:`remote_agent.training.strategies`."""

STALE_STRATEGIES = ("ssp", "async")
"""Those where no worker waits for a whole step."""

WHOLE_STRATEGIES = ("sync", "local_sgd")
"""Those whose steps are whole on all actors once these have done what they were given."""

STREAMS = ("auto", "network", "off")
"""Values of ``stream``."""

OUTER_OPTIMIZERS = ("none", "nesterov")
"""Values of ``outer``."""

SCHEDULES = ("constant", "linear", "cosine")
"""Values of ``schedule``."""

PRECISIONS = ("fp32", "bf16", "fp16")
"""Values of ``precision``."""

_LEAST = {
    "num_iterations": 1,
    "batch_size": 1,
    "local_steps": 1,
    "keep_checkpoints": 1,
    "epochs": 0,
    "micro_batch": 0,
    "warmup_steps": 0,
    "staleness": 0,
    "shards": 0,
    "seed": 0,
    "checkpoint_every": 0,
    "local_batch": 0,
}
"""The least value of each whole number."""

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a run trains. All fields have defaults; a value out of range raises :class:`ConfigError` with every mistake.

    Attributes:
        num_iterations: optimizer steps to make; with ``local_sgd`` rounds, each of many local steps.
        epochs: train until every sample was used this often, instead of ``num_iterations`` steps; 0: steps count.
        batch_size: samples of one step, over all devices together.
        micro_batch: the most samples that a device takes at a time; a larger slice is accumulated. 0: what fits.
        learning_rate: handed to the job's ``create_optimizer``.
        schedule: of the learning rate, from warm-up to the run's end: ``constant``, ``linear`` (to 0) or ``cosine`` (to
            0); a job with a ``create_scheduler(optimizer, config)`` of its own brings its own.
        warmup_steps: first steps, over which the learning rate rises to its full value.
        clip_norm: the most that the gradient's global norm may be, as ``torch.nn.utils.clip_grad_norm_``; 0: any.
        precision: of forward and backward: ``fp32``, or autocast to ``bf16`` or ``fp16`` (with loss scaling) on each
            device that can; weights, gradients and optimizer stay fp32.
        activation_checkpointing: keep no activations inside repeated blocks, compute them again in backward.
        seed: of the initial weights, the order of the samples and each slice's randomness (dropout).
        strategy: how the workers train together. ``sync`` is exact; so is ``allreduce``, without a server; ``ssp`` and
            ``async`` do not wait for each other; ``local_sgd`` exchanges weights once a round.
        staleness: of ``ssp``: steps that a worker may be ahead of the slowest.
        shards: parts of the parameter server, each on a host of its own; 0: as many as make a step shortest.
        checkpoint_every: also save a checkpoint after every this many steps; 0: by time.
        checkpoint_seconds: where it goes by time, one is saved soon after the beginning and then after so many seconds,
            or more where that would take over 1 % of the time or wear the disk; 0 saves only the last one.
        keep_checkpoints: newest checkpoints that are kept.
        measure_seconds: time limit for the measurement of one device before training, without its warm-up.
        rebalance: follow changes in the devices' speed during the run; False keeps the first cut.
        slice_deadline_s: the most that a slice may take until it is given to another device as well. Where slices are
            streamed that is done after twice the expected time and two seconds, if that is sooner; with ``allreduce``
            after five times as long; elsewhere this is beyond ten times the usual.
        stream: how gradients and weights travel: ``auto`` streams them where that is exact (through memory where worker
            and server share a computer), ``network`` never through memory, ``off`` never: as Ray objects.
        codec: how streamed numbers travel over a network, both ways: ``fp32``, ``bf16``, ``int8`` or ``topk``. What a
            codec loses is made up for later (error feedback). Through memory numbers go as they are.
        topk_fraction: part of the numbers that ``topk`` sends. The others wait, for about 1 / fraction steps: the
            learning rate has to be small beside that, or training diverges, with ``local_sgd`` above all.
        local_steps: of the fastest device in a round of ``local_sgd``; the others make as many as take the same time.
        local_batch: samples of one local step; 0: ``batch_size`` / devices.
        overlap: a round of ``local_sgd`` is exchanged while the next one is computed: hides the network, and what comes
            back is one round old.
        outer: how a round of ``local_sgd`` ends: ``none`` (mean of the weights, by samples) or ``nesterov`` (DiLoCo).
        outer_learning_rate: of ``nesterov``.
        outer_momentum: of ``nesterov``.
        num_gpu_workers: script API only: GPUs to train on; None means all when ``num_cpu_workers`` is None too, else 0.
        num_cpu_workers: script API only: CPU workers; None means one on each node without a GPU, or 0 as above.
    """

    num_iterations: int = 100
    epochs: int = 0
    batch_size: int = 64
    micro_batch: int = 0
    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup_steps: int = 0
    clip_norm: float = 0.0
    precision: str = "fp32"
    activation_checkpointing: bool = False
    seed: int = 0
    strategy: str = "sync"
    staleness: int = 3
    shards: int = 0
    checkpoint_every: int = 0
    checkpoint_seconds: float = 30.0
    keep_checkpoints: int = 3
    measure_seconds: float = 0.5
    rebalance: bool = True
    slice_deadline_s: float = 60.0
    stream: str = "auto"
    codec: str = "fp32"
    topk_fraction: float = 0.01
    local_steps: int = 20
    local_batch: int = 0
    overlap: bool = False
    outer: str = "none"
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    num_gpu_workers: int | None = None
    num_cpu_workers: int | None = None

    def __post_init__(self) -> None:
        mistakes = _out_of_range(self)
        if mistakes:
            raise ConfigError(mistakes)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], defaults: TrainingConfig | None = None) -> TrainingConfig:
        """A configuration from values that may all be strings, as ``--set key=value`` gives them.

        Args:
            settings: field name to value; fields that are not named keep those of ``defaults``.
            defaults: the job's own configuration.

        Raises:
            ConfigError: with every mistake: unknown names (and the nearest valid), wrong types, values out of range.
        """
        hints = typing.get_type_hints(cls)
        values: dict[str, Any] = {}
        mistakes: list[str] = []
        for key, value in settings.items():
            if key not in hints:
                mistakes.append(_unknown(key, hints))
                continue
            try:
                values[key] = _convert(hints[key], value)
            except ValueError as error:
                mistakes.append(f"{key}={value}: {error}")
        base = {field.name: getattr(defaults or cls(), field.name) for field in dataclasses.fields(cls)}
        candidate = types.SimpleNamespace(**(base | values))
        mistakes.extend(_out_of_range(candidate))
        if mistakes:
            raise ConfigError(tuple(mistakes))
        return cls(**(base | values))


def _unknown(key: str, known: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]!r}?" if nearest else "valid: " + ", ".join(sorted(known))
    return f"no setting {key!r}; {advice}"


def _convert(hint: Any, value: Any) -> Any:
    """``value`` as the field's type; strings are parsed, numbers are taken when nothing is lost."""
    options = typing.get_args(hint)
    if type(None) in options:
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null", "")):
            return None
        hint = options[0]
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        raise ValueError("expected true or false")
    if isinstance(value, bool):
        raise ValueError(f"expected a {'whole number' if hint is int else 'value'}")  # noqa: TRY004 - one type for all
    if hint is int:
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if not isinstance(number, int):
            raise ValueError("expected a whole number")
        return number
    if hint is float:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ValueError("expected a number") from None
    if not isinstance(value, str):
        raise ValueError("expected text")  # noqa: TRY004 - as above
    return value


def _out_of_range(config: Any) -> tuple[str, ...]:
    """One sentence for each field of ``config`` that is out of range."""
    mistakes = [
        f"{name}={getattr(config, name)}: must be at least {least}"
        for name, least in _LEAST.items()
        if getattr(config, name) < least
    ]
    mistakes += [
        f"{name}={getattr(config, name)}: must be greater than 0 and finite"
        for name in ("learning_rate", "measure_seconds", "slice_deadline_s", "outer_learning_rate")
        if not 0 < getattr(config, name) < float("inf")
    ]
    mistakes += [
        f"{name}={getattr(config, name)}: must be at least 0"
        for name in ("num_gpu_workers", "num_cpu_workers")
        if getattr(config, name) is not None and getattr(config, name) < 0
    ]
    mistakes += [
        f"{name}={getattr(config, name)}: must be at least 0 and finite"
        for name in ("clip_norm", "checkpoint_seconds")
        if not 0 <= getattr(config, name) < float("inf")
    ]
    if not 0 <= config.outer_momentum < 1:
        mistakes.append(f"outer_momentum={config.outer_momentum}: must be at least 0 and below 1")
    if not 0 < config.topk_fraction <= 1:
        mistakes.append(f"topk_fraction={config.topk_fraction}: must be above 0 and at most 1")
    choices = (
        ("stream", STREAMS),
        ("strategy", STRATEGIES),
        ("codec", CODECS),
        ("outer", OUTER_OPTIMIZERS),
        ("schedule", SCHEDULES),
        ("precision", PRECISIONS),
    )
    mistakes += [
        f"{name}={getattr(config, name)}: valid: " + ", ".join(valid)
        for name, valid in choices
        if getattr(config, name) not in valid
    ]
    if config.stream == "off" and config.strategy in ("ssp", "async", "local_sgd"):
        mistakes.append(f"strategy={config.strategy}: needs stream=auto or stream=network")
    if config.stream == "off" and config.codec != "fp32":
        mistakes.append(f"codec={config.codec}: needs stream=auto or stream=network")
    if config.strategy == "allreduce" and config.codec != "fp32":
        mistakes.append(f"codec={config.codec}: strategy=allreduce sends fp32 only")
    return tuple(mistakes)
