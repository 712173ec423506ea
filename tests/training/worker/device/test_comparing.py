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


def test_state_follows_when_it_is_the_mean_over_the_parts() -> None:
    left, right = torch.tensor([1.0, 0.0, 1e-3]), torch.tensor([4.0, 0.0, 1e-3])
    whole = torch.tensor([2.0, 0.0, 1e-3])  # of two samples and one
    assert follows(whole, left, right, 2, 1, 1e-3)
    assert not follows(whole, left, right, 1, 2, 1e-3)
    assert not follows(left + right, left, right, 2, 1, 1e-3)
    assert follows(whole * (1 + 5e-4), left, right, 2, 1, 1e-3)
    assert not follows(whole * (1 + 2e-3), left, right, 2, 1, 1e-3)


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
