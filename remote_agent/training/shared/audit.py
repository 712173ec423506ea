"""The audit of a job: the parts of some samples add up to the whole, calls repeat, and all machines agree. Pure.

A process computes some samples and keeps a :class:`Sketch`: loss, weight, and a projection of the gradient and of the
model's state. A sketch is linear in the samples, as the gradient is, so sketches of parts can be added up. Numbers
decide, not source code. The yardstick is what flipping the last bit of each weight changes.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote_agent.planning import units
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared.slices import Indices

Array = NDArray[np.float64]

NUMBERS = 64
"""Numbers of a sketch for each parameter."""

SAMPLES = 12
"""Samples of a probe: enough to cut it unevenly, few enough to be computed in a moment."""

AGAIN = 3
"""Times that a difference is looked for again before it counts: a single one may be chance."""


LARGEST = 0.25
"""The most that one parameter's gradient may differ, as a part of both: a halved one differs by a third."""

SCALE = 1024.0
"""Factor of a loss in float16, whose gradients would vanish."""

STIRRED = 1e-2
"""Part by which weights are changed for the audit: equal ones (a teacher's, a layer of zeros) hide what happens."""

HALVED = 50.0
"""Times less exactly than in float32 that a loss is computed in half precision."""

FROZEN_BYTES = 1 << 29
"""Frozen parameters up to this size are put back after a call: a loss may move them, as that of a teacher does."""

HEAD_S = 2.0
"""Seconds that a start waits for the head's audit; the workers alone audit a model for which it takes longer."""

SAMPLE_S = 0.2
"""Seconds that two samples may take on the head's CPU, of which the audit computes some twenty times as many."""

ROOM = 6
"""Copies of the model that have to fit into the head's free memory."""

IN_RUN = 8
"""Samples of an audit in the run: few, as the other workers wait for it."""

FREE_STEPS, PART = 64, 0.01
"""Up to this step audits are made at each power of two; later ones while they take less than this part of the time."""


@dataclass(frozen=True)
class Limits:
    """How far two sketches may be apart where nothing is wrong; each number is a part of what is compared.

    Attributes:
        loss: of the loss; float32 sums in another order differ by some 1e-6.
        gradient: of all parameters' gradients together; a wrong kernel, a missing mask or a lost term is far above.
        parameter: of one parameter's gradient, since a small layer is lost in the norm of all.
        small: of all gradients together, added to ``parameter``: some gradients are nothing but rounding.
        noise: times what the last bits of the weights change; chaotic models differ by more than any fixed number.
    """

    loss: float = 3e-5
    gradient: float = 1e-3
    parameter: float = 3e-2
    small: float = 1e-5
    noise: float = 10.0

    def times(self, coarse: float) -> Limits:
        """Return the limits of a device or precision that rounds ``coarse`` times more than float32 on a CPU."""
        parameter = min(self.parameter * coarse, LARGEST)
        return Limits(self.loss * coarse, self.gradient * coarse, parameter, self.small * coarse, self.noise)


PARTS = Limits()
"""Between the whole and its parts, and between machines."""

REPEATS = Limits(loss=1e-6, gradient=1e-4, parameter=1e-2, small=1e-5, noise=0.0)
"""Between two calls with the same samples and random numbers in one process: only the order of a sum may differ."""


class Cause(enum.Enum):
    """Why a job can't be divided among workers as it is."""

    CALLS_DO_NOT_REPEAT = "calls do not repeat"
    PARTS_DO_NOT_ADD_UP = "parts do not add up"
    STATE_DOES_NOT_ADD_UP = "state does not add up"
    WEIGHTS_CHANGE = "the loss changes weights"
    MACHINES_DIFFER = "machines differ"
    DATA_DIFFERS = "data differs"


@dataclass(frozen=True)
class Sketch:
    """What the loss of some samples gave.

    Attributes:
        samples: how many.
        value: the loss as the job returned it.
        factor: ``value`` times this is the sum over the samples.
        weight: what the sum is divided by, together with those of other parts.
        gradient: projection of the gradient of ``value``, of shape ``(parameters, NUMBERS)``.
        state: some numbers of each buffer and frozen parameter after the call, by name.
        batch: one number of each tensor of the batch.
        coarse: how many times less exactly its device computes than float32 on a CPU.
        terms: of the loss, each with a weight of its own; empty: there is one.
    """

    samples: int
    value: float
    factor: float
    weight: float
    gradient: Array
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    batch: Array = field(default_factory=lambda: np.zeros(0))
    coarse: float = 1.0
    terms: tuple[Sketch, ...] = ()

    @property
    def is_mean(self) -> bool:
        """True if the loss weighs as much as it has samples."""
        return self.factor == self.weight == self.samples


@dataclass(frozen=True)
class Finding:
    """One way in which a job is not what the engine relies on.

    Attributes:
        cause: the kind.
        name: a tensor, where the cause is about one.
        one: what one side gave: a loss, or the norm of a gradient.
        other: what the other side gave.
        places: hosts or workers whose numbers differ.
        unit: the smallest unit with which the parts add up; 0: none below the batch.
    """

    cause: Cause
    name: str = ""
    one: float = 0.0
    other: float = 0.0
    places: tuple[str, ...] = ()
    unit: int = 0


@dataclass(frozen=True)
class Noise:
    """What flipping the last bits of the weights changes.

    Attributes:
        loss: of the loss.
        gradient: of each parameter's gradient, shape ``(parameters,)``.
        terms: the same for each term of the loss.
    """

    loss: float
    gradient: Array
    terms: tuple[Noise, ...] = ()

    @classmethod
    def between(cls, one: Sketch, other: Sketch) -> Noise:
        """Return how far two sketches of the same samples are apart."""
        terms = tuple(map(cls.between, one.terms, other.terms))
        return cls(abs(one.value - other.value) * one.factor, _norms(one.gradient - other.gradient) * one.factor, terms)


@dataclass(frozen=True)
class Audit:
    """What one process found alone; other processes' sketches are compared with it.

    Attributes:
        indices: the samples.
        whole: the sketch of all of them.
        noise: what the last bits of the weights change.
        finding: what is wrong; None: nothing.
        summed: the loss adds its samples up.
        evaluating: ``whole`` is of evaluation mode, as the loss is random: kinds of devices draw other numbers.
        by_sample: False: parts were compared in evaluation mode, as some random numbers are not known by sample.
        moved: names of the buffers and frozen parameters that the loss changes.
        place: host that computed it.
        unchecked: parts could not be compared.
        comparable: ``whole`` is the same on every machine.
    """

    indices: Indices
    whole: Sketch
    noise: Noise
    finding: Finding | None = None
    summed: bool = False
    evaluating: bool = False
    by_sample: bool = True
    moved: frozenset[str] = frozenset()
    place: str = ""
    unchecked: bool = False
    comparable: bool = True


def is_due(number: int) -> bool:
    """Return True for each power of two."""
    return number & (number - 1) == 0


NO_NOISE = Noise(0.0, np.zeros(()))
"""The last bits of the weights change nothing, or it was not tried."""


def total(parts: Sequence[Sketch], *, summed: bool = False) -> tuple[float, float, Array]:
    """Add sketches of parts up; returns the sum of the losses, their weight, and the gradient of the sum.

    Args:
        summed: the loss adds its samples up, so that the values of parts are added as they are.
    """
    factors = [1.0 if summed else each.factor for each in parts]
    gradient = sum(factor * each.gradient for factor, each in zip(factors, parts, strict=True))
    value = sum(factor * each.value for factor, each in zip(factors, parts, strict=True))
    return value, sum(each.weight for each in parts), np.asarray(gradient)


def differ(
    one: Sequence[Sketch], other: Sequence[Sketch], noise: Noise, limits: Limits = PARTS, *, summed: bool = False
) -> bool:
    """Return True if two divisions of the same samples gave what rounding does not explain, in any term of the loss."""
    if terms := len(one[0].terms):
        noises = noise.terms or (noise,) * terms
        return any(len(each.terms) != terms for each in (*one, *other)) or any(
            differ([each.terms[at] for each in one], [each.terms[at] for each in other], noises[at], limits)
            for at in range(terms)
        )
    (value, weight, gradient), (value2, weight2, gradient2) = (total(each, summed=summed) for each in (one, other))
    if not (math.isfinite(value) and math.isfinite(value2)):
        return False  # the first step reports a loss that is not finite
    if not math.isclose(weight, weight2, rel_tol=limits.loss, abs_tol=1e-9):
        return True
    size = max(abs(value), abs(value2), *(abs(each.value * each.factor) for each in (*one, *other)))
    if abs(value - value2) > max(limits.loss * size + 1e-7, limits.noise * noise.loss):
        return True
    off, norms = _norms(gradient - gradient2), _norms(gradient) + _norms(gradient2)
    whole = float(np.linalg.norm(norms))
    if np.linalg.norm(off) > max(limits.gradient * whole + 1e-12, limits.noise * float(np.linalg.norm(noise.gradient))):
        return True
    most = np.maximum(limits.parameter * norms + limits.small * whole + 1e-12, limits.noise * noise.gradient)
    return bool((off > most).any())


def state_differs(whole: Sketch, parts: Sequence[Sketch], limits: Limits = PARTS) -> tuple[str, ...]:
    """Return names of state that is not the parts' mean by samples (of whole numbers the largest)."""
    return tuple(name for name in whole.state if _state_differs(name, whole, parts, limits))


def _state_differs(name: str, whole: Sketch, parts: Sequence[Sketch], limits: Limits) -> bool:
    numbers, found = whole.state[name], [each.state[name] for each in parts if name in each.state]
    if len(found) < len(parts):
        return True
    if _are_whole((numbers, *found)):
        return not np.array_equal(numbers, np.maximum.reduce(found))
    weights = [each.samples / whole.samples for each in parts]
    mean = sum(weight * each for weight, each in zip(weights, found, strict=True))
    scale = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
    return not np.allclose(numbers, mean, rtol=limits.loss * 10, atol=1e-7 + limits.loss * scale, equal_nan=True)


def are_counts(
    names: Iterable[str], before: Mapping[str, NDArray[Any]], whole: Sketch, parts: Sequence[Sketch]
) -> bool:
    """Return True if a batch adds to all this state what its parts add together, as to the counts of a metric."""

    def added(each: Sketch, name: str) -> NDArray[Any]:
        return np.asarray(each.state[name].astype(np.float64) - before[name])

    return all(
        all(name in each.state for each in (whole, *parts))
        and np.allclose(added(whole, name), sum(added(each, name) for each in parts), rtol=PARTS.loss, atol=1e-6)
        for name in names
    )


def same_batch(one: Sketch, other: Sketch, tolerance: float = 1e-5) -> bool:
    """Return True if two processes read the same samples."""
    return one.batch.shape == other.batch.shape and np.allclose(
        one.batch, other.batch, rtol=tolerance, atol=tolerance, equal_nan=True
    )


def other_machine(audit: Audit, other: Sketch, place: str) -> Finding | None:
    """Return how another machine's sketch of the audit's samples is not the audit's, or None."""
    whole, places = audit.whole, (place, audit.place)
    limits = PARTS.times(max(whole.coarse, other.coarse))
    if not same_batch(whole, other):
        return Finding(Cause.DATA_DIFFERS, places=places)
    if differ([whole], [other], audit.noise, limits):
        return Finding(Cause.MACHINES_DIFFER, one=other.value, other=whole.value, places=places)
    return None


def compared(audit: Audit, sketches: Iterable[tuple[str, Sketch]]) -> Finding | None:
    """Return how the sketch of a worker, by its name, differs from the audit's; None: all agree."""
    same = (each for each in sketches if audit.comparable and each[1].samples == audit.whole.samples)
    return next(filter(None, (other_machine(audit, sketch, place) for place, sketch in same)), None)


def _norms(gradient: Array) -> Array:
    return np.asarray(np.linalg.norm(gradient, axis=1))


def _are_whole(arrays: Sequence[Any]) -> bool:
    return all(each.dtype.kind in "iub" for each in arrays)


# --- What follows ----------------------------------------------------------------------------------------------------

_REPEAT_HINT = (
    "let loss depend on weights, buffers, the batch, step and the global random numbers alone: count steps by"
    " loss(model, batch, step) or in a buffer of the model (register_buffer), and draw random numbers from torch's,"
    " numpy's or Python's global generators, which are seeded for each slice"
)
_MACHINE_HINT = "compare the versions of torch and of drivers there (hetero-tui check), or leave the device out"
_DATA_HINT = "let every host have the same files, and let a sample depend on its index and the global random numbers"
_WEIGHTS_HINT = (
    "leave changes to the optimizer, or express them in forward (torch.nn.utils.parametrize); of an Embedding with"
    " max_norm, normalise its output"
)


def refusal(finding: Finding, batch: int) -> JobError:
    """Return the error for a finding in a run with steps of ``batch`` samples."""
    one, other = f"{finding.one:.6g}", f"{finding.other:.6g}"
    places = " and ".join(finding.places)
    match finding.cause:
        case Cause.CALLS_DO_NOT_REPEAT:
            cause = f"two calls of loss with the same samples, weights and random numbers gave {one} and {other}"
            return JobError(f"calls do not repeat: {cause}", hint=_REPEAT_HINT)
        case Cause.PARTS_DO_NOT_ADD_UP:
            what = f"a part of them can't be computed alone ({finding.name})" if finding.name else ""
            what = what or f"the loss of some samples is {one}, and that of their parts together {other}"
            unit = finding.unit or min(units.BATCH_STATISTICS, batch)
            return JobError(
                f"parts do not add up: {what}: the loss depends on which samples are computed together",
                hint=f"set unit={unit}: that many samples are always computed together on one device, as in plain torch"
                f" with accumulated gradients (unit={batch} is the whole batch); or return (sum, weight) if loss is a"
                " mean over something else than samples (tokens, boxes, pixels under a mask), a list of these if it has"
                " several terms",
            )
        case Cause.STATE_DOES_NOT_ADD_UP:
            cause = f"a batch leaves other values in {finding.name} than its parts do on average (a queue of samples?)"
            return JobError(f"state does not add up: {cause}", hint=f"set unit={batch}: one device computes a batch")
        case Cause.WEIGHTS_CHANGE:
            cause = f"forward or loss itself changes the trained parameter {finding.name}, and the change would be lost"
            return JobError(cause, hint=_WEIGHTS_HINT)
        case Cause.MACHINES_DIFFER:
            cause = f"{places} compute different numbers for the same samples and weights (loss {one} and {other})"
            return JobError(cause, hint=_MACHINE_HINT)
        case Cause.DATA_DIFFERS:
            return JobError(f"{places} read different samples for the same indices", hint=_DATA_HINT)


def with_unit(config: TrainingConfig, *, batch_statistics: bool, room: int | None = None) -> TrainingConfig:
    """Return ``config`` with a unit where it needs one and has none.

    Args:
        batch_statistics: the model normalises by the statistics of the samples that are together.
        room: most samples that the user lets a device take at a time.
    """
    if config.unit or not (batch_statistics or config.deterministic):
        return config
    unit = units.default_unit(config.batch_size, least=units.BATCH_STATISTICS if batch_statistics else units.LEAST)
    return dataclasses.replace(config, unit=min(unit, room or unit))


def is_refused(finding: Finding, config: TrainingConfig) -> bool:
    """Return True unless ``config`` already says how the loss is to be taken."""
    if finding.cause is Cause.PARTS_DO_NOT_ADD_UP:
        return config.loss_reduction == "auto"
    return finding.cause is not Cause.STATE_DOES_NOT_ADD_UP or config.unit < config.batch_size


def refuse(audit: Audit, config: TrainingConfig) -> None:
    """Raise the JobError of what the audit found, if it is to be refused."""
    if audit.finding is not None and is_refused(audit.finding, config):
        raise refusal(audit.finding, config.batch_size)


def with_reduction(config: TrainingConfig, audit: Audit | None) -> TrainingConfig:
    """Return ``config`` with the way in which the loss reduces its samples."""
    if config.loss_reduction != "auto":
        return config
    summed = audit is not None and audit.summed
    return dataclasses.replace(config, loss_reduction="sum" if summed else "mean")


def about(config: TrainingConfig, audit: Audit | None, *, batch_statistics: bool = False) -> tuple[str, ...]:
    """Return what the plan says of the loss."""
    said = []
    if audit is None or audit.unchecked:
        said.append("parts of a batch were not compared with the whole: loss_reduction and unit say how loss is taken")
    elif not audit.by_sample:
        said.append("parts of a batch were compared in evaluation mode: some random numbers are not drawn by sample")
    if config.loss_reduction == "sum":
        said.append("the loss adds its samples up: gradients are added up, not averaged")
    if config.unit >= config.batch_size:
        said.append("unit=batch_size: each step's batch is undivided, and one device computes it")
    elif config.unit:
        why = "batch normalisation" if batch_statistics else "all that depends on which samples are together"
        said.append(
            f"unit={config.unit}: {why} sees groups of {config.unit} samples, as in plain torch with gradients"
            " accumulated over them; running statistics are averaged by samples"
        )
    if config.deterministic:
        said.append("deterministic: each unit's gradient travels by itself, and they are added up in order")
    return tuple(said)


def kinds_apart(config: TrainingConfig, devices: Iterable[str]) -> str:
    """Return a notice where ``deterministic`` holds for each device, but not for all of them; "" where it holds."""
    kinds = sorted({device.partition(":")[0] for device in devices})
    if not config.deterministic or len(kinds) < 2:
        return ""
    return (
        f"deterministic=true gives the same bits on devices of one kind; {' and '.join(kinds)} round and draw random"
        " numbers each in its own way: other shares, or a lost worker, give other weights"
    )
