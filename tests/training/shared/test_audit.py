"""Comparisons of sketches, and what follows from them."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.planning import units
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared.audit import (
    NO_NOISE,
    NUMBERS,
    Audit,
    Cause,
    Finding,
    Noise,
    Sketch,
    about,
    compared,
    differ,
    is_due,
    refuse,
    same_batch,
    state_differs,
    total,
    with_reduction,
    with_unit,
)

SAMPLES, PARAMETERS = 12, 5
CONFIG = TrainingConfig(batch_size=64)


@dataclasses.dataclass(frozen=True)
class Job:
    """A loss that is a mean over samples, each with a weight: the gradient of each parameter, by sample."""

    losses: np.ndarray
    gradients: np.ndarray
    weights: np.ndarray

    def sketch(self, begin: int = 0, end: int = SAMPLES, factors: Any = 1.0) -> Sketch:
        """Of samples ``begin`` to ``end``; gradients of parameters are multiplied by ``factors``."""
        own = self.weights[begin:end]
        weight = float(own.sum())
        gradient = np.tensordot(own, self.gradients[begin:end], 1) / weight
        value = float(own @ self.losses[begin:end]) / weight
        factors = np.reshape(factors, (-1, 1))
        return Sketch(
            end - begin, value, weight, weight, gradient * factors, batch=self.losses[begin:end].mean(keepdims=True)
        )

    def audit(self, **more: Any) -> Audit:
        return Audit(np.arange(SAMPLES), self.sketch(), NO_NOISE, place="a", **more)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Gradients of parameters have sizes that are far apart, as those of layers."""
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    sizes = 10.0 ** np.array(draw(st.lists(st.integers(-1, 1), min_size=PARAMETERS, max_size=PARAMETERS)))
    common = numbers.normal(size=(1, PARAMETERS, NUMBERS))
    gradients = (common + numbers.normal(size=(SAMPLES, PARAMETERS, NUMBERS))) * sizes[:, None]
    weights = numbers.integers(1, 5, SAMPLES).astype(float) if draw(st.booleans()) else np.ones(SAMPLES)
    return Job(numbers.exponential(size=SAMPLES), gradients, weights)


@given(jobs(), st.lists(st.integers(1, SAMPLES - 1), unique=True))
def test_parts_of_a_mean_add_up_however_they_are_cut(job: Job, cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), SAMPLES]
    parts = [job.sketch(begin, end) for begin, end in pairwise(ends)]
    assert not differ([job.sketch()], parts, NO_NOISE)
    value, weight, _ = total(parts)
    assert value / weight == pytest.approx(job.sketch().value)


@given(jobs(), st.integers(0, PARAMETERS - 1), st.sampled_from([0.0, 0.5, 0.9, 1.1, -1.0]))
def test_one_parameter_with_a_wrong_gradient_is_found(job: Job, parameter: int, factor: float) -> None:
    wrong = job.sketch(factors=[factor if number == parameter else 1.0 for number in range(PARAMETERS)])
    assert differ([job.sketch()], [wrong], NO_NOISE)
    assert compared(job.audit(), [("b", wrong)]) == Finding(
        Cause.MACHINES_DIFFER, one=wrong.value, other=job.sketch().value, places=("b", "a")
    )


@given(jobs(), st.floats(-1.0, 1.0))
def test_rounding_is_no_difference_and_a_loss_that_is_a_bit_off_is_one(job: Job, part: float) -> None:
    whole = job.sketch()
    rounded = dataclasses.replace(whole, value=whole.value * (1 + 1e-6 * part), gradient=whole.gradient * (1 + 1e-6))
    assert not differ([whole], [rounded], NO_NOISE)
    assert differ([whole], [dataclasses.replace(whole, value=whole.value * 1.001)], NO_NOISE)
    assert not differ([whole], [dataclasses.replace(whole, value=float("nan"))], NO_NOISE)


@given(jobs())
def test_what_the_last_bits_of_the_weights_change_is_no_difference(job: Job) -> None:
    whole = job.sketch()
    chaotic = dataclasses.replace(whole, value=whole.value * 1.01, gradient=whole.gradient * 1.1)
    assert differ([whole], [chaotic], NO_NOISE)
    assert not differ([whole], [chaotic], Noise.between(whole, chaotic))


def test_sums_are_added_and_another_weight_is_a_difference() -> None:
    ones = np.ones((1, NUMBERS))
    whole, part = Sketch(4, 8.0, 4, 4, 4 * ones), Sketch(2, 4.0, 2, 2, 2 * ones)
    assert differ([whole], [part, part], NO_NOISE)
    assert not differ([whole], [part, part], NO_NOISE, summed=True)
    assert differ([whole], [dataclasses.replace(whole, weight=5)], NO_NOISE)


@pytest.mark.parametrize(
    ("whole", "one", "other", "names"),
    [
        ([1.0, 2.0], [0.0, 2.0], [1.5, 2.0], ()),
        ([1.0, 2.0], [0.0, 2.0], [1.0, 2.0], ("mean",)),
        ([float("nan"), 1 / 3], [float("nan"), 0.2], [float("nan"), 0.4], ()),
        ([float("nan"), 1 / 3], [float("nan"), 0.2], [float("nan"), 0.3], ("mean",)),
        ([float("-inf"), 1 / 3], [float("-inf"), 0.2], [float("-inf"), 0.3], ("mean",)),
        ([3], [1], [3], ()),
        ([3], [1], [2], ("mean",)),
    ],
)
def test_state_is_the_mean_by_samples_and_of_whole_numbers_the_largest(
    whole: list[float], one: list[float], other: list[float], names: tuple[str, ...]
) -> None:
    def sketch(samples: int, state: list[float]) -> Sketch:
        return Sketch(samples, 1.0, samples, samples, np.zeros((0, NUMBERS)), {"mean": np.array(state)})

    parts = [sketch(2, one), sketch(4, other)]
    assert state_differs(sketch(6, whole), parts) == names
    assert state_differs(sketch(6, whole), [dataclasses.replace(parts[0], state={}), parts[1]]) == ("mean",)


@given(jobs())
def test_another_batch_is_told_before_what_follows_from_it(job: Job) -> None:
    whole = job.sketch()
    other = dataclasses.replace(job.sketch(factors=0.5), batch=whole.batch + 0.1)
    assert not same_batch(whole, other)
    finding = compared(job.audit(), [("b", whole), ("c", other)])
    assert finding is not None
    assert (finding.cause, finding.places) == (Cause.DATA_DIFFERS, ("c", "a"))
    assert compared(job.audit(), [("b", whole)]) is None
    assert compared(job.audit(), [("b", job.sketch(0, 3))]) is None, "it had no room for as many"


@given(jobs())
def test_a_coarse_device_may_differ_by_more(job: Job) -> None:
    coarse = dataclasses.replace(job.sketch(factors=1.005), coarse=20.0)
    assert compared(job.audit(), [("b", coarse)]) is None
    assert compared(job.audit(), [("b", dataclasses.replace(coarse, coarse=1.0))]) is not None


def audited(cause: Cause, unit: int = 0) -> Audit:
    sketch = Sketch(SAMPLES, 1.0, SAMPLES, SAMPLES, np.zeros((1, NUMBERS)))
    return Audit(np.arange(SAMPLES), sketch, NO_NOISE, Finding(cause, name="x", places=("a", "b"), unit=unit))


@pytest.mark.parametrize("cause", Cause)
def test_what_was_found_is_refused_with_what_to_do(cause: Cause) -> None:
    with pytest.raises(JobError) as error:
        refuse(audited(cause), CONFIG)
    assert error.value.hint


@pytest.mark.parametrize(("found", "offered"), [(2, 2), (0, units.BATCH_STATISTICS)])
def test_a_refusal_offers_a_unit(found: int, offered: int) -> None:
    with pytest.raises(JobError) as error:
        refuse(audited(Cause.PARTS_DO_NOT_ADD_UP, found), CONFIG)
    assert f"set unit={offered}:" in error.value.hint


@pytest.mark.parametrize(
    ("cause", "settings"),
    [
        (Cause.PARTS_DO_NOT_ADD_UP, {"loss_reduction": "mean"}),
        (Cause.PARTS_DO_NOT_ADD_UP, {"loss_reduction": "sum"}),
        (Cause.STATE_DOES_NOT_ADD_UP, {"unit": 64}),
    ],
)
def test_what_the_user_has_said_is_not_refused(cause: Cause, settings: dict[str, Any]) -> None:
    refuse(audited(cause), dataclasses.replace(CONFIG, **settings))


def test_a_reduction_is_what_was_found_or_said() -> None:
    plain = dataclasses.replace(audited(Cause.DATA_DIFFERS), finding=None)
    summed = dataclasses.replace(plain, summed=True)
    said = dataclasses.replace(CONFIG, loss_reduction="mean")
    found = [with_reduction(*each).loss_reduction for each in ((CONFIG, None), (CONFIG, plain), (CONFIG, summed))]
    assert found == ["mean", "mean", "sum"]
    assert with_reduction(said, summed) == said
    assert any("adds its samples up" in each for each in about(with_reduction(CONFIG, summed), summed))


@given(st.integers(1, 5000), st.booleans(), st.booleans(), st.none() | st.integers(1, 100))
def test_a_unit_depends_on_the_batch_and_fits_into_what_the_user_allows(
    batch: int, statistics: bool, deterministic: bool, room: int | None
) -> None:
    config = TrainingConfig(batch_size=batch, deterministic=deterministic)
    unit = with_unit(config, batch_statistics=statistics, room=room).unit
    assert (unit > 0) is (statistics or deterministic)
    assert unit <= min(batch, room or batch)
    if statistics and room is None:
        assert unit >= min(batch, units.BATCH_STATISTICS)
    if unit and room is None:
        assert len(units.bounds(batch, unit)) - 1 <= units.UNITS
    said = dataclasses.replace(config, unit=3)
    assert with_unit(said, batch_statistics=statistics, room=room) == said


def test_audits_become_rare() -> None:
    assert [number for number in range(1, 200) if is_due(number)] == [1, 2, 4, 8, 16, 32, 64, 128]
