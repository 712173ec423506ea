"""Training without waiting for whole steps: the bound holds, every sample counts once, and it learns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.strategies.stale_goal import Goal, next_goal
from remote_agent.training.coordinator.strategies.staleness_clocks import MAX_QUEUED, StalenessClocks
from remote_agent.training.data import record
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.errors import ConfigError
from remote_agent.training.job import create_model
from tests.training import plain

JOB = """
import json
import os
import time

import torch
from torch import nn
from torch.nn import functional as F


class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5))

    def loss(self, model, batch):
        os.environ["N"] = str(int(os.environ.get("N", 0)) + 1)  # what counts elsewhere is state, and refused
        host = os.environ["TEST_HOST"]
        begun = time.time()
        time.sleep((SLEEP.get(host, 0) if int(os.environ['N']) > MEASURED else 0) + EACH * len(batch[0]))
        if LOG:
            with open(LOG + host, "a") as file:
                file.write(json.dumps([begun, time.time(), len(batch[0])]) + "\\n")
        return F.cross_entropy(model(batch[0]), batch[1])

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.2)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(100, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
"""
BATCH = 30

MEASURED = 29
"""Calls of the loss that a measurement of 0.01 s makes at most."""


def job_source(sleep: dict[str, float] | None = None, log: str = "", seconds_a_sample: float = 0.0) -> str:
    source = JOB.replace("SLEEP", repr(sleep or {})).replace("LOG", repr(log))
    return source.replace("EACH", repr(seconds_a_sample)).replace("MEASURED", str(MEASURED))


# --- Decisions -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 4), st.integers(1, 5), st.data())
def test_nobody_gets_further_ahead_than_the_bound_and_somebody_can_always_go_on(
    staleness: int, count: int, data: st.DataObject
) -> None:
    pace: StalenessClocks[int] = StalenessClocks(staleness)
    workers = list(range(count))
    given, done = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
    numbers: dict[int, list[int]] = {worker: [] for worker in workers}
    pace.set_workers(workers)
    number = 0
    for _ in range(data.draw(st.integers(0, 60))):
        free = [worker for worker in workers if pace.may_begin(worker)]
        busy = [worker for worker in workers if given[worker] > done[worker]]
        assert free or busy
        for worker in workers:
            allowed = given[worker] - min(done.values()) <= staleness and given[worker] - done[worker] < MAX_QUEUED
            assert (worker in free) is allowed
        if data.draw(st.booleans()) and free:
            worker = data.draw(st.sampled_from(free))
            number += 1
            due = [each for own in numbers.values() for each in own[: max(0, given[worker] - staleness)]]
            assert pace.give(worker, number) == max(due, default=0)
            numbers[worker].append(number)
            given[worker] += 1
        elif busy:
            worker = data.draw(st.sampled_from(busy))
            pace.applied(worker)
            done[worker] += 1


def test_without_a_bound_a_worker_is_limited_by_its_queue_alone() -> None:
    pace: StalenessClocks[str] = StalenessClocks(None)
    pace.set_workers("ab")
    for number in range(1, 101):
        assert pace.may_begin("a")
        assert pace.give("a", number) == 0
        pace.applied("a")
    for number in range(101, 101 + MAX_QUEUED):
        pace.give("a", number)
    assert not pace.may_begin("a")
    assert pace.may_begin("b")


def test_a_lost_worker_holds_up_nobody_and_a_new_one_begins_where_the_slowest_is() -> None:
    pace: StalenessClocks[str] = StalenessClocks(1)
    pace.set_workers("ab")
    for number in (1, 2):
        pace.give("a", number)
        pace.applied("a")
    assert not pace.may_begin("a")
    pace.set_workers("a")
    pace.applied("b")
    for number in range(3, 20):
        assert pace.may_begin("a"), "b no longer counts"
        pace.give("a", number)
        pace.applied("a")
    pace.set_workers("ac")
    assert pace.may_begin("a")
    pace.give("c", 20)
    pace.give("c", 21)
    assert not pace.may_begin("c")
    pace.set_workers("c")
    pace.set_workers("ca")
    for worker in "cca":  # the slice of a is one from before it was left out
        pace.applied(worker)
    assert not pace.may_begin("c")


@given(
    epochs=st.integers(0, 3),
    last=st.integers(1, 12),
    every=st.integers(0, 5),
    done=st.integers(0, 3),
    stop_at=st.integers(0, 400),
    due=st.tuples(st.integers(0, 15), st.integers(0, 15)),
)
def test_workers_come_together_at_checkpoints_at_copies_at_the_end_and_where_the_run_stops(
    epochs: int, last: int, every: int, done: int, stop_at: int, due: tuple[int, int]
) -> None:
    size, batch = 100, 32
    limit = epochs * size or None
    last += done
    start = done * batch
    if limit is not None:
        if start >= limit:
            return
        last = done + -(-(limit - start) // batch)
    order = SampleOrder(0, size, batch, limit=limit, done=done, start=start)
    after, taken, steps = done, start, []
    while after < last:
        stopping = taken >= stop_at
        goal = next_goal(order, after, taken, last, every, due, stopping=stopping)
        assert after < goal.step <= last
        assert goal.end == order.span(goal.step)[1] >= taken
        assert not every or (goal.step - 1) // every == after // every, "no checkpoint is passed over"
        assert not any(after < step < goal.step for step in due), "nor a copy"
        after, taken = goal.step, goal.end
        steps.append(after)
        if stopping:
            break
    if stop_at > last * batch:
        assert after == last
        assert all(step in steps for step in range(done + 1, last + 1) if every and step % every == 0)
        if limit is not None:
            assert taken == limit
            short = (limit - start) % batch != 0 and last - 1 > done
            assert last - 1 in steps or not short, "no slice is in the short last step and in the one before"


def test_a_copy_waits_for_the_slices_of_later_steps_that_are_under_way() -> None:
    order = SampleOrder(0, 100, 32)
    assert next_goal(order, 3, 5 * 32 + 1, 20, 0, (4, 5), stopping=False) == Goal(6, 6 * 32)
    assert next_goal(order, 3, 5 * 32 + 1, 20, 0, (8, 9), stopping=False) == Goal(8, 8 * 32)
    assert next_goal(order, 3, 5 * 32 + 1, 20, 0, (3, 0), stopping=False) == Goal(20, 20 * 32), "it is made already"


def test_a_run_that_stops_ends_with_the_step_that_is_begun_and_a_short_last_step_is_made_alone() -> None:
    order = SampleOrder(0, 100, 32)
    assert next_goal(order, 3, 5 * 32 + 1, 20, 0, stopping=True) == Goal(6, 6 * 32), "the step that is begun"
    assert next_goal(order, 3, 3 * 32, 20, 0, stopping=True) == Goal(4, 4 * 32), "one at least"
    assert next_goal(order, 3, 5 * 32 + 1, 5, 0, stopping=True) == Goal(5, 5 * 32)
    short = SampleOrder(0, 100, 32, limit=100)
    assert next_goal(short, 0, 0, 50, 0, stopping=False) == Goal(3, 96), "the last step has four samples"
    assert next_goal(short, 3, 96, 50, 0, stopping=False) == Goal(4, 100)
    assert next_goal(SampleOrder(0, 96, 32, limit=96), 0, 0, 50, 0, stopping=False) == Goal(3, 96)


def test_settings_are_checked() -> None:
    assert TrainingConfig(strategy="ssp", staleness=0).staleness == 0
    with pytest.raises(ConfigError, match="strategy=async has no common steps"):
        TrainingConfig(strategy="async", ema_decay=0.9)


# --- Runs ------------------------------------------------------------------------------------------------------------


def plain_model(seed: int) -> nn.Module:
    class Factory:
        def create_model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5))

    return create_model(Factory(), seed)


def plain_data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(100, 20, generator=torch.Generator().manual_seed(5))
    return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)


def counted_once(run: Any, samples: int) -> None:
    spans = [span for spans in record.read(run.folder / record.FILE).values() for span in spans]
    assert record.gaps_and_overlaps(spans, samples) == ()


@pytest.mark.long
@pytest.mark.ray
def test_one_worker_in_lockstep_makes_a_step_of_sgd_with_each_slice(launch: Any, tmp_path: Path) -> None:
    settings = {"num_iterations": 8, "batch_size": BATCH, "seed": 3}
    run = launch(job_source(), "a", strategy="ssp", staleness=0, **settings)
    assert run.finish() == (0, "")
    plain.assert_equal(plain.weights_of(run), synchronous(job_source(), tmp_path, TrainingConfig(**settings)))


@pytest.mark.long
@pytest.mark.ray
def test_workers_in_lockstep_wait_for_a_slow_one_and_small_steps_move_the_weights_as_far_as_sync(
    launch: Any, tmp_path: Path
) -> None:
    steps, log = 6, str(tmp_path / "log-")
    source = slowed(log).replace("lr=0.2", "lr=1e-4")
    run = launch(source, strategy="ssp", staleness=0, num_iterations=steps, seed=3, **SLOWED)
    assert run.finish() == (0, "")
    counted_once(run, steps * BATCH)
    assert lead(log, "abc", run) == 0
    found, start = plain.weights_of(run), plain_model(3).state_dict()
    sync = synchronous(source, tmp_path, TrainingConfig(num_iterations=steps, batch_size=BATCH, seed=3))
    for name, value in sync.items():
        moved, expected = found[name] - start[name], value - start[name]
        assert (moved - expected).norm() <= 2e-3 * expected.norm(), name


@pytest.mark.ray
def test_a_slow_worker_is_not_left_behind_by_more_than_the_bound(launch: Any, tmp_path: Path) -> None:
    log = str(tmp_path / "log-")
    run = launch(slowed(log), strategy="ssp", staleness=2, num_iterations=12, seed=3, **SLOWED)
    assert run.finish() == (0, "")
    counted_once(run, 12 * BATCH)
    assert lead(log, "abc", run) <= 2


@pytest.mark.ray
def test_without_a_bound_a_slow_worker_is_left_behind_and_epochs_end_with_the_last_sample(
    launch: Any, tmp_path: Path
) -> None:
    log = str(tmp_path / "log-")
    run = launch(slowed(log), strategy="async", epochs=4, seed=3, **SLOWED)
    assert run.finish() == (0, "")
    assert lead(log, "abc", run) > 3
    assert run.of_kind("run_finished")[0]["samples"] == 400
    counted_once(run, 400)
    assert [step["step"] for step in run.of_kind("step")] == list(range(1, 15)), "the last sample fills no step"


SLOWED = {"batch_size": BATCH, "measure_seconds": 0.01, "rebalance": False, "loss_reduction": "mean"}


def slowed(log: str) -> str:
    """A job in which c is as fast as the others while it is measured, and keeps its share with the settings above: then
    its slices take several times as long."""
    return job_source(sleep={"c": 0.2}, log=log, seconds_a_sample=0.003)


def lead(log: str, hosts: str, run: Any) -> int:
    """By how many slices any worker, when it began one, was ahead of what the slowest had computed by then."""
    planned = run.of_kind("plan")[0]["time"]
    calls: dict[str, Sequence[tuple[float, float]]] = {}
    for host in hosts:
        lines = [json.loads(line) for line in Path(log + host).read_text().splitlines()]
        calls[host] = [(begun, ended) for begun, ended, _ in lines if begun >= planned]
    taking_part = {host for host, own in calls.items() if own}
    assert taking_part == set(hosts)
    most = 0
    end = min(own[-1][1] for host, own in calls.items() if host in taking_part)
    for host in taking_part:
        for place, (begun, _) in enumerate(calls[host]):
            if begun <= end:
                done = [sum(ended <= begun for _, ended in calls[other]) for other in taking_part if other != host]
                most = max(most, place - min(done))
    return most


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize(("strategy", "codec"), [("async", "fp32"), ("ssp", "int8")])
def test_it_learns_nearly_as_well_as_sync(launch: Any, tmp_path: Path, strategy: str, codec: str) -> None:
    settings = {"num_iterations": 60, "batch_size": BATCH, "seed": 3}
    run = launch(job_source(), strategy=strategy, codec=codec, stream="network", shards=2, **settings)
    assert run.finish() == (0, "")
    steps = run.of_kind("step")
    assert [step["step"] for step in steps] == list(range(1, 61))
    assert sum(step["samples"] for step in steps) == 60 * BATCH
    (x, y), model = plain_data(), plain_model(3)
    before = functional.cross_entropy(model(x), y).item()
    losses = []
    for weights in (plain.weights_of(run), synchronous(job_source(), tmp_path, TrainingConfig(**settings))):
        model.load_state_dict(weights)
        losses.append(functional.cross_entropy(model(x), y).item())
    assert losses[0] < 0.5 * before
    assert losses[0] < 1.1 * losses[1]
    reasons = " ".join(run.of_kind("plan")[0]["reasons"])
    assert "applied as it comes" in reasons
    assert codec == "fp32" or "codec=int8 over the network for gradients; weights go as bf16" in reasons


def synchronous(source: str, folder: Path, config: TrainingConfig) -> dict[str, torch.Tensor]:
    """The weights of a synchronous run: those of a plain loop, as other tests show."""
    job = plain.job_of(source, folder)
    return plain.train(job, config, loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
