"""Where a step's time goes."""

from __future__ import annotations

from dataclasses import replace

from hetero_tui.ui.draw.step_time import WorkerTime, last_times, recent_times, step_time_lines, timeline_lines, verdict
from hetero_tui.ui.palette import DARK


def time(label: str, *parts: float) -> WorkerTime:
    return WorkerTime(worker=label, label=label, host=label, fraction=0.5, parts=parts)


def test_means_are_over_recent_steps_and_workers_that_are_gone_say_so(scenarios) -> None:
    run = scenarios.training().run
    times = recent_times(run)
    assert [(entry.label, entry.word) for entry in times] == [
        ("mercer", ""), ("crosby", ""), ("macbook", ""), ("nas", "lost, tried again by itself"),
    ]  # fmt: skip
    assert "nas        -  lost, tried again by itself" in [line.plain for line in step_time_lines(times, 60, 6, DARK)]
    assert [step.step for step in run.steady] == [*range(scenarios.SLOW_AT, 1205)], "before, the shares were others"
    steps = [part for step in run.steady for part in step.workers if part.host == "mercer"]
    assert abs(times[0].parts[0] - sum(part.compute_s for part in steps) / len(steps)) < 1e-9
    assert last_times(run)[0].parts[0] == run.recent[-1].workers[0].compute_s


def test_no_shares_are_shown_of_steps_that_were_not_made() -> None:
    benched = (replace(time("a", 0.0, 0.0, 0.0, 0.0), word="too slow just now"),)
    for lines in (step_time_lines(benched, 60, 5, DARK), timeline_lines(benched, 60, 5, DARK)):
        assert [line.plain for line in lines if line.plain] == ["a    -  too slow just now"]


def test_the_worker_that_waits_least_decides_what_the_step_is_bound_by() -> None:
    fast, slow_link = time("a", 0.5, 0.1, 0.1, 0.3), time("b", 0.2, 0.4, 0.4, 0.0)
    assert verdict((fast, slow_link)) == "link-bound: b"
    assert verdict((fast, time("c", 0.9, 0.05, 0.05, 0.0))) == "compute-bound: c"
    assert verdict((fast,)) == "compute-bound"
    assert verdict((time("d", 0.37, 0.0, 0.0, 0.62),)) == "bound by calls between processes"
    assert verdict((time("e", 0.2, 0.1, 0.2, 0.0),)) == "bound by push and pull", "no link is known to be used"
    assert verdict(()) == ""


def test_longer_steps_have_longer_bars_and_all_times_end_in_one_column() -> None:
    lines = [line.plain for line in step_time_lines((time("a", 1, 0, 0, 0), time("bb", 0.5, 0, 0, 0)), 60, 3, DARK)]
    assert lines[0].count("█") in (2 * lines[1].count("█"), 2 * lines[1].count("█") + 1)
    assert {len(line) for line in lines[:2]} == {60}
    assert "compute 100%" in lines[-1]


def test_of_many_workers_those_that_set_the_pace_are_shown_and_the_rest_counted() -> None:
    times = tuple(time(f"w{index:02}", index / 100, 0, 0, 1 - index / 100) for index in range(1, 51))
    lines = [line.plain for line in step_time_lines(times, 60, 6, DARK)]
    assert [line.split()[0] for line in lines[:4]] == ["w47", "w48", "w49", "w50"]
    assert lines[4] == "and 46 workers that wait longer"
