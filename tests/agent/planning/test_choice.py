"""Which way is chosen, and what is said about it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_agent.planning.channels import Channel
from remote_agent.planning.choice import MARGIN, choose
from remote_agent.planning.simulator import predict
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
    assert choose(fleet).best.way.hosts == ("mercer",)


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


def test_so_many_local_steps_reach_the_share_and_one_less_does_not() -> None:
    fleet = survey([host("a", 10, LINK_100M), host("b", 10, LINK_100M)], 5 * MILLION)
    steps = local_steps_for(fleet, Way(strategy="sync", hosts=fleet.names))
    assert steps is not None

    def share(count: int) -> float:
        found = predict(fleet, Way(strategy="local_sgd", hosts=fleet.names, local_steps=count))
        return found.term("compute") / found.seconds

    assert share(steps) >= 0.95 > share(steps - 1)


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
