"""What a batch gave beside what its parts gave. Pure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from remote_agent.training.worker.device.comparing import (
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

GENERATOR = torch.Generator().manual_seed(1)
LARGE, SMALL = (size * torch.randn(40, generator=GENERATOR, dtype=torch.float64) for size in (1.0, 1e-3))
ROUNDING = 1e-8 * torch.randn(40, generator=GENERATOR, dtype=torch.float64)


def halves(*whole: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    return list(whole), [each * 0.3 for each in whole], [each * 0.7 for each in whole]


def test_gradients_that_are_the_sum_of_their_parts_add_up_those_of_rounding_too() -> None:
    whole, left, right = halves(LARGE, SMALL, ROUNDING)
    right[2] = -ROUNDING  # in a bias that a later layer cancels there is nothing else
    assert adds_up(whole, left, right, whole, 1.0)


@pytest.mark.parametrize("number", [0, 1])
def test_a_gradient_that_differs_does_not_add_up_however_small_it_is_beside_others(number: int) -> None:
    whole, left, right = halves(LARGE, SMALL)
    left[number] = left[number] * 1.5
    assert not adds_up(whole, left, right, whole, 1.0)


def test_what_differs_from_time_to_time_says_nothing() -> None:
    whole, left, right = halves(LARGE, SMALL)
    left[1] = left[1] * 1.5
    assert adds_up(whole, left, right, [LARGE, SMALL * 1.4], 1.0)


def test_a_small_difference_is_told_where_rounding_does_not_explain_it() -> None:
    whole, left, right = halves(LARGE, SMALL)
    left[0] = left[0] * (1 + 1e-4)
    as_much = [LARGE * (1 + 1e-5), SMALL]
    assert adds_up(whole, left, right, whole, 1.0)
    assert apart(whole, left, right, whole, 1.0) == pytest.approx(1.5e-5, rel=0.1)
    assert apart(whole, left, right, as_much, 1.0) == 0
    assert apart(whole, left, right, whole, 10.0) == 0  # the device computes less exactly
    left[0] = LARGE * 0.3 * (1 + 1e-7)
    assert apart(whole, left, right, whole, 1.0) == 0


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_small_gradients_are_not_compared_one_by_one_where_they_are_in_half_precision(kind: torch.dtype) -> None:
    whole, left, right = ([each.to(kind).double() for each in part] for part in halves(LARGE, SMALL))
    right[1] = torch.zeros_like(right[1])
    assert adds_up(whole, left, right, whole, 1.0)
    left[0] = left[0] * 1.5
    assert not adds_up(whole, left, right, whole, 1.0)


def test_differences_that_are_not_finite_say_nothing() -> None:
    assert is_zero([float("nan"), 1.0, 2.0])
    assert not is_zero([1.0, 1.1, 0.9])


# --- Losses and state ------------------------------------------------------------------------------------------------


def seen(total: float, weight: float = 1.0) -> Seen:
    return Seen(total, weight, 1, {})


@pytest.mark.parametrize(("count", "picked"), [(1, [10]), (2, [10, 19]), (4, [10, 13, 16, 19]), (99, [*range(10, 20)])])
def test_samples_are_taken_from_all_over_and_each_once(count: int, picked: list[int]) -> None:
    assert spread(np.arange(10, 20), count).tolist() == picked


def test_the_loss_of_parts_is_their_mean_by_weight() -> None:
    assert mean(seen(6.0, 2.0), seen(3.0, 1.0), seen(0.0, 3.0)) == 1.5


NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([1.0, 2.0], [3.0, 4.0], False),
        ([NAN, 2.0], [NAN, 2.0], True),
        ([NAN, 2.0], [NAN, 2.1], False),
        ([NAN, 2.0], [1.0, 2.0], False),
        ([1, 2], [1, 2], True),
        ([1, 2], [1, 3], False),
    ],
)
def test_nan_is_equal_to_nan(one: list[float], other: list[float], same: bool) -> None:
    assert same_numbers(torch.tensor(one), torch.tensor(other)) is same


def test_state_follows_when_it_is_the_mean_over_the_parts() -> None:
    left, right = torch.tensor([1.0, 0.0, 1e-3]), torch.tensor([4.0, 0.0, 1e-3])
    whole = torch.tensor([2.0, 0.0, 1e-3])  # of two samples and one
    assert follows(whole, left, right, 2, 1, 1e-3)
    assert not follows(whole, left, right, 1, 2, 1e-3)
    assert not follows(left + right, left, right, 2, 1, 1e-3)
    assert follows(whole * (1 + 5e-4), left, right, 2, 1, 1e-3)
    assert not follows(whole * (1 + 2e-3), left, right, 2, 1, 1e-3)


def test_what_is_small_beside_other_state_may_differ_by_a_part_of_that() -> None:
    zeros, large = torch.zeros(2), torch.tensor([100.0, 0.0])
    assert follows(large + torch.tensor([0.0, 5e-4]), large, large, 1, 1, 1e-3)
    assert not follows(large + torch.tensor([0.0, 5e-3]), large, large, 1, 1, 1e-3)
    assert follows(zeros + 5e-8, zeros, zeros, 1, 1, 1e-3)
    assert not follows(zeros + 1e-6, zeros, zeros, 1, 1, 1e-3)
    assert follows(torch.zeros(0), torch.zeros(0), torch.zeros(0), 1, 1, 1e-3)


def test_of_whole_numbers_the_largest_is_state_that_follows() -> None:
    left, right = torch.tensor([1, 5]), torch.tensor([2, 3])
    assert follows(torch.tensor([2, 5]), left, right, 1, 1, 1e-3)
    assert not follows(torch.tensor([2, 4]), left, right, 1, 1, 1e-3)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1.0, 1.0 + 9e-7, True), (1.0, 1.0 + 2e-6, False), (0.0, 9e-13, True), (0.0, 2e-12, False)],
)
def test_losses_are_the_same_but_for_what_kernels_round(one: float, other: float, same: bool) -> None:
    assert is_same(seen(one), seen(other)) is same


@pytest.mark.parametrize(("one", "other"), [(NAN, 1.0), (1.0, NAN), (float("inf"), 1.0), (NAN, NAN)])
def test_a_loss_that_is_not_finite_counts_as_the_same_since_the_first_step_tells_of_it(
    one: float, other: float
) -> None:
    assert is_same(seen(one), seen(other))


def test_random_differences_are_zero_within_their_error() -> None:
    spreading = [1.0, -1.0] * 18  # a standard error of 0.169
    assert is_zero([each + 1.0 for each in spreading])
    assert not is_zero([each + 1.1 for each in spreading])
    assert is_zero([5e-7, 5e-7, 5e-7])
    assert not is_zero([2e-6, 2e-6, 2e-6])


# --- How far gradients may be apart ----------------------------------------------------------------------------------


def one_off(off: float, norm: float = 1.0, beside: float = 0.0) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """A parameter's gradient of this norm that is ``off`` from its parts' sum, beside another one."""
    turn = torch.tensor([0.6, 0.48, 0.64], dtype=torch.float64)
    whole = [turn * norm, turn * beside]
    return whole, [turn * (0.4 * norm + off), turn * (0.5 * beside)], [turn * (0.6 * norm), turn * (0.5 * beside)]


@pytest.mark.parametrize(
    ("off", "norm", "beside", "coarse", "fits"),
    [
        # All of them together: a thousandth of all norms, those of the parts included.
        (1.9e-3, 1.0, 0.0, 1.0, True),
        (2.1e-3, 1.0, 0.0, 1.0, False),
        (1.9e-2, 1.0, 0.0, 10.0, True),
        (2.1e-2, 1.0, 0.0, 10.0, False),
        # One by itself, beside a large one: three hundredths of its own, and what rounding adds to the large one.
        (6.1e-4, 0.01, 1.0, 1.0, True),
        (6.4e-4, 0.01, 1.0, 1.0, False),
        (9.5e-3, 0.01, 1.0, 10.0, True),
        (1.05e-2, 0.01, 1.0, 10.0, False),
        (0.9e-5, 1e-8, 1.0, 1.0, True),
        (1.1e-5, 1e-8, 1.0, 1.0, False),
        (0.9e-12, 0.0, 0.0, 1.0, True),
        (1e-11, 0.0, 0.0, 1.0, False),
    ],
)
def test_a_gradient_may_be_off_by_so_much(off: float, norm: float, beside: float, coarse: float, fits: bool) -> None:
    whole, left, right = one_off(off, norm, beside)
    assert adds_up(whole, left, right, whole, coarse) is fits


@pytest.mark.parametrize(("changes", "fits"), [(1.9e-4, False), (2.1e-4, True)])
def test_a_gradient_that_rounding_changes_by_a_tenth_of_what_is_allowed_says_nothing(
    changes: float, fits: bool
) -> None:
    whole, left, right = one_off(0.01)
    rounded = [each * (1 + changes) for each in whole]
    assert adds_up(whole, left, right, rounded, 1.0) is fits


def test_a_gradient_of_zeros_and_ones_is_not_taken_for_half_precision() -> None:
    whole = [torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)]
    nothing = [torch.zeros(3, dtype=torch.float64)]
    off = [whole[0] * 1.01]
    assert not adds_up(whole, off, nothing, whole, 1.0)
    halved = [torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)]
    assert adds_up(halved, [halved[0] * 1.01], nothing, halved, 1.0)


def test_of_a_gradient_in_half_precision_and_of_none_nothing_is_told() -> None:
    halved = [torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)]
    nothing = [torch.zeros(3, dtype=torch.float64)]
    assert apart(halved, [halved[0] * 1.01], nothing, halved, 1.0) == 0
    assert apart(nothing, nothing, nothing, nothing, 1.0) == 0
