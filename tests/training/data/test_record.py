"""The record of slices says how often each sample was counted, and shows every gap and overlap."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote_agent import tail
from remote_agent.planning import shares
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import record
from remote_agent.training.data.extent import resolve
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.data.record import SliceRecord
from remote_agent.training.shared.slices import SliceSpan
from tests.training import plain


def test_steps_after_the_checkpoint_are_superseded_by_those_that_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / record.FILE
    first = SliceRecord(path)
    for step in range(1, 6):
        first.write(step, [SliceSpan("a", 4 * step - 4, 4 * step - 1), SliceSpan("b", 4 * step - 1, 4 * step)])
    first.close()
    again = SliceRecord(path, resumed_after=3)
    again.write(4, [SliceSpan("b", 12, 16)])
    again.close()
    steps = record.read(path)
    assert list(steps) == [1, 2, 3, 4]
    assert steps[4] == (SliceSpan("b", 12, 16),)
    assert np.array_equal(plain.times_counted(path, SampleOrder(0, 8, 4)), np.full(8, 2))


def test_of_a_step_that_was_written_twice_the_later_line_counts(tmp_path: Path) -> None:
    path = tmp_path / record.FILE
    slices = SliceRecord(path)
    for worker in "ab":
        slices.write(1, [SliceSpan(worker, 0, 4)])
    slices.close()
    assert record.read(path) == record.read(path, 3) == {1: (SliceSpan("b", 0, 4),)}


@given(
    runs=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), min_size=1, max_size=5),
    count=st.integers(1, 9),
    block=st.integers(16, 400),
)
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_last_steps_are_those_of_the_whole_record_wherever_the_run_went_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, int]], count: int, block: int
) -> None:
    """``runs``: how many steps the run goes back, and how many it makes then."""
    path = tmp_path / record.FILE
    path.unlink(missing_ok=True)
    monkeypatch.setattr(tail, "BLOCK_BYTES", block)
    slices, step = SliceRecord(path), 0
    for number, (back, made) in enumerate(runs):
        step = max(0, step - back)
        if number:
            slices.go_back(step)
        for _ in range(made):
            slices.write(step + 1, [SliceSpan(f"w{number}", 4 * step, 4 * step + 4)])
            step += 1
    slices.close()
    with path.open("a") as file:
        file.write('{"step":99,"slices":[["w", 1')  # whoever wrote it was killed
    whole: dict[int, tuple[SliceSpan, ...]] = {}
    for document in map(json.loads, path.read_text().splitlines()[:-1]):
        if "resumed_after" in document:
            whole = {known: spans for known, spans in whole.items() if known <= document["resumed_after"]}
        else:
            whole[document["step"]] = tuple(SliceSpan(*span) for span in document["slices"])
    assert record.read(path) == whole
    assert list(record.read(path, count).items()) == sorted(whole.items())[-count:]


@given(size=st.integers(2, 60), batch=st.integers(1, 9), done=st.integers(0, 9), step=st.integers(1, 9))
def test_an_order_that_goes_on_has_the_same_samples_in_every_later_step(
    size: int, batch: int, done: int, step: int
) -> None:
    order = SampleOrder(3, size, batch, limit=17 * batch - 1)
    again = order.going_on(done, done * batch)
    assert (again.done, again.start, order.done, order.start) == (done, done * batch, 0, 0)
    assert np.array_equal(again.step(done + step), order.step(done + step))


def test_a_line_that_was_cut_by_a_kill_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / record.FILE
    SliceRecord(path).write(1, [SliceSpan("a", 0, 4)])
    with path.open("a") as file:
        file.write('{"step":2,"slices":[["a",')
    assert list(record.read(path)) == [1]
    SliceRecord(path, resumed_after=1).write(2, [SliceSpan("a", 4, 8)])
    assert list(record.read(path)) == [1, 2]


def test_a_line_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / record.FILE
    path.write_text('{"step":1,"slices":[["a",0,4]]}\nhello\n')
    with pytest.raises(ValueError, match="hello"):
        record.read(path)


def test_gaps_overlaps_and_what_lies_beyond_the_end_are_named() -> None:
    def wrong(*spans: tuple[int, int]) -> tuple[str, ...]:
        return record.gaps_and_overlaps([SliceSpan("a", *span) for span in spans], 10)

    assert wrong((5, 10), (0, 5)) == ()
    assert wrong((0, 4), (6, 10)) == ("positions 4 to 6 were not counted",)
    assert wrong((0, 6), (4, 10)) == ("positions 4 to 6 were counted again, by a",)
    assert wrong((0, 8)) == ("positions 8 to 10 were not counted",)
    assert wrong((0, 12)) == ("positions 10 to 12 lie beyond the end",)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8)
    .filter(any)
    .flatmap(lambda cut: st.tuples(st.just(cut), st.integers(0, sum(cut))))
)
def test_a_shorter_last_batch_is_cut_like_a_whole_one_and_nobody_gets_more(case: tuple[list[int], int]) -> None:
    cut, batch = case
    smaller = shares.scaled(cut, batch)
    assert sum(smaller) == batch
    assert all(0 <= new <= old for new, old in zip(smaller, cut, strict=True))
    assert all(abs(new - old * batch / sum(cut)) < 1 for new, old in zip(smaller, cut, strict=True))


@given(size=st.integers(1, 60), batch=st.integers(1, 80), epochs=st.integers(1, 4), seed=st.integers(0, 3))
def test_epochs_use_every_sample_so_often_and_no_more(size: int, batch: int, epochs: int, seed: int) -> None:
    config, order = resolve(TrainingConfig(batch_size=batch, epochs=epochs, seed=seed), size)
    assert config.batch_size == min(batch, size)
    used = [order.step(step) for step in range(1, config.num_iterations + 1)]
    assert all(0 < len(indices) <= config.batch_size for indices in used)
    assert np.array_equal(np.bincount(np.concatenate(used), minlength=size), np.full(size, epochs))
    assert len(order.step(config.num_iterations + 1)) == 0


@given(size=st.integers(4, 60), done=st.integers(1, 5), batch=st.integers(1, 4), after=st.integers(1, 9))
def test_a_run_that_goes_on_with_another_batch_starts_at_the_next_sample(
    size: int, done: int, batch: int, after: int
) -> None:
    after = min(after, size)
    whole = SampleOrder(0, size, batch).take(0, done * batch + 3 * after)
    _, order = resolve(TrainingConfig(batch_size=after, num_iterations=done + 3), size, done, done * batch)
    went_on = np.concatenate([order.step(step) for step in range(done + 1, done + 4)])
    assert np.array_equal(went_on, whole[done * batch :])
