"""Three unlike models and optimizers, 1 to 5 workers with unequal slices, each exact way: weights of a plain loop.

The cases are a part of ``benchmarks.parity``'s matrix in which any two values meet, less its fourth model: weights that
are tied are in the small GPT as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from benchmarks import parity
from benchmarks.parity_runs import LIMITS, Case, Driver
from tests.training.loopback import Cluster

MATRIX = parity.matrix(models=("cnn-groupnorm", "gpt", "frozen-unused"))
CASES = parity.pairwise(MATRIX)


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Iterator[Driver]:
    with Driver(cluster) as started:
        yield started


@pytest.mark.ray
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_after_20_steps_are_those_of_a_plain_loop(driver: Driver, case: Case) -> None:
    row = driver.row(case)
    assert not row.mistake, row
    assert row.error <= 1e-5, row


def test_any_two_values_of_the_matrix_that_can_meet_do_so_in_a_case() -> None:
    everything = {pair for case in MATRIX for pair in itertools.combinations(vars(case).items(), 2)}
    assert everything == {pair for case in CASES for pair in itertools.combinations(vars(case).items(), 2)}
    assert len(CASES) <= 13


def test_slices_are_unequal_whatever_the_number_of_workers() -> None:
    for (workers, _), limits in LIMITS.items():
        assert len(limits) == workers
        assert workers == 1 or max(limits) >= 2 * min(limits)
