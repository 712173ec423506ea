"""A sweep's decisions: values over the whole range, and successive halving that waits for no trial."""

from __future__ import annotations

import math

import pytest

from remote_agent.search import Halving, Parameter, Search, ranked, recent, rungs


@pytest.mark.parametrize("log", [True, False])
def test_each_part_of_a_range_is_tried_once(log: bool) -> None:
    parameter = Parameter(name="x", low=1e-4, high=1.0, log=log)
    values = [float(row["x"]) for row in Search(parameters=(parameter,), trials=10).values()]
    places = [math.log10(value) / 4 + 1 if log else (value - 1e-4) / (1 - 1e-4) for value in values]
    assert sorted(int(place * 10 * 0.9999) for place in places) == list(range(10))
    assert values != sorted(values)


def test_parameters_are_drawn_apart_and_again_alike() -> None:
    parameters = (Parameter(name="x", high=1.0), Parameter(name="y", high=1.0))
    first, again = (Search(parameters=parameters, trials=8, seed=3).values() for _ in range(2))
    assert first == again != Search(parameters=parameters, trials=8, seed=4).values()
    by_x = sorted(first, key=lambda row: float(row["x"]))
    assert [row["y"] for row in by_x] != sorted(row["y"] for row in first)


def test_where_there_are_as_many_trials_as_combinations_each_is_tried_once() -> None:
    parameters = (Parameter(name="n", low=1, high=3, whole=True), Parameter(name="c", choices=("a", "b")))
    search = Search(parameters=parameters, trials=6)
    assert search.combinations == 6
    tried = [row["n"] + row["c"] for row in search.values()]
    assert sorted(tried) == ["1a", "1b", "2a", "2b", "3a", "3b"]
    assert tried != sorted(tried), "each part of them early"
    assert Search(parameters=(*parameters, Parameter(name="x", high=1.0)), trials=6).combinations == math.inf


def test_rungs_are_parts_of_a_trials_own_steps() -> None:
    assert rungs(810) == (30, 90, 270)
    assert rungs(2) == rungs(1) == rungs(0) == ()


def test_a_short_trial_is_not_judged_by_its_first_few_batches() -> None:
    assert rungs(60) == (20,), "not after 2 and 6"
    assert rungs(150) == (16, 50)
    assert rungs(48) == (16,)
    assert rungs(47) == ()


def test_a_trial_goes_on_if_it_is_among_the_best_third_of_those_that_came() -> None:
    halving = Halving()
    arrived = [(0, 5.0), (1, 6.0), (2, 4.0), (3, 4.5), (4, 3.0), (5, math.nan), (6, None)]
    assert [halving.goes_on(trial, 0, figure) for trial, figure in arrived] == [
        True,  # the first has nothing beside it
        False,
        True,
        True,  # the second of four, of which two go on
        True,
        False,
        False,
    ]
    assert halving.goes_on(2, 1, 9.0), "another rung"
    assert Halving(sign=-1).goes_on(0, 0, 0.9)


def test_a_trial_that_is_made_again_counts_once() -> None:
    halving = Halving()
    assert [halving.goes_on(0, 0, 5.0) for _ in range(5)] == [True] * 5
    assert halving.goes_on(1, 0, 4.0)
    assert not halving.goes_on(2, 0, 6.0)


def test_more_is_better_where_the_metric_says_so() -> None:
    halving = Halving(sign=-1)
    assert [halving.goes_on(n, 0, figure) for n, figure in enumerate((0.5, 0.4, 0.6))] == [True, False, True]
    assert ranked([(0, 0, 0.5), (1, 0, 0.9), (2, -2, 0.99), (3, 0, None)], -1) == [1, 0, 2, 3]


def test_halving_keeps_the_best_of_many_and_saves_most_steps() -> None:
    halving, steps, made, finished = Halving(), 810, 0, []
    figures = [abs(((37 * n) % 81) / 81 - 0.3) for n in range(81)]
    for trial, figure in enumerate(figures):  # one device: one after the other
        for rung, step in enumerate(rungs(steps)):
            if not halving.goes_on(trial, rung, figure):
                made += step
                break
        else:
            made += steps
            finished.append(trial)
    assert min(range(81), key=figures.__getitem__) in finished
    assert made < 0.4 * 81 * steps


def test_a_trials_loss_is_the_mean_of_its_last_quarter() -> None:
    assert recent([9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0, 3.0]) == 2.0
    assert recent([5.0, 1.0, 3.0]) == 3.0, "of few the last one alone"
    assert recent([4.0]) == 4.0
    assert recent([]) is None
    assert recent([1.0, None]) is None
