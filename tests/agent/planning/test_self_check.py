"""What a run's steps say about its prediction."""

from __future__ import annotations

import dataclasses

import pytest

from remote_agent.planning import self_check
from remote_agent.planning.choice import Limits
from remote_agent.planning.self_check import FIRST_STEPS, STEPS, Seen, SelfCheck
from remote_agent.planning.simulator import predict
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import COMPUTE, EXCHANGE, Way
from tests.agent.planning.fleets import LINK_10M, LINK_100M, host, survey

FLEET = survey([host("a", 40, LINK_100M), host("b", 20, LINK_100M), host("c", 20, LINK_100M)])
WAY = Way(strategy="sync", hosts=("a", "b", "c"))


def after(fleet: Survey, compute: float, rest: float, steps: int) -> SelfCheck:
    """The check after so many steps whose terms are so many times as long as predicted."""
    check = SelfCheck(predicted=predict(fleet, WAY))
    compute_s, rest_s = self_check.apart(check.predicted)
    step = Seen(seconds=compute * compute_s + rest * rest_s, compute_s=compute * compute_s)
    for _ in range(FIRST_STEPS + steps):
        check = check.after(step)
    return check


@pytest.mark.parametrize(("times", "is_off"), [(1.0, False), (1.1, False), (0.9, False), (1.2, True), (0.8, True)])
def test_a_prediction_is_off_by_more_than_15_percent_for_20_steps(times: float, is_off: bool) -> None:
    assert after(FLEET, times, times, STEPS).is_off is is_off
    assert not after(FLEET, times, times, STEPS - 1).is_off


def test_a_hiccup_now_and_then_is_no_reason() -> None:
    check = after(FLEET, 1.0, 1.0, STEPS)
    for number in range(STEPS):
        check = check.after(Seen(seconds=check.predicted.seconds * (3 if number % 4 == 0 else 1), compute_s=1.0))
        assert not check.is_off


def test_each_term_has_its_ratio_and_the_corrected_step_is_the_measured_one() -> None:
    check = after(FLEET, 1.5, 3.0, STEPS)
    assert check.ratios == pytest.approx({COMPUTE: 1.5, EXCHANGE: 3.0})
    fleet, predicted = self_check.corrected(FLEET, WAY, check.median)
    assert predicted.seconds == pytest.approx(check.median.seconds)
    assert predicted.term(COMPUTE) == pytest.approx(check.median.compute_s)
    again = dataclasses.replace(check, predicted=predicted)
    assert not again.is_off
    assert self_check.corrected(fleet, WAY, check.median)[1].seconds == pytest.approx(check.median.seconds)


def test_what_a_parameter_server_shows_is_not_taken_for_true_of_a_ring() -> None:
    ring = dataclasses.replace(WAY, strategy="allreduce")
    before = predict(FLEET, ring)
    check = after(FLEET, 1.5, 3.0, STEPS)
    found = predict(self_check.corrected(FLEET, WAY, check.median)[0], ring)
    assert found.term(COMPUTE) == pytest.approx(1.5 * before.term(COMPUTE))
    assert found.term(EXCHANGE) == pytest.approx(before.term(EXCHANGE))
    seen = Seen(
        seconds=before.term(COMPUTE) + 2 * (before.seconds - before.term(COMPUTE)), compute_s=before.terms[0].seconds
    )
    fleet, now = self_check.corrected(FLEET, ring, seen)
    assert now.seconds == pytest.approx(seen.seconds)
    assert predict(fleet, WAY).seconds == pytest.approx(predict(FLEET, WAY).seconds)


def test_what_no_term_accounts_for_is_a_term_of_its_own() -> None:
    fleet = survey([host("a", 40), host("b", 20)], parameters=1000)
    way = Way(strategy="sync", hosts=("a", "b"))
    before = predict(fleet, way)
    found = Seen(seconds=before.seconds + 0.5, compute_s=before.term(COMPUTE))
    fixed, predicted = self_check.corrected(fleet, way, found)
    assert predicted.seconds == pytest.approx(found.seconds)
    assert fixed.other_s == pytest.approx(0.5, rel=0.01)
    alone = dataclasses.replace(way, hosts=("a",))
    assert predict(fixed.of(("a",)), alone).seconds == pytest.approx(predict(fleet, alone).seconds + 0.5, rel=0.01)


def test_what_no_term_accounts_for_is_corrected_as_well_once_it_is_less() -> None:
    """It was seen in a run's first steps: while it stayed, the run was told every 24 steps that they took less."""
    fleet = dataclasses.replace(survey([host("a", 40), host("b", 20)], parameters=1000), other_s=0.5)
    way = Way(strategy="sync", hosts=("a", "b"))
    before = predict(fleet, way)
    found = Seen(seconds=before.seconds - 0.3, compute_s=before.term(COMPUTE))
    fixed, predicted = self_check.corrected(fleet, way, found)
    assert predicted.seconds == pytest.approx(found.seconds)
    assert fixed.other_s == pytest.approx(0.2, rel=0.01)


def test_later_plans_are_told_half_of_what_a_run_corrected_and_nothing_of_its_devices() -> None:
    first = dataclasses.replace(FLEET, ratios={COMPUTE: 1.2, EXCHANGE: 2.0}, other_s=0.1)
    now = dataclasses.replace(first, ratios={COMPUTE: 3.0, EXCHANGE: 8.0, "calls": 4.0}, other_s=0.3)
    told = self_check.remembered(first, now)
    assert told.ratios == pytest.approx({COMPUTE: 1.2, EXCHANGE: 4.0, "calls": 2.0})
    assert told.other_s == pytest.approx(0.2)


def test_no_term_is_corrected_away() -> None:
    check = after(FLEET, 1.5, 0.0, STEPS)
    assert check.ratios[EXCHANGE] == self_check.LEAST_RATIO
    assert self_check.corrected(FLEET, WAY, check.median)[0].ratios[EXCHANGE] > 0


def test_a_better_plan_is_taken_where_it_gains_and_the_run_is_long_enough_to_be_made_ready_again() -> None:
    slow = survey([host("a", 40, LINK_100M), host("b", 40, LINK_100M), host("c", 5, LINK_10M / 4)])
    now = predict(slow, WAY)
    best = self_check.better(slow, now, Limits(), samples_left=1e6, pause_s=30)
    assert best is not None
    assert "c" not in best.way.hosts
    assert best.speed > 1.05 * now.speed
    assert self_check.better(slow, now, Limits(), samples_left=2 * best.samples, pause_s=30) is None
    assert self_check.better(FLEET, predict(FLEET, WAY), Limits(), samples_left=1e9, pause_s=0) is None


def test_shards_that_lie_badly_are_seen_where_the_strategy_is_fixed() -> None:
    cut = survey([host("a", 40, LINK_10M), host("b", 40), host("c", 40)])
    now = predict(cut, dataclasses.replace(WAY, parts=(("a", 1.0),)))
    best = self_check.better(cut, now, Limits(strategy="sync", all_hosts=True), samples_left=1e9, pause_s=1)
    assert best is not None
    assert best.way.hosts == ("a", "b", "c")
    assert best.parts.get("a", 0.0) < 0.5


def test_it_says_what_changed() -> None:
    hosts = list(FLEET.hosts)
    hosts[2] = dataclasses.replace(hosts[2], up=hosts[2].up / 10)
    slowed = dataclasses.replace(hosts[1].devices[0].profile, speed=6.0)
    now = dataclasses.replace(FLEET, hosts=tuple(hosts)).now({"b/0": slowed})
    assert self_check.what_changed(FLEET, now) == (
        "b/0 runs at 30% of its predicted speed",
        "the link of c sends 1.18 MB/s, 11.8 before",
    )
    assert self_check.what_was_off(after(FLEET, 1.5, 1.5, STEPS)).endswith(
        "50% more than predicted (computing 1.5 times as long, all else 1.5 times as long)"
    )


@pytest.mark.parametrize(("times", "holds"), [(1.0, True), (1.14, True), (0.86, True), (1.16, False), (0.84, False)])
def test_a_prediction_explains_steps_that_it_is_off_from_by_no_more_than_15_percent(times: float, holds: bool) -> None:
    predicted = predict(FLEET, WAY)
    assert self_check.explains(predicted, Seen(seconds=times * predicted.seconds, compute_s=1.0)) is holds


def test_of_the_last_twenty_steps_two_may_be_as_predicted_and_the_rest_off_to_one_side() -> None:
    predicted = predict(FLEET, WAY)

    def check(*times: float) -> bool:
        found = SelfCheck(predicted=predicted, passed=FIRST_STEPS)
        for each in times:
            found = found.after(Seen(seconds=each * predicted.seconds, compute_s=1.0))
        return found.is_off

    assert check(*[1.3] * 18, 1.0, 1.0)
    assert check(*[0.7] * 18, 1.0, 1.0)
    assert not check(*[1.3] * 17, 1.0, 1.0, 1.0)
    assert not check(*[1.3] * 10, *[0.7] * 10), "some longer, some shorter"


def test_where_steps_are_short_a_prediction_is_corrected_once_it_has_been_off_for_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predicted = predict(FLEET, WAY)
    monkeypatch.setattr(self_check, "LASTING_S", 199.5 * predicted.seconds)
    check = SelfCheck(predicted=predicted, passed=FIRST_STEPS)
    slow, usual = (Seen(seconds=each * predicted.seconds, compute_s=0.01) for each in (1.25, 1.0))
    off = []
    for _ in range(170):
        check = check.after(slow)
        off.append(check.is_off)
    assert off.index(True) + 1 == 160
    for _ in range(3):
        check = check.after(usual)
    assert not check.is_off
    for _ in range(150):
        check = check.after(slow)
    assert not check.is_off, "what was before counts no more"


def test_the_first_steps_of_a_plan_are_not_looked_at() -> None:
    check = SelfCheck(predicted=predict(FLEET, WAY))
    for number in range(FIRST_STEPS):
        check = check.after(Seen(seconds=1.0, compute_s=1.0))
        assert (check.passed, check.seen) == (number + 1, ())
    assert len(check.after(Seen(seconds=1.0, compute_s=1.0)).seen) == 1


def test_a_plan_must_be_shorter_by_a_twentieth_and_gain_twice_what_it_costs() -> None:
    now = predict(FLEET, WAY)
    slower = dataclasses.replace(now, terms=(dataclasses.replace(now.terms[0], seconds=now.seconds * 1.04),))
    assert self_check.better(FLEET, slower, Limits(all_hosts=True, strategy="sync"), 1e9, 0) is None
    slower = dataclasses.replace(now, terms=(dataclasses.replace(now.terms[0], seconds=now.seconds * 1.5),))
    best = self_check.better(FLEET, slower, Limits(all_hosts=True, strategy="sync"), 1e9, 0)
    assert best is not None
    saved_s = 4800 / slower.speed - 4800 / best.speed
    limits = Limits(all_hosts=True, strategy="sync")
    assert self_check.better(FLEET, slower, limits, 4800, saved_s / 2.01) is not None
    assert self_check.better(FLEET, slower, limits, 4800, saved_s / 1.99) is None


def test_it_says_whether_steps_are_longer_or_shorter_than_planned() -> None:
    assert "20% less than predicted" in self_check.what_was_off(after(FLEET, 0.8, 0.8, STEPS))
    assert "20% more than predicted" in self_check.what_was_off(after(FLEET, 1.2, 1.2, STEPS))


def test_a_plan_pays_that_is_shorter_by_a_twentieth_and_gains_twice_the_pause() -> None:
    assert self_check.pays(1.06, 1.0, left=1e9, pause_s=10)
    assert not self_check.pays(1.04, 1.0, left=1e9, pause_s=10)
    assert self_check.pays(2.0, 1.0, left=21, pause_s=10)
    assert not self_check.pays(2.0, 1.0, left=20, pause_s=10)


def test_a_run_is_made_ready_again_for_a_twentieth_of_its_time_at_most_but_for_the_first_time() -> None:
    assert not self_check.has_lasted(49, pause_s=10)
    assert self_check.has_lasted(50, pause_s=10)
    assert not self_check.is_soon(0, since_s=0, pause_s=10)
    assert self_check.is_soon(1, since_s=199, pause_s=10)
    assert not self_check.is_soon(1, since_s=200, pause_s=10)


@pytest.mark.parametrize(
    ("compute", "rest", "words"),
    [
        (1.0, 1.3, "more than predicted (computing as predicted, all else 1.3 times as long)"),
        (190.0, 190.0, "190 times as long as predicted (computing 190 times as long, all else 190 times as long)"),
        (
            12345.0,
            12345.0,
            "12,345 times as long as predicted (computing 12,345 times as long, all else 12,345 times as long)",
        ),
        (3.1, 3.1, "3.1 times as long as predicted (computing 3.1 times as long, all else 3.1 times as long)"),
        (0.001, 0.001, "99% less than predicted (computing 0.001 times as long, all else 0.2 times as long)"),
    ],
)
def test_how_wrong_a_plan_was_is_said_as_people_say_it(compute: float, rest: float, words: str) -> None:
    assert self_check.what_was_off(after(FLEET, compute, rest, STEPS)).endswith(words)
