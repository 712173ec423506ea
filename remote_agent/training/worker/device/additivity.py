"""Checks before the first step whether the parts of a batch give what the whole batch gives.

The loss of some samples is compared with that of two parts of them, and so is its gradient: it is a mean by weights, a
sum, or it depends on which samples are together (a contrastive loss, padding without a mask). So is what the model's
code makes of its own state (buffers, frozen parameters): the mean over the parts has to be what the whole gives, as for
a teacher that follows the trained weights; a queue of samples is not. What the code keeps outside of the model and
changes in every call stays on its worker, so that is looked for as well.

Dropout makes a loss random: then it is compared in evaluation mode. So it is with batch normalisation, whose statistics
are those of a unit (:mod:`~remote_agent.planning.units`). What is random even then is compared on average.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.findings import Findings
from remote_agent.training.shared.flat import HALVES
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code.user_errors import is_out_of_memory
from remote_agent.training.worker.device import backend, outside
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device.comparing import (
    FINE,
    Seen,
    adds_up,
    apart,
    follows,
    is_same,
    is_zero,
    mean,
    same_numbers,
    spread,
)
from remote_agent.training.worker.device.compute import SliceComputer, seed_everything
from remote_agent.training.worker.device.first_call import Held
from remote_agent.training.worker.device.outside import (
    BACKWARD,
    DIFFERS,
    MOVED,
    OF_TRAINING,
    RANDOM,
    TOGETHER,
    UNSTEADY,
)
from remote_agent.training.worker.device.row_noise import RowNoise
from remote_agent.training.worker.device.untouched import modes_kept, rounded
from remote_agent.training.worker.device.watching import (
    STATE,
    running_statistics,
    uses_batch_statistics,
    with_running_statistics,
)

LOG = logging.getLogger(__name__)

SAMPLES = 12
"""Samples that are compared in several ways, at most; together with the parts a few small forward passes."""

GRADIENTS = 64
"""Numbers of each parameter's gradient that are compared, at most."""

DRAWS = 12
"""Times that a random loss is computed."""

HALF_LOSS_TOLERANCE, AUTOCAST_TOLERANCE = 5e-2, 5e-3
"""The most that a loss may differ, as a part of itself: with parameters in half precision; with the job's autocast."""


class Additivity:
    """Compares the loss of some samples with that of their parts; the model is as it was afterwards.

    Args:
        model: on its device, in training mode.
        owner: the job's object, whose attributes the loss can reach.
        samples: indices of those to take some of.
        state: buffers and frozen parameters by name.
        large: samples that are compared once more, as many as are computed together in training; 0: none.
        few: compare no more than these otherwise.
        gradients: compare them as well.
        made: what model and job held before the first call of the loss; None: not known.

    Attributes:
        evaluating: whether the loss was compared in evaluation mode; None: only on average, or not at all.
        tolerance: the most that it may differ, as a part of itself.
        fine: the user is told of more than this.
    """

    def __init__(
        self,
        model: nn.Module,
        computer: SliceComputer,
        owner: object,
        samples: Indices,
        state: Mapping[str, Tensor],
        large: int = 0,
        few: int = SAMPLES,
        gradients: bool = True,
        made: Held | None = None,
    ) -> None:
        self._model, self._computer, self._owner, self._state, self._made = model, computer, owner, state, made
        self._first = {name: tensor.detach().clone() for name, tensor in state.items()}
        self._anchored = flat.BoundBuffers(model)
        # At least two, to compare them together with each alone, also where training computes one at a time.
        count = min(SAMPLES, few, len(samples), max(2, computer.most or SAMPLES))
        self._indices = spread(samples, count)
        self._large = spread(samples, min(large, len(samples), computer.most or large)) if large else samples[:0]
        self._moved, self._gradients = frozenset[str](), gradients and computer.most != 1
        self._statistics = uses_batch_statistics(model)
        halved = any(parameter.dtype in HALVES for parameter in model.parameters())
        self.tolerance = HALF_LOSS_TOLERANCE if halved else backend.of(computer.device).tolerance
        self._coarse = self.tolerance / backend.CPU.tolerance
        self.fine = FINE * self._coarse**2
        self._apart = 0.0
        self._outside = Findings()
        self._noise: RowNoise | None = None
        self._known: tuple[bool, bool] | None = None
        self.evaluating: bool | None = None
        self.scale = 0.0

    def check(self) -> Findings:
        """Compare.

        Raises:
            JobError: the loss gives something that is none; see
                :func:`~remote_agent.training.user_code.losses.of_part`.
        """
        try:
            if self._computer.most == 1:  # samples of unlike shapes may be such
                self._computer.fetched(self._indices, 0, 0)
        except Exception:  # noqa: BLE001 - whatever a collate_fn raises
            self._indices = self._indices[:1]
        while len(self._indices) > 1:
            try:
                return self._checked()
            except Exception as error:
                full = is_out_of_memory(error)  # without autocast a sample takes more than in training
                if not full and (isinstance(error, JobError) or self._computer.most != 1):
                    raise
                self._indices = self._indices[::2] if full else self._indices[:1]
            nn.Module.zero_grad(self._model)
            self._restore()
            devices.release_memory(self._computer.device)
        return Findings(batch_statistics=self._statistics, unchecked=True)

    def _checked(self) -> Findings:
        with torch.random.fork_rng(devices=[]):
            count = len(self._indices)
            nn.Module.zero_grad(self._model)
            one, other, self._outside = outside.look(
                self._owner, self._model, self._computer, self._indices, self._made, self._see
            )
            self._moved = frozenset(name for name, now in one.state.items() if not same_numbers(now, self._first[name]))
            state = self._about_state(one)
            if not is_same(one, other) and not self._statistics:
                self._known = self._by_rows()
                if self._known == (False, False):
                    return self._findings(False, False, one.unknown or TOGETHER, state)
            if self._statistics or not is_same(one, other):
                try:
                    with modes_kept(self._model):
                        self._model.eval()
                        seen = self._compared(self._see(0, count, 1), self._see(0, count, 2), state)
                except Exception:  # noqa: BLE001 - many a model's output has another form there, and the loss raises
                    return self._in_training(state)
                ways = None if seen.together or self._known else self._ways_in_training()
                is_apart = ways is not None and not ways[seen.summed]
                return dataclasses.replace(seen, together=OF_TRAINING) if is_apart else seen
            return self._compared(one, other, state)

    def _ways_in_training(self) -> tuple[bool, bool] | None:
        """Whether the whole is its parts' mean, and whether their sum, in training mode but for batch normalisation.

        None: some of that can't be left out.
        """
        count = len(self._indices)
        with modes_kept(self._model):
            if not with_running_statistics(self._model):
                return None
            one = self._see(0, count, 1)
            if not is_same(one, self._see(0, count, 2)):
                return (self._by_rows() if self._statistics else None) or self._on_average()
            splits = [(self._see(0, end, 1), self._see(end, count, 1)) for end in self._splits()]
            as_mean, as_sum = (all(self._fits(one, *each, as_mean=way) for each in splits) for way in (True, False))
            return as_mean, as_sum

    def _compared(self, one: Seen, other: Seen, state: str) -> Findings:
        """Compare in the present mode; the whole batch gives ``one``, and ``other`` with other random numbers."""
        count = len(self._indices)
        said = ""
        as_mean = as_sum = False
        if is_same(one, other):
            self.scale = abs(one.mean)
            splits = [(self._see(0, end, 1), self._see(end, count, 1)) for end in self._splits()]
            splits += self._of_odd_parts()
            as_mean = all(self._fits(one, *parts, as_mean=True) for parts in splits)
            as_sum = all(each.plain for parts in splits for each in parts) and all(
                self._fits(one, *parts, as_mean=False) for parts in splits
            )
            if as_mean or as_sum:
                self.evaluating = not self._model.training
                together = self._about_large(as_mean) or self._about_gradients(as_mean)
                return self._findings(as_mean, as_sum, one.unknown or together, state)
            other = self._see(0, count, 1, data_seed=1)
        if not is_same(one, other):
            as_mean, as_sum = self._known or self._on_average()
            steady = is_same(one, self._see(0, count, 1))
            said = "" if self._known and steady else RANDOM if steady else UNSTEADY
        together = one.unknown or ("" if as_mean or as_sum else TOGETHER)
        return self._findings(as_mean, as_sum, together, state, said)

    def _of_odd_parts(self) -> list[tuple[Seen, Seen]]:
        """One more cut, for a loss over pairs of neighbours; one that needs whole pairs ends the run by itself."""
        end = (count := len(self._indices)) // 2 | 1
        try:
            return [(self._see(0, end, 1), self._see(end, count, 1))] if end < count else []
        except Exception:  # noqa: BLE001 - whatever the loss raises
            return []

    def _about_large(self, as_mean: bool) -> str:
        """Whether as many samples as are computed together in training give what their halves give."""
        few, self._indices = self._indices, self._large
        try:
            if (count := len(self._large)) <= len(few):
                return ""
            whole, left, right = self._see(0, count, 1), self._see(0, count // 2, 1), self._see(count // 2, count, 1)
            fits = self._fits(whole, left, right, as_mean=as_mean)
            return "" if fits or not is_same(whole, self._see(0, count, 1)) else TOGETHER
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            devices.release_memory(self._computer.device)
            return ""
        finally:
            self._indices = few

    def _about_gradients(self, as_mean: bool) -> str:
        """Whether the gradient of the samples is the sum of their parts' gradients, as their loss is."""
        if not self._gradients:
            return ""
        count, end = len(self._indices), self._splits()[0]
        try:
            whole, left, right = (self._gradient(*part, as_mean) for part in ((0, count), (0, end), (end, count)))
            with rounded(self._model):
                again = self._gradient(0, count, as_mean, seed=2)
        except RuntimeError:
            if self._model.training:
                raise
            return ""  # cuDNN's recurrent layers have no backward in evaluation mode
        finally:
            nn.Module.zero_grad(self._model)
        self._apart = apart(whole, left, right, again, self._coarse)
        return "" if adds_up(whole, left, right, again, self._coarse) else BACKWARD

    def _gradient(self, begin: int, end: int, as_mean: bool, seed: int = 1) -> list[Tensor]:
        """Some numbers of each parameter's gradient of the sum over these samples."""
        nn.Module.zero_grad(self._model)
        self._restore()
        seed_everything(seed, self._computer.device)
        part = self._computer.probe(self._indices[begin:end], 0, begin)
        with torch.enable_grad():
            (part.value * (part.factor if as_mean else 1.0)).backward()  # type: ignore[no-untyped-call]
        self._restore()
        found = []
        for parameter in flat.trained(self._model).values():
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse:
                gradient = torch.zeros_like(parameter)
            numbers = gradient.detach().flatten()
            if numbers.is_complex():
                numbers = torch.view_as_real(numbers).flatten()
            found.append(numbers[:: max(1, len(numbers) // GRADIENTS)].cpu().double())
        return found

    def _in_training(self, state: str) -> Findings:
        """What can be said of a random loss that is none in evaluation mode."""
        ways = self._known or self._ways_in_training()
        as_mean, as_sum = ways or (True, False)
        about = "was checked in training mode only" if ways else "was not checked"
        note = f"the loss can't be computed in evaluation mode: what it is a mean over {about}"
        return self._findings(as_mean, as_sum, "" if as_mean or as_sum else TOGETHER, state, note)

    def _findings(self, as_mean: bool, as_sum: bool, together: str, state: str, note: str = "") -> Findings:
        """What was found, with what was found outside of the model, and another ``note``."""
        found = self._outside
        differs = DIFFERS if found.unsteady and note != UNSTEADY else ""
        own = self._moved - running_statistics(self._model)  # normalisation layers change theirs in any model
        if together == TOGETHER and own:
            together += MOVED.format(name=min(own))
        return dataclasses.replace(
            found,
            summed=as_sum and not as_mean,
            together=together,
            state=state,
            batch_statistics=self._statistics,
            moved=self._moved,
            apart=self._apart,
            notes=tuple(filter(None, (note, *found.notes, differs))),
        )

    def _splits(self) -> list[int]:
        """How many samples are in the first part."""
        count = len(self._indices)
        return sorted({max(1, count // 3), count // 2})

    def _fits(self, whole: Seen, left: Seen, right: Seen, *, as_mean: bool) -> bool:
        """Whether the whole is the parts' mean, or their sum."""
        if not as_mean:
            return self._close(whole.mean, left.mean + right.mean, whole.mean)
        if not math.isclose(left.weight + right.weight, whole.weight, rel_tol=self.tolerance, abs_tol=1e-9):
            return False
        return self._close(whole.mean, mean(left, right), whole.mean, left.mean, right.mean)

    def _close(self, one: float, other: float, *scale: float) -> bool:
        if not (math.isfinite(one) and math.isfinite(other)):
            return True  # a loss that is not finite is told of by the first step
        return abs(one - other) <= self.tolerance * max(map(abs, scale)) + 1e-7

    def _by_rows(self) -> tuple[bool, bool] | None:
        """Whether a random loss is a mean, and whether it is a sum, with the same random numbers for each sample.

        None: not all of its random numbers are known by samples.
        """
        count = len(self._indices)
        self._noise = noise = RowNoise(count, self._computer.device)
        try:
            one, again = self._see(0, count, 1), self._see(0, count, 1)
            splits = [(self._see(0, end, 1), self._see(end, count, 1)) for end in self._splits()]
        except Exception as error:  # noqa: BLE001 - not every operation can be carried out for other rows
            LOG.info("random numbers are not known by samples: %s", error)
            return None
        finally:
            self._noise = None
        if not noise.exact or not is_same(one, again):
            return None
        plain = all(each.plain for parts in splits for each in parts)
        as_mean = all(self._fits(one, *parts, as_mean=True) for parts in splits)
        return as_mean, plain and all(self._fits(one, *parts, as_mean=False) for parts in splits)

    def _on_average(self) -> tuple[bool, bool]:
        """Whether a random loss is a mean, and whether it is a sum."""
        end, count = self._splits()[0], len(self._indices)
        means, sums, plain = [], [], True
        for draw in range(0, 3 * DRAWS, 3):
            whole = self._see(0, count, draw, draw)
            left, right = self._see(0, end, draw + 1, draw + 1), self._see(end, count, draw + 2, draw + 2)
            plain &= left.plain
            means.append(whole.mean - mean(left, right))
            sums.append(whole.mean - left.mean - right.mean)
        return is_zero(means), plain and is_zero(sums)

    def _see(self, begin: int, end: int, seed: int, data_seed: int = 0) -> Seen:
        """The loss of some of the samples, from the state that the model had."""
        self._restore()
        seed_everything(seed, self._computer.device)
        samples = end - begin
        with self._noise.of(begin, end) if self._noise is not None else contextlib.nullcontext():
            part = self._computer.probe(self._indices[begin:end], data_seed, begin)
        self.tolerance = max(self.tolerance, AUTOCAST_TOLERANCE * part.halved)
        self._anchored.settle()
        state = {name: tensor.detach().clone() for name, tensor in self._state.items()}
        total = float(part.value.detach()) * part.factor
        self._restore()
        return Seen(total, part.weight, samples, state, part.is_mean_over(samples), part.unknown)

    @torch.no_grad()
    def _restore(self) -> None:
        self._anchored.settle()
        for name, tensor in self._state.items():
            tensor.copy_(self._first[name])

    def _about_state(self, whole: Seen) -> str:
        """Which of the model's state is not the mean over the parts (of whole numbers: the largest)."""
        exempt = running_statistics(self._model)
        changed = self._moved - exempt
        if not changed:
            return ""
        for name in sorted(changed):
            if self._state[name].is_complex():
                raise JobError(
                    f"the model's code changes {name}, whose numbers are complex, and such state is not averaged here",
                    hint="keep it as real numbers: torch.view_as_real(...)",
                )
        for end in self._splits():
            left, right = self._see(0, end, 1), self._see(end, len(self._indices), 1)
            for name in sorted(changed):
                parts = (left.state[name], right.state[name], left.samples, right.samples)
                if not follows(whole.state[name], *parts, self.tolerance):
                    return STATE.format(name=name)
        return ""
