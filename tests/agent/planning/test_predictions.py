"""Predicted steps in cases small enough to be added up by hand, term by term."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from remote_agent.planning.simulator import local_counts, predict
from remote_agent.planning.sites import COPIES_ON_DEVICE, DoesNotFit
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import CALLS, COMPUTE, UPDATE, Prediction, Way
from tests.agent.planning.fleets import host, survey

MILLION = 1_000_000
BYTES = 4 * MILLION
FAST = 1e15
"""Bytes/s of a link that holds nothing up."""


def predicted(of: Survey, strategy: str = "sync", *, bound: bool = False, **more: Any) -> Prediction:
    return predict(of, Way(strategy=strategy, hosts=of.names, **more), bound=bound)


# --- Lower bounds ----------------------------------------------------------------------------------------------------


# --- The ways --------------------------------------------------------------------------------------------------------


def test_a_synchronous_step_waits_for_a_call_too() -> None:
    of = dataclasses.replace(survey([host("a", 40)]), call_s=0.02)
    assert predicted(of).term(CALLS) == 0.02
    assert predicted(of, "allreduce").term(CALLS) == 0.04
    assert predicted(of, "local_sgd").term(CALLS) == 0.02


def test_a_ring_between_hosts_can_not_be_encrypted_and_within_one_need_not_be() -> None:
    with pytest.raises(DoesNotFit, match="can't encrypt"):
        predicted(survey([host("a", 40), host("b", 40)], encrypted=True), "allreduce")
    assert predicted(survey([host("a", 40, devices=2)], encrypted=True), "allreduce").seconds > 0


def test_a_round_has_the_batch_over_all_devices_and_their_own_optimizers() -> None:
    of = survey([host("a", 100, FAST, step_s=0.02), host("b", 50, FAST, step_s=0.01)], batch=21)
    found = predicted(of, "local_sgd", local_steps=10)
    assert found.shares == {"a/0": 10 * 10, "b/0": 5 * 10}
    assert found.busy_s == pytest.approx({"a/0": 10 * (0.1 + 0.02), "b/0": 5 * (0.2 + 0.01)})
    assert found.term(COMPUTE) == pytest.approx(1.2)
    assert found.samples == 150
    few = predicted(survey([host("a", 100), host("b", 50)], batch=1), "local_sgd", local_steps=2)
    assert few.shares == {"a/0": 2, "b/0": 1}, "one sample at least"
    given = predicted(of, "local_sgd", local_steps=10, local_batch=40)
    assert given.shares == {"a/0": 400, "b/0": 200}


def test_local_steps_are_as_many_as_end_with_the_fastest_and_one_at_least() -> None:
    assert local_counts(10, [1.0, 2.0, 4.0, 100.0]) == (10, 5, 3, 1)
    assert local_counts(1, [3.0, 1.0]) == (1, 1)


# --- What they have in common ----------------------------------------------------------------------------------------


def test_a_device_has_room_for_a_model_to_the_last_byte() -> None:
    needed = COPIES_ON_DEVICE * BYTES
    assert predicted(survey([host("a", 40, device_memory=needed)])).seconds > 0
    with pytest.raises(DoesNotFit, match=r"a/0 lacks 0.00 GB: weights and gradients take 0.02 GB, 0.02 GB are free"):
        predicted(survey([host("a", 40, device_memory=needed - 1)]))


def test_what_bounds_a_step_is_a_link_where_that_takes_more_than_half_of_it() -> None:
    def bound(rate: float) -> str:
        return predicted(survey([host("a", 24, FAST), host("b", 24, rate)], MILLION), parts=(("a", 1.0),)).bound

    assert bound(FAST) == "computing on a/0"
    assert bound(BYTES / 10).startswith("the link of b")
    slow = predicted(survey([host("a", 24, FAST), host("b", 6, FAST, overhead_s=0.5)], MILLION))
    assert slow.bound == f"computing on {max(slow.busy_s, key=lambda name: slow.busy_s[name])}"


def test_a_batch_is_cut_into_whole_units_as_the_run_does() -> None:
    hosts = [host("a", 40), host("b", 16), host("c", 8)]
    free, units = survey(hosts, batch=24), survey(hosts, batch=24, unit=8)
    assert tuple(predicted(free).shares.values()) == (15, 6, 3)
    for strategy in ("sync", "allreduce"):
        assert tuple(predicted(units, strategy).shares.values()) == (16, 8, 0)
    assert predicted(units).term(COMPUTE) == pytest.approx(8 / 16)


def test_one_host_alone_is_not_limited_by_its_link() -> None:
    alone = predicted(survey([host("a", 1e6, update_s=1e-6)], MILLION))
    assert (alone.link, alone.link_s, alone.bound) == ("", 0.0, UPDATE)


def test_a_step_that_waits_for_calls_is_not_said_to_wait_for_a_link() -> None:
    of = dataclasses.replace(survey([host("a", 1e6, FAST), host("b", 1e6, FAST)], 1000), call_s=0.5)
    assert predicted(of).bound == CALLS
