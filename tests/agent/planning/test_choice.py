"""Which way is chosen, and what is said about it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_agent.planning.channels import Channel
from remote_agent.planning.choice import MARGIN, Limits, choose
from remote_agent.planning.simulator import predict
from remote_agent.planning.sites import NoRoom
from remote_agent.planning.verdicts import local_steps_for, verdicts
from remote_agent.planning.ways import Way
from tests.agent.planning.fleets import BACKWARD, LINK_1G, LINK_10M, LINK_100M, host, survey

MILLION = 1_000_000


@settings(max_examples=40, deadline=None)
@given(
    speeds=st.lists(st.floats(1, 100), min_size=2, max_size=4),
    rates=st.lists(st.sampled_from([LINK_10M, LINK_100M, LINK_1G]), min_size=4, max_size=4),
    parameters=st.sampled_from([100_000, MILLION, 17 * MILLION]),
)
def test_no_exact_way_with_any_set_of_hosts_is_faster_by_more_than_the_margin(
    speeds: list[float], rates: list[float], parameters: int
) -> None:
    fleet = survey([host(f"h{n}", s, rates[n]) for n, s in enumerate(speeds)], parameters, ready=BACKWARD)
    chosen = choose(fleet).best
    every = [
        predict(fleet, Way(strategy=strategy, hosts=hosts))
        for strategy in ("sync", "allreduce")
        for count in range(1, len(speeds) + 1)
        for hosts in itertools.combinations(fleet.names, count)
    ]
    assert max(each.speed for each in every) <= chosen.speed * (1 + MARGIN) * 1.001
    assert chosen.way.exact


def test_one_machine_is_chosen_where_the_link_eats_what_the_others_add() -> None:
    fleet = survey([host("mercer", 40, LINK_10M), host("crosby", 20, LINK_10M), host("nas", 20, LINK_10M)])
    choice = choose(fleet)
    assert choice.best.way.hosts == ("mercer",)
    told = verdicts(fleet, choice)
    assert told[0].startswith("use mercer alone: 1.2 s a step against ")
    assert any(said.startswith("nas would slow the step by ") and said.endswith("leave it out") for said in told)


def test_a_model_that_no_server_can_hold_is_trained_on_one_host_where_connections_have_to_be_encrypted() -> None:
    fleet = survey([host("mercer", 40), host("macbook", 40)], ready=BACKWARD)
    for encrypted in (False, True):
        work = dataclasses.replace(fleet.work, streamable=False, encrypted=encrypted)
        choice = choose(dataclasses.replace(fleet, work=work))
        assert choice.best.way.strategy == "allreduce"
        assert choice.best.way.hosts == (("mercer",) if encrypted else ("mercer", "macbook"))
        assert any("can't encrypt" in why for why in choice.refused) is encrypted


def test_what_helps_is_said_to_help_and_by_how_much() -> None:
    fleet = survey([host("mercer", 40), host("macbook", 40), host("nas", 20, LINK_10M)], ready=BACKWARD)
    told = verdicts(fleet, choose(fleet))
    assert told[0].startswith("use sync on mercer and macbook: 600 ms a step of 48 samples")
    assert told[2] == "macbook adds 100%: use it"
    assert any(said.startswith("nas would slow the step") for said in told)


def test_a_limiting_link_is_named_with_what_would_help() -> None:
    fleet = survey([host("mercer", 4, LINK_100M), host("crosby", 4, LINK_100M)], 12 * MILLION)
    told = verdicts(fleet, choose(fleet))[-1]
    assert told.startswith("the link of ")
    assert "bf16 would make it " in told
    assert told.endswith(" local steps reach 95% of the summed speed (not exact)")


def test_so_many_local_steps_reach_the_share_and_one_less_does_not() -> None:
    fleet = survey([host("a", 10, LINK_100M), host("b", 10, LINK_100M)], 5 * MILLION)
    steps = local_steps_for(fleet, Way(strategy="sync", hosts=fleet.names))
    assert steps is not None

    def share(count: int) -> float:
        found = predict(fleet, Way(strategy="local_sgd", hosts=fleet.names, local_steps=count))
        return found.term("compute") / found.seconds

    assert share(steps) >= 0.95 > share(steps - 1)


def test_only_exact_ways_are_chosen_unless_others_are_allowed() -> None:
    fleet = survey([host("a", 40, LINK_100M), host("b", 40, LINK_100M)], 10 * MILLION)
    assert {each.way.strategy for each in choose(fleet).ways} == {"sync", "allreduce"}
    allowed = choose(fleet, Limits(inexact=True))
    assert not allowed.best.way.exact
    assert allowed.best.speed > 1.5 * choose(fleet).best.speed
    assert "not exact" in " ".join(verdicts(fleet, allowed))


def test_what_the_user_fixed_stays() -> None:
    fleet = survey([host("a", 40), host("b", 40, LINK_10M)])
    limits = Limits(strategy="local_sgd", codec="int8", local_steps=7, overlap=True, all_hosts=True)
    ways = {each.way for each in choose(fleet, limits).ways}
    assert {(way.strategy, way.codec, way.local_steps, way.overlap, way.hosts) for way in ways} == {
        ("local_sgd", "int8", 7, True, ("a", "b"))
    }


def test_a_model_that_no_server_can_hold_is_reduced_among_the_workers() -> None:
    fleet = survey([host("a", 40), host("b", 40)], streamable=False)
    assert choose(fleet).best.way.strategy == "allreduce"


def test_a_host_without_the_memory_is_left_out_and_a_job_that_fits_nowhere_is_refused() -> None:
    small = host("small", 400, device_memory=10_000_000)
    fleet = survey([host("a", 40), small], MILLION)
    choice = choose(fleet)
    assert choice.best.way.hosts == ("a",)
    assert any("small/0 lacks" in why for why in choice.refused)
    with pytest.raises(NoRoom, match=r"small/0 lacks 0\.01 GB"):
        choose(survey([small]))


def test_terms_are_corrected_by_what_earlier_runs_found() -> None:
    fleet = survey([host("a", 40), host("b", 40, LINK_100M)], 10 * MILLION)
    slower = dataclasses.replace(fleet, ratios={"exchange": 3.0})
    both = Way(strategy="sync", hosts=("a", "b"))
    assert predict(slower, both).term("exchange") == pytest.approx(3 * predict(fleet, both).term("exchange"))


def test_planning_is_linear_in_hosts_and_of_eight_looks_at_few_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, as seconds depend on the machine: about 500,000 a second (``docs/figures.md`` has the seconds)."""
    carried, carry = 0, Channel.carry

    def counting(channel: Channel, amount: float, at: float) -> tuple[float, float]:
        nonlocal carried
        carried += 1
        return carry(channel, amount, at)

    monkeypatch.setattr(Channel, "carry", counting)

    def work(count: int) -> int:
        nonlocal carried
        carried = 0
        hosts = [host(f"h{n}", 40 + n % 7 * 5) for n in range(count)]
        choose(survey(hosts, 17 * MILLION, 48 * count, ready=BACKWARD))
        return carried

    assert work(8) < 500_000
    assert work(100) < 2.3 * work(50)
