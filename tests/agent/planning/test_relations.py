"""What a plan has to do when a fleet changes: relations between predictions, whatever their figures are."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_agent.planning.choice import MARGIN, choose
from remote_agent.planning.simulator import corrected, predict
from remote_agent.planning.survey import Device, Survey
from remote_agent.planning.ways import COMPUTE, PREDICTED, Way
from tests.agent.planning.fleets import BACKWARD, LINK_1G, LINK_10M, LINK_100M, host, survey

SIMULATED = 0.02
"""Part of a step by which an earlier transfer may delay the ones after it, as in any schedule that is made in order."""

NOISE = 1 + MARGIN + SIMULATED


@st.composite
def fleets(draw: st.DrawFn, least: int = 2, most: int = 4) -> Survey:
    count = draw(st.integers(least, most))
    hosts = [
        host(
            f"h{number}",
            draw(st.floats(1, 100)),
            draw(st.sampled_from([LINK_10M, 4e6, LINK_100M, 4e7, LINK_1G])),
            devices=draw(st.sampled_from([1, 1, 2])),
            overhead_s=draw(st.sampled_from([0.0, 0.005, 0.05])),
            step_s=draw(st.sampled_from([0.0, 0.01])),
            latency_s=draw(st.sampled_from([0.0, 0.0005, 0.01])),
            turn_s=draw(st.sampled_from([0.0, 1e-4, 1e-3])),
            touch_s=draw(st.sampled_from([0.0, 1e-9, 5e-9])),
            update_s=2e-9,
        )
        for number in range(count)
    ]
    parameters = draw(st.sampled_from([10_000, 100_000, 1_000_000, 17_000_000]))
    return survey(hosts, parameters, draw(st.sampled_from([8, 48, 200])), ready=draw(st.sampled_from([(), BACKWARD])))


@settings(max_examples=12, deadline=None)
@given(fleet=fleets(least=9, most=14))
def test_of_many_hosts_none_that_is_left_out_would_add_more_than_an_error(fleet: Survey) -> None:
    choice = choose(fleet)
    assert choice.best in choice.ways
    for name, gain in choice.gains.items():
        inside = name in choice.best.way.hosts
        assert gain is None or (gain > -MARGIN if inside else gain < MARGIN), name


@settings(max_examples=25, deadline=None)
@given(fleet=fleets(), faster=st.sampled_from([1.2, 2.0, 10.0]), data=st.data())
def test_a_faster_link_makes_no_chosen_step_slower(fleet: Survey, faster: float, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(fleet.names))
    hosts = tuple(
        dataclasses.replace(each, up=faster * each.up, down=faster * each.down) if each.name == name else each
        for each in fleet.hosts
    )
    assert choose(dataclasses.replace(fleet, hosts=hosts)).best.seconds <= NOISE * choose(fleet).best.seconds


@settings(max_examples=25, deadline=None)
@given(fleet=fleets(), more=st.floats(1, 100))
def test_a_further_host_makes_no_chosen_step_slower(fleet: Survey, more: float) -> None:
    larger = dataclasses.replace(fleet, hosts=(*fleet.hosts, host("new", more)))
    assert choose(larger).best.seconds <= NOISE * choose(fleet).best.seconds


def _faster(device: Device, by: float) -> Device:
    return dataclasses.replace(
        device, speed=by * device.speed, overhead_s=device.overhead_s / by, step_s=device.step_s / by
    )


@settings(max_examples=25, deadline=None)
@given(fleet=fleets(), by=st.sampled_from([0.1, 0.5, 3.0, 20.0]))
def test_devices_so_many_times_as_fast_compute_so_many_times_as_fast(fleet: Survey, by: float) -> None:
    hosts = tuple(
        dataclasses.replace(each, devices=tuple(_faster(device, by) for device in each.devices)) for each in fleet.hosts
    )
    faster = dataclasses.replace(fleet, hosts=hosts)
    for strategy in PREDICTED:
        before, after = (predict(each, Way(strategy=strategy, hosts=fleet.names)) for each in (fleet, faster))
        assert after.term(COMPUTE) == pytest.approx(before.term(COMPUTE) / by)
        assert after.shares == before.shares


@settings(max_examples=25, deadline=None)
@given(fleet=fleets(), ratio=st.floats(0.2, 4.0), other_s=st.sampled_from([0.0, 0.1]))
def test_what_is_said_of_a_step_adds_up_however_it_was_corrected(fleet: Survey, ratio: float, other_s: float) -> None:
    names = ("compute", "exchange", "handling", "update", "calls")
    ratios = dict.fromkeys(names, ratio) | {f"{name} of allreduce": ratio for name in names[1:]}
    corrected = dataclasses.replace(fleet, ratios=ratios, other_s=other_s)
    for strategy in PREDICTED:
        way = Way(strategy=strategy, hosts=fleet.names)
        before, after = predict(fleet, way), predict(corrected, way)
        assert after.seconds == pytest.approx(ratio * before.seconds + other_s)
        assert after.link_s <= after.seconds
        assert max(after.busy_s.values()) == pytest.approx(after.term(COMPUTE))


@settings(max_examples=25, deadline=None)
@given(fleet=fleets(), compute=st.floats(0.2, 4.0), rest_s=st.sampled_from([0.0, 0.1, 5.0]))
def test_after_a_correction_a_step_is_predicted_to_take_what_it_took(
    fleet: Survey, compute: float, rest_s: float
) -> None:
    for strategy in PREDICTED:
        way = Way(strategy=strategy, hosts=fleet.names)
        before = predict(fleet, way)
        compute_s = compute * before.term(COMPUTE)
        step_s = compute_s + max(rest_s, before.seconds - before.term(COMPUTE))
        after = predict(corrected(fleet, way, step_s, compute_s), way)
        assert after.term(COMPUTE) == pytest.approx(compute_s)
        assert after.seconds == pytest.approx(step_s, rel=0.06)


def test_the_order_of_hosts_makes_no_difference_to_what_is_chosen() -> None:
    hosts = [host("a", 40, LINK_100M), host("b", 20, LINK_1G), host("c", 10, LINK_10M), host("d", 35, LINK_1G)]
    speeds = {round(choose(survey(list(order))).best.speed, 1) for order in itertools.permutations(hosts)}
    assert max(speeds) / min(speeds) <= NOISE
