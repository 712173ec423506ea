"""What a batch gave beside what its parts gave. Pure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from remote_agent.training.worker.device.comparing import adds_up, apart, is_zero

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
