"""Compares what the processes of a run make of the same job: first samples, loss, and what modules hold. Pure.

Workers read data, packages and the environment of their own hosts, and nothing that they exchange later would show that
these differ. So each of them looks at the same samples before its first slice, with the first weights. What one process
can't tell, or has otherwise each time, is missing here and not compared. Numbers that a device or another version of a
library computes a little differently are the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remote_agent.training.errors import JobError

Held = Mapping[str, tuple[int, float, float]]
"""Of tensors by name: how many numbers, their sum and their sum of squares."""

UNLIKE = 0.05
"""Of random numbers with other seeds the sums are farther apart, as a part of the root of the sum of squares."""

SOME = 64
"""Numbers of a tensor that are kept, from all over."""

ROUNDING = 5e-3
"""The most that a number of a small tensor may differ, as a part of itself: more than bfloat16 rounds."""

CONTENT = 0.15
"""The most that a large tensor's numbers may differ, as a part of how far they are from their mean. Decoders of images
and ways to resize them differ by a few hundredths, two samples by half and more."""

SAMPLES_HINT = (
    "give each host the same files and versions of packages, and sort what os.listdir and glob give; or leave the host"
    " out of the run. A dataset whose samples are other ones on each host on purpose says so: by_host = True"
)


LOSS_HINT = (
    "let model and loss depend on samples, weights and config alone: what they read of environment, files and packages"
    " has to be the same on each host. Random numbers of the model's own belong into a persistent buffer"
)

HELD_HINT = (
    "make it a buffer (register_buffer): all workers get the same one; or draw it from torch's, numpy's or"
    " Python's global generators, which are seeded before create_model"
)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What is kept of one tensor, or number, of a sample.

    Attributes:
        some: of its numbers, at most :data:`SOME`.
        exact: a digest of whole numbers that have to be the same to the last one (labels, tokens); empty: of others.
    """

    shape: tuple[int, ...]
    some: tuple[float, ...]
    exact: str = ""


@dataclass(frozen=True, kw_only=True)
class FirstLoss:
    """The loss of the first samples with the first weights; weights that are alike all over are changed a little.

    Attributes:
        values: of one group of samples after the other.
        allowed: the most that another device may compute otherwise.
        evaluating: in evaluation mode.
        drawn: random numbers of torch's were drawn, the same each time: another kind of device has others.
        kind: of the device.
    """

    values: tuple[float, ...]
    allowed: float
    evaluating: bool = True
    drawn: bool = False
    kind: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class JobFingerprint:
    """What one process makes of the job.

    Attributes:
        held: of tensors and floats that modules hold beside their parameters and buffers.
        samples: the first samples' numbers, by where they are; without those that are others when taken again.
        loss: theirs; None: not known, or random.
    """

    held: Held = field(default_factory=dict)
    samples: Mapping[str, Numbers] = field(default_factory=dict)
    loss: FirstLoss | None = None

    def without_loss(self) -> JobFingerprint:
        """The same for processes that have other weights at first."""
        return dataclasses.replace(self, loss=None)


Named = tuple[str, JobFingerprint]
"""A worker's name (its host's, a slash and its device's), and what it makes of the job."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What is not the same in two processes, the value in each, and what the user should do."""

    what: str
    values: tuple[str, str]
    hint: str


def refuse(workers: Sequence[Named], head: JobFingerprint) -> None:
    """Refuse to train where workers do not make the same of the job; ``head`` is what the coordinator makes of it.

    Raises:
        JobError: with the host of the worker that is unlike the most others.
    """
    agreeing = [sum(_difference(own, other) is None for _, other in workers) for _, own in workers]
    if not agreeing:
        return
    usual = workers[agreeing.index(max(agreeing))]
    for worker in workers:
        refuse_one(worker, [usual])
    # What is a number alone may be the machine's: its cores, its clock.
    tensors = {name: held for name, held in head.held.items() if held[0] > 1}
    refuse_one(usual, [("the coordinator's process", JobFingerprint(held=tensors))])


def refuse_one(worker: Named, others: Sequence[Named]) -> None:
    """Refuse a worker that does not make the same of the job as the others, which do among themselves.

    Raises:
        JobError: with its host.
    """
    for name, other in others:
        found = _difference(worker[1], other)
        if found is not None:
            own, theirs = found.values
            raise JobError(
                f"{worker[0]} and {name} would not train the same: {found.what} is {own} on {worker[0]}, and {theirs}"
                f" on {name}",
                hint=found.hint,
                host=worker[0].partition("/")[0],
            )


def _difference(one: JobFingerprint, other: JobFingerprint) -> Difference | None:
    for name, numbers in one.samples.items():
        if name in other.samples and not _is_same(numbers, other.samples[name]):
            values = (_shown(numbers), _shown(other.samples[name]))
            return Difference(what=name, values=values, hint=SAMPLES_HINT)
    for name, held in one.held.items():
        if name in other.held and not _is_held_alike(held, other.held[name]):
            values = (_of_held(held), _of_held(other.held[name]))
            return Difference(what=name, values=values, hint=HELD_HINT)
    return _of_losses(one, other)


def _of_losses(one: JobFingerprint, other: JobFingerprint) -> Difference | None:
    if one.loss is None or other.loss is None or one.loss.evaluating != other.loss.evaluating:
        return None
    if one.loss.kind != other.loss.kind and (one.loss.drawn or other.loss.drawn):
        return None
    allowed = max(one.loss.allowed, other.loss.allowed)
    apart = [
        (own, theirs)
        for own, theirs in zip(one.loss.values, other.loss.values, strict=False)
        if abs(own - theirs) > allowed
    ]
    if not apart:
        return None
    what = "the loss of the same samples with the first weights"
    return Difference(what=what, values=(f"{apart[0][0]:.6g}", f"{apart[0][1]:.6g}"), hint=LOSS_HINT)


def _is_same(one: Numbers, other: Numbers) -> bool:
    if one.shape != other.shape or len(one.some) != len(other.some):
        return False
    if one.exact and other.exact:
        return one.exact == other.exact
    pairs = [
        (own, theirs)
        for own, theirs in zip(one.some, other.some, strict=True)
        if math.isfinite(own) and math.isfinite(theirs)
    ]
    if not pairs:
        return True
    mean = sum(own + theirs for own, theirs in pairs) / (2 * len(pairs))
    size = sum(abs(own) + abs(theirs) for own, theirs in pairs)
    if math.prod(one.shape) <= SOME:
        small = 0.1 * ROUNDING * size / (2 * len(pairs))
        return all(abs(own - theirs) <= ROUNDING * max(abs(own), abs(theirs)) + small for own, theirs in pairs)
    around = sum(abs(own - mean) + abs(theirs - mean) for own, theirs in pairs) + 0.02 * size
    return sum(abs(own - theirs) for own, theirs in pairs) <= CONTENT * around


def _is_held_alike(one: tuple[int, float, float], other: tuple[int, float, float]) -> bool:
    """Whether two tensors differ by no more than machines compute differently."""
    (count, total, squares), (count_, total_, squares_) = one, other
    near = abs(total - total_) <= UNLIKE * math.sqrt(squares) + 1e-9
    return count == count_ and near and math.isclose(squares, squares_, rel_tol=UNLIKE, abs_tol=1e-9)


def _shown(numbers: Numbers) -> str:
    first = ", ".join(f"{each:.6g}" for each in numbers.some[:4])
    if not numbers.shape:
        return first
    return f"[{first}{', ...' if math.prod(numbers.shape) > 4 else ''}] of shape {list(numbers.shape)}"


def _of_held(held: tuple[int, float, float]) -> str:
    count, total, _ = held
    return f"{total:.6g}" if count == 1 else f"{count:,} numbers with the sum {total:.6g}"
