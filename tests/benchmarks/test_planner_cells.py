"""Which cells of the planner's sweep are run, and what its summary says of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.planner import ALONE, CHOSEN, PLAN, Cell, by_term, choices, errors, regret, table, to_run


def cell(way: str, predicted_s: float = 0.0, measured_s: float = 0.0, model: str = "small", **more: Any) -> Cell:
    return Cell(
        rate_mbit=100,
        speeds="1:1:1",
        model=model,
        way=way,
        samples=24,
        predicted_s=predicted_s,
        measured_s=measured_s,
        **more,
    )


ALL = [cell(way, model=model) for model in ("small", "large") for way in (PLAN, ALONE, "sync", CHOSEN)]


def test_the_cells_that_are_asked_for_are_run_after_their_plan_unless_they_are_known() -> None:
    def names(patterns: str, *done: str) -> list[str]:
        return [each.name.removeprefix("100/1:1:1/") for each in to_run(ALL, patterns, done)]

    assert names("*/small/*") == ["small/plan", "small/alone", "small/sync", "small/chosen"]
    assert names("*/small/sync,*/large/alone") == ["small/plan", "small/sync", "large/plan", "large/alone"]
    known = [f"100/1:1:1/small/{way}" for way in (PLAN, ALONE)]
    assert names("*/small/*", *known) == ["small/plan", "small/sync", "small/chosen"], "a run begins with its plan"
    assert names("*/small/*", *known, "100/1:1:1/small/sync") == []
    assert names("1000/*") == []


def test_the_summary_says_how_far_predictions_are_off_by_which_term_and_what_that_cost() -> None:
    about = {"terms": {"compute": 1.0, "exchange": 1.0}, "compute_s": 1.1}
    cells = [
        cell(PLAN, 2.0, chosen="sync on a,b,c", hosts=3),
        cell(ALONE, 2.0, 2.5, terms={"compute": 2.0}, compute_s=2.0),
        cell("sync", 2.0, 2.0, **about),
        cell("allreduce", 2.0, 1.6, **about),
    ]
    assert errors(cells) == pytest.approx((0.2, 0.25, 3))
    assert by_term(cells) == [
        "computing: measured over predicted 1.00 to 1.10, median 1.10.",
        "all else: measured over predicted 0.50 to 0.90, median 0.70.",
    ]
    (kept,) = choices(cells)
    assert (kept.way, kept.best, kept.kept, kept.alone_is_best, kept.said_alone) == (
        "sync",
        "allreduce",
        0.8,
        False,
        False,
    )
    told = [
        "Chosen ways have 0.80 of the best one's speed (median), 0.80 at worst.",
        "One machine is chosen where it is best, and nowhere else, in 1 of 1.",
    ]
    assert regret([kept]) == told == table(cells)[-2:]
