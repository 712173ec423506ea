"""Checks during a run whether the loss of a slice equals what the losses of its halves give.

The measurement (:mod:`.additivity`) sees some samples, and the first weights. Where padding is rare, or a term of the
loss begins later, it sees nothing; the weights would be wrong without a word. So now and then a worker computes the
loss of a slice once more, without backward: whole, and in two halves. Where these differ it computes them some more
times. A difference that is there each time ends the run. So does state, such as a queue, that is not for the whole
what it is on average for the halves, and which may begin to change after the measurement. A loss that changes from
one time to the next, though the model and the random numbers are the same, is told to the user: such state is another
one on each worker. Trained parameters and state outside of the model that the code begins to change end the run, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.findings import APART, CHANGES_HINT, LATER_HINT
from remote_agent.training.shared.messages import Slice
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code import seeding
from remote_agent.training.user_code.losses import PartLoss
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device import held_values
from remote_agent.training.worker.device.comparing import CLEAR, FINE, Seen, follows, is_sum, mean
from remote_agent.training.worker.device.untouched import rounded, untouched

NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)  # noqa: SLF001 - their common bases
"""Modules whose running statistics are averaged, as under data parallel training."""


def uses_batch_statistics(model: nn.Module) -> bool:
    """Whether the model normalises by the statistics of the samples that are together."""
    batch_norm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - see NORMS
    return any(
        isinstance(module, batch_norm) and (module.training or not module.track_running_stats)
        for module in model.modules()
    )


def with_running_statistics(model: nn.Module) -> bool:
    """Have those layers use their running statistics, in training, too; False: one of them has none."""
    batch_norm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - see NORMS
    layers = [each for each in model.modules() if isinstance(each, batch_norm)]
    for each in layers:
        each.training = False
    return all(each.track_running_stats for each in layers)


def running_statistics(model: nn.Module) -> frozenset[str]:
    """Names of the buffers that belong to normalisation layers."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, NORMS)
        for name, _ in module.named_buffers(recurse=False)
    )


class Computes(Protocol):
    """What computes slices; see :class:`~remote_agent.training.worker.device.compute.SliceComputer`."""

    most: int | None
    summed: bool
    changing: Sequence[str]
    seed: int

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def probe(self, indices: Indices, seed: int, begin: int) -> PartLoss:
        """The loss of these samples together."""


FIRST, EVERY = 8, 50
"""Slices of a worker that are all looked at; from then on those whose number is a power of two, and each of so many.
One takes two thirds of what computing the slice takes: in the long run a hundredth of the time."""

DRAWS = 3
"""Times that a loss is computed with other random numbers, where it is not what its halves say."""

CERTAIN = 3.0
"""A difference is no accident from this many times the range of what was computed several times."""

SOME = 1000
"""Numbers of each tensor that are looked at, at most: whether the model's code changes it, and how."""

STATE = "{name} is not trained, and what the code makes of it for a batch is not the mean over its parts (a queue?)"
"""Of a tensor of the model's state."""

STATE_HINT = (
    "something outside of the model's state changes it (a counter? a generator of its own?), and each worker has its"
    " own, so what is trained may not be what plain torch trains: keep such state in a buffer of the model"
    " (register_buffer)"
)


def is_due(number: int) -> bool:
    """Whether a worker's slice number ``number``, from 1, is looked at."""
    return number <= FIRST or number & (number - 1) == 0 or number % EVERY == 0


class LossWatch:
    """Looks at the slices of one worker.

    Args:
        evaluating: the loss is random in training mode: it is compared in evaluation mode.
        tolerance: the most that it may differ, as a part of what it is or was in the measurement, if that was more.
        scale: what it was in the measurement.
        owner: the job's object, whose attributes the loss can reach.
        fine: the user is told of a loss that differs by more than this part, if rounding does not do that.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        evaluating: bool,
        tolerance: float,
        scale: float,
        owner: object = None,
        fine: float = FINE,
    ) -> None:
        self._model, self._evaluating, self._owner = model, evaluating, owner
        self._tolerance, self._scale, self._fine = tolerance, scale, fine
        self._slices = 0
        self._before: dict[str, Tensor] = {}
        self._held: dict[str, object] = {}
        self._ended = False
        self._notice = ""
        self._told = False

    def after(self, slices: int) -> None:
        """Go on as after so many slices: the run has made them, with the same code."""
        self._slices = slices

    def take_notice(self) -> str:
        """What the user should know of this worker's loss, once; empty: nothing."""
        taken, self._notice = self._notice, ""
        return taken

    def begin(self) -> None:
        """Before a slice is computed."""
        is_next = is_due(self._slices + 1) and not self._ended
        self._before = self._weights() if is_next else {}
        self._held = self._tensors() if is_next else {}

    def look(self, computer: Computes, at: str, own: Slice) -> None:
        """Look at a slice, which is called ``at`` in messages, if it is its turn.

        Raises:
            JobError: its loss is not the mean (or, of a loss that adds up, the sum) of its halves' losses, or the code
                changes trained parameters, or state outside of the model.
        """
        self._slices += 1
        count = min(len(own.indices), computer.most or len(own.indices))
        if self._ended or count < 2 or not is_due(self._slices):
            return
        named = f"{count} samples ({', '.join(map(str, own.indices[:3].tolist()))} ...)"
        again, drawn, stray = (0.0, 0.0), list[tuple[float, float]](), ""
        try:
            hidden = self._hidden(computer, own, count)
            seen = self._seen(computer, own, count)
            stray, first = self._stray(computer, own, count, seen), _losses(computer, seen)
            if not (fits := self._fits(first)):
                again = _losses(computer, self._seen(computer, own, count))
                drawn = [_losses(computer, self._seen(computer, own, count, seed)) for seed in range(DRAWS)]
            elif not self._told and (apart := self._apart(computer, own, count, first)):
                self._tell(APART.format(what=f"the loss of {named}", apart=apart))
        except Exception as error:  # noqa: BLE001 - the slice itself was computed
            self._ended = True
            self._tell(f"the loss of {named} can't be computed a second time ({type(error).__name__}: {error})")
            return
        moved = [name for name, now in self._weights().items() if not torch.equal(now, self._before.get(name, now))]
        if moved:
            cause = f"{at}: forward or loss itself changes the trained parameter {moved[0]}, and such a change is lost"
            raise JobError(cause, hint=CHANGES_HINT)
        if hidden:
            raise JobError(f"{at}: {hidden} changes with every call of loss", hint=STATE_HINT)
        if stray:
            raise JobError(f"{at}: {STATE.format(name=stray)}", hint=LATER_HINT)
        if fits:
            return
        whole, parts = first
        # Without the first as well: the code may have begun with something else between its calls.
        differ = self._differ([first, again, *drawn]) or self._differ([again, *drawn])
        if differ and not self._gradients_add_up(computer, own, count):
            kind = "sum" if computer.summed else "mean"
            raise JobError(
                f"{at}: the loss of {named} is {whole:.6g}, and the {kind} of its halves' losses {parts:.6g}: it"
                " depends on which samples are together, or it is a mean over something else than samples (padding"
                " without a mask? a mean over what counts?)",
                hint=LATER_HINT,
            )
        changed = next(((a, b) for a, b in zip(first, again, strict=True) if not self._fits((a, b))), None)
        if changed is not None:
            self._ended = not any(self._fits(each) for each in (again, *drawn))
            self._tell(f"the loss of {named} is {changed[0]:.6g}, and {changed[1]:.6g} the next time: {STATE_HINT}")
        elif not self._evaluating:  # it became random: from now on it is compared without that
            self._evaluating = True
        elif not any(self._fits(each) for each in drawn):
            self._ended = True
            self._tell("the loss became random in evaluation mode, too")

    def _apart(self, computer: Computes, own: Slice, count: int, seen: tuple[float, float]) -> float:
        """How far a loss that fits is from its halves', as a part of it; 0: as far as rounding and chance do."""
        off, size = abs(seen[0] - seen[1]), max(self._scale, *map(abs, seen))
        if not off > self._fine * size:
            return 0.0
        with rounded(self._model, in_place=False):
            other = _losses(computer, self._seen(computer, own, count, 0))
        noise = max(abs(one - again) for one, again in zip(seen, other, strict=True))
        return off / size if off > CLEAR * noise else 0.0

    def _hidden(self, computer: Computes, own: Slice, count: int) -> str:
        """Which tensor outside of the model's state changed with the slice, and changes when it is computed again.

        A call with the same samples and random numbers leaves the same again in what is only kept for the user's log.
        """
        if not held_values.changed(self._held, self._tensors()):
            return ""
        seen, given = [], []
        for _ in range(2):
            with untouched(self._model, computer.device, computer.changing):
                given.append(float(computer.probe(own.indices[:count], computer.seed, own.begin).value.detach()))
            seen.append(self._tensors())
        name = held_values.changed(*seen)
        return "" if name and held_values.are_figures(*seen) and self._fits((given[0], given[1])) else name

    def _tensors(self) -> dict[str, object]:
        """Of tensors outside of the model's state, what tells whether they change; numbers may count for a log."""
        held = held_values.reached(self._owner, self._model)
        return {name: value for name, value in held.items() if isinstance(value, tuple)}

    def _weights(self) -> dict[str, Tensor]:
        """Some numbers of each trained parameter, as they are now."""
        return {name: flat.some(each, SOME).clone() for name, each in flat.trained(self._model).items()}

    def _tell(self, text: str) -> None:
        if self._ended:
            text += "; whether the loss of a slice is what its parts' losses say is not checked here any more"
        if not self._told:
            self._told, self._notice = True, text

    def _fits(self, pair: tuple[float, float]) -> bool:
        """Whether two losses are the same, as far as can be told."""
        one, other = pair
        if not (math.isfinite(one) and math.isfinite(other)):
            return True
        return abs(one - other) <= self._most(one, other)

    def _most(self, *losses: float) -> float:
        return self._tolerance * max(self._scale, *map(abs, losses)) + 1e-7

    def _differ(self, seen: Sequence[tuple[float, float]]) -> bool:
        """Whether losses of the whole and of its halves differ by more than either of them from time to time."""
        wholes, parts = [whole for whole, _ in seen], [part for _, part in seen]
        apart = max(min(wholes) - max(parts), min(parts) - max(wholes))
        spread = max(max(wholes) - min(wholes), max(parts) - min(parts))
        return apart > max(self._most(*wholes, *parts), CERTAIN * spread)

    def _gradients_add_up(self, computer: Computes, own: Slice, count: int) -> bool:
        """Whether the gradient of the first ``count`` samples of a slice is the sum of their halves' gradients.

        A loss may be nothing but rounding, where parts of it cancel: a critic's, that of a policy's advantages.
        """
        parameters, middle, found = list(flat.trained(self._model).values()), count // 2, []
        try:
            for begin, end in ((0, count), (0, middle), (middle, count)):
                with untouched(self._model, computer.device, computer.changing):
                    if self._evaluating:
                        self._model.eval()
                    part = computer.probe(own.indices[begin:end], computer.seed, own.begin + begin)
                    total = part.value * (1.0 if computer.summed else part.factor)
                    given: Sequence[Tensor | None] = torch.autograd.grad(total, parameters, allow_unused=True)
                numbers = [
                    flat.some(torch.zeros_like(each) if its is None else its, SOME)
                    for each, its in zip(parameters, given, strict=True)
                ]
                found.append([each.cpu().to(torch.complex128) for each in numbers])
        except Exception:  # noqa: BLE001 - whatever the job's code raises; the losses differ in any case
            return False
        return is_sum(*found)

    def _seen(self, computer: Computes, own: Slice, count: int, seed: int | None = None) -> list[Seen]:
        """What the first ``count`` samples of a slice give together, and what each half of them gives.

        Each begins with the same random numbers: those that come next, or those of ``seed``.
        """
        middle, found = count // 2, []
        for begin, end in ((0, count), (0, middle), (middle, count)):
            with untouched(self._model, computer.device, computer.changing):
                if self._evaluating:
                    self._model.eval()
                if seed is not None:
                    seeding.seed_all(seed)
                    devices.seed(computer.device, seed)
                part = computer.probe(own.indices[begin:end], computer.seed, own.begin + begin)
                state = {
                    name: flat.some(each, SOME).clone()
                    for name, each in flat.buffers(self._model, computer.changing).items()
                }
                found.append(Seen(float(part.value.detach()) * part.factor, part.weight, end - begin, state))
        return found

    def _stray(self, computer: Computes, own: Slice, count: int, seen: Sequence[Seen]) -> str:
        """Which of the model's state is not the mean over the halves (of whole numbers the largest); empty: none is.

        State that depends on random numbers is no mean by chance. In evaluation mode such code often does nothing.
        """
        if self._evaluating:
            return ""
        whole, left, right = seen
        names = [
            name
            for name in sorted(whole.state.keys() - running_statistics(self._model))
            if not follows(
                whole.state[name], left.state[name], right.state[name], left.samples, right.samples, self._tolerance
            )
        ]
        if not names:
            return ""
        other = self._seen(computer, own, count, 0)[0].state
        return next((name for name in names if torch.equal(whole.state[name], other[name])), "")


def _losses(computer: Computes, seen: Sequence[Seen]) -> tuple[float, float]:
    """The loss of the whole, and the mean (or sum) of the halves' losses."""
    if computer.summed:
        whole, left, right = (each.total / each.samples for each in seen)
        return whole, left + right
    return seen[0].mean, mean(*seen[1:])
