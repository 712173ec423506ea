"""The choice among predictions that are given by hand: which ways are looked at, and which of them is taken."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest

from remote_agent.planning import choice
from remote_agent.planning.choice import Choice, Limits, choose
from remote_agent.planning.sites import DoesNotFit, NoRoom
from remote_agent.planning.survey import Host, Survey
from remote_agent.planning.ways import Prediction, Term, Way
from tests.agent.planning.fleets import host, survey

Seconds = Callable[[Way], float | None]
"""Of a step of a way; None: it does not fit."""

Choosing = Callable[..., tuple[Choice, list[Way]]]


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> Choosing:
    """Choose among predictions that take so many seconds. Returns the choice, and the ways that were predicted."""

    def chosen(
        fleet: Survey,
        seconds: Seconds,
        limits: Limits | None = None,
        *,
        bound: Seconds = lambda _: 0.0,
        refusal: type[DoesNotFit] = DoesNotFit,
    ) -> tuple[Choice, list[Way]]:
        asked = list[Way]()

        def predict(_: Survey, way: Way, *, bound: bool = False, least: Seconds = bound) -> Prediction:
            if not bound:
                asked.append(way)
            takes = (least if bound else seconds)(way)
            if takes is None:
                raise refusal(f"{'+'.join(way.hosts)} lacks memory")
            terms = (Term(name="compute", seconds=takes, source=""),)
            return Prediction(way=way, terms=terms, samples=48, shares={}, busy_s={}, parts={}, bound="")

        monkeypatch.setattr(choice, "predict", predict)
        return choose(fleet, limits), asked

    return chosen


def fleet_of(names: str, devices: int = 1) -> Survey:
    """Without devices a host's gain is not asked for: only what the search itself looks at is predicted."""
    return survey([host(name, 40, devices=devices) for name in names])


def by_hosts(**seconds: float | None) -> Seconds:
    """The same for every strategy; what is not named does not fit."""
    return lambda way: seconds.get("".join(way.hosts))


# --- What is allowed -------------------------------------------------------------------------------------------------


def ways_of(choosing: Choosing, limits: Limits, *, streamable: bool = True) -> list[Way]:
    fleet = survey([host("a", 40)], streamable=streamable)
    found, asked = choosing(fleet, lambda _: 1.0, limits)
    assert {each.way for each in found.ways} == set(asked)
    assert found.considered == len(asked) == len(set(asked))
    return asked


def test_only_exact_ways_are_looked_at_where_nothing_else_is_allowed(choosing: Choosing) -> None:
    a = ("a",)
    assert ways_of(choosing, Limits()) == [Way(strategy="sync", hosts=a), Way(strategy="allreduce", hosts=a)]
    assert ways_of(choosing, Limits(), streamable=False) == [Way(strategy="allreduce", hosts=a)]
    for limits in (Limits(inexact=True), Limits(strategy="local_sgd", inexact=True)):
        assert ways_of(choosing, limits, streamable=False) == [Way(strategy="allreduce", hosts=a)]


def test_every_strategy_with_every_codec_is_looked_at_where_all_is_allowed(choosing: Choosing) -> None:
    codecs = ("fp32", "bf16", "int8")
    expected = {Way(strategy="allreduce", hosts=("a",))}
    for codec in codecs:
        expected.add(Way(strategy="sync", hosts=("a",), codec=codec))
        expected |= {
            Way(strategy="local_sgd", hosts=("a",), codec=codec, local_steps=steps, overlap=overlap)
            for steps, overlap in itertools.product((10, 20, 50), (False, True))
        }
    assert set(ways_of(choosing, Limits(inexact=True))) == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_what_the_user_fixed_is_in_every_way(choosing: Choosing, overlap: bool) -> None:
    limits = Limits(strategy="local_sgd", codec="bf16", shards=2, local_batch=7, local_steps=5, overlap=overlap)
    fixed = Way(
        strategy="local_sgd",
        hosts=("a",),
        codec="bf16",
        shards=2,
        local_batch=7,
        local_steps=5,
        overlap=overlap,
    )
    assert ways_of(choosing, limits) == [fixed]
    free = ways_of(choosing, Limits(codec="int8", shards=2))
    reduced = Way(strategy="allreduce", hosts=("a",))
    assert free == [Way(strategy="sync", hosts=("a",), codec="int8", shards=2), reduced], "it has neither"


# --- Which is taken --------------------------------------------------------------------------------------------------


def test_of_ways_alike_within_the_margin_the_one_with_fewer_hosts_is_taken(choosing: Choosing) -> None:
    def best(alone: float) -> tuple[str, ...]:
        found, _ = choosing(fleet_of("ab"), by_hosts(a=alone, b=9.0, ab=1.0))
        return found.best.way.hosts

    assert best(1.02) == ("a",)
    assert best(1.04) == ("a", "b")


def test_of_ways_alike_the_exact_one_then_sync_then_the_faster_is_taken(choosing: Choosing) -> None:
    def best(limits: Limits, **seconds: float) -> tuple[str, str]:
        def takes(way: Way) -> float:
            return seconds.get(f"{way.strategy}_{way.codec}", 9.0)

        found, _ = choosing(fleet_of("a"), takes, limits)
        assert [each.seconds for each in found.ways] == sorted(each.seconds for each in found.ways)
        assert found.best in found.ways
        return found.best.way.strategy, found.best.way.codec

    inexact = Limits(inexact=True)
    assert best(inexact, sync_bf16=1.0, allreduce_fp32=1.02) == ("allreduce", "fp32")
    assert best(inexact, sync_bf16=1.0, allreduce_fp32=1.04) == ("sync", "bf16")
    assert best(inexact, allreduce_fp32=1.0, sync_fp32=1.02) == ("sync", "fp32")
    assert best(inexact, allreduce_fp32=1.0, sync_fp32=1.04) == ("allreduce", "fp32")


def test_the_fastest_host_alone_and_all_of_them_are_told_of(choosing: Choosing) -> None:
    takes = by_hosts(a=4.0, b=2.0, c=3.0, ab=1.5, bc=1.0, abc=1.8)
    found, _ = choosing(fleet_of("abc"), takes)
    assert found.best.way.hosts == ("b", "c")
    assert found.alone is not None
    assert found.everything is not None
    assert (found.alone.way.hosts, found.everything.way.hosts) == (("b",), ("a", "b", "c"))
    assert found.refused == ("a+c lacks memory",)
    none, _ = choosing(fleet_of("abc"), by_hosts(bc=1.0))
    assert (none.alone, none.everything) == (None, None)


@pytest.mark.parametrize("refusal", [DoesNotFit, NoRoom])
def test_a_job_that_fits_nowhere_is_refused_as_its_ways_were(choosing: Choosing, refusal: type[DoesNotFit]) -> None:
    with pytest.raises(DoesNotFit, match=r"^a lacks memory; b lacks memory; a\+b lacks memory$") as caught:
        choosing(fleet_of("ab"), by_hosts(), refusal=refusal)
    assert type(caught.value) is refusal


def test_what_each_host_gains_is_the_step_with_it_over_that_without(choosing: Choosing) -> None:
    storage = Host(name="storage", devices=())
    hosts = (storage, *fleet_of("abcd").hosts)
    takes = by_hosts(a=4.0, b=2.0, ab=1.0, abc=1.25)
    found, _ = choosing(dataclasses.replace(fleet_of(""), hosts=hosts), takes)
    assert found.best.way.hosts == ("a", "b")
    # Without a: b's 2 s; without b: 4 s; with c 1.25 s; with d it does not fit. What computes nothing is left out.
    assert found.gains == {"a": 1.0, "b": 3.0, "c": pytest.approx(-0.2), "d": -math.inf}
    needed, _ = choosing(fleet_of("abc"), by_hosts(ab=1.0, a=4.0))
    assert needed.gains["a"] is None, "b by itself does not fit"
    assert choosing(fleet_of("a"), by_hosts(a=1.0))[0].gains == {"a": None}


def test_gains_are_found_for_up_to_64_hosts(choosing: Choosing) -> None:
    def gains(count: int) -> int:
        fleet = survey([host(f"h{number}", 40) for number in range(count)])
        return len(choosing(fleet, lambda way: 1 / len(way.hosts))[0].gains)

    assert (gains(64), gains(65)) == (64, 0)


# --- Which sets of hosts are looked at -------------------------------------------------------------------------------


def sets(asked: list[Way], strategy: str, codec: str = "fp32") -> list[tuple[str, ...]]:
    return [way.hosts for way in asked if (way.strategy, way.codec) == (strategy, codec)]


@pytest.mark.parametrize("count", [3, 8])
def test_of_up_to_eight_hosts_every_subset_is_looked_at(choosing: Choosing, count: int) -> None:
    fleet = fleet_of("abcdefgh"[:count], devices=0)
    _, asked = choosing(fleet, lambda way: 1 / len(way.hosts))
    expected = [each for size in range(1, count + 1) for each in itertools.combinations(fleet.names, size)]
    assert sets(asked, "allreduce") == expected
    assert sorted(sets(asked, "sync")) == sorted(expected), "no bound says that one can't be the shortest"
    _, asked = choosing(fleet, lambda way: 1 / len(way.hosts), Limits(all_hosts=True))
    assert sets(asked, "sync") == sets(asked, "allreduce") == [fleet.names]


def test_a_set_whose_lower_bound_is_longer_than_a_known_step_is_not_predicted(choosing: Choosing) -> None:
    takes = by_hosts(a=2.0, b=2.0, ab=2.0, ac=9.0, bc=9.0, abc=9.0)
    bounds = by_hosts(a=1.0, b=2.07, ab=2.05, bc=2.5, ac=0.5, abc=0.6)
    found, asked = choosing(fleet_of("abc", devices=0), takes, bound=bounds)
    # In the order of their bounds: 9 s and 9 s are no limit; 2 s is, and what is bound within 3 % of it may be as good.
    searched = [("a", "c"), ("a", "b", "c"), ("a",), ("a", "b")]
    assert sets(asked, "sync") == [*searched, ("b",), ("c",)], "each by itself is told of at the end"
    assert found.refused == ("c lacks memory",)
    assert found.best.way.hosts == ("a",)


def test_inexact_ways_are_looked_at_with_hosts_that_suit_the_ways_before_them_all_or_one(choosing: Choosing) -> None:
    takes = by_hosts(a=4.0, b=4.0, c=4.0, ab=2.0, bc=1.0, ac=2.0, abc=3.0)
    _, asked = choosing(fleet_of("abc"), takes, Limits(inexact=True))
    likely = {("b", "c"), ("a", "b", "c"), ("a",), ("b",), ("c",)}
    assert len(sets(asked, "sync")) == len(sets(asked, "allreduce")) == 7
    assert set(sets(asked, "local_sgd")) == set(sets(asked, "sync", "int8")) == likely
    _, asked = choosing(fleet_of("abc"), takes, Limits(strategy="sync", inexact=True))
    assert (len(sets(asked, "sync")), len(sets(asked, "sync", "bf16"))) == (7, 5), (
        "the first one's hosts suit the others"
    )
    # Where the user left two ways or fewer, all sets are.
    _, asked = choosing(fleet_of("abc"), takes, Limits(codec="int8"))
    assert len(sets(asked, "sync", "int8")) == 7
    limits = Limits(strategy="local_sgd", codec="fp32", local_steps=5)
    assert len(sets(choosing(fleet_of("abc"), takes, limits)[1], "local_sgd")) == 14, "with overlap and without"


def ranked(choosing: Choosing, hosts: list[Host], speeds: dict[str, float]) -> list[tuple[str, ...]]:
    """The sets of hosts that are looked at, where one of them by itself has these samples a second, or does not fit."""

    def takes(way: Way) -> float | None:
        if len(way.hosts) > 1:
            return 1.0
        return 48 / speeds[way.hosts[0]] if speeds[way.hosts[0]] else None

    _, asked = choosing(survey(hosts), takes, Limits(strategy="allreduce"))
    return list(dict.fromkeys(way.hosts for way in asked))[len(hosts) :]


def order_of(found: list[tuple[str, ...]], first: str) -> list[str]:
    """The hosts, as each larger set has one more."""
    order = [first]
    for each in found:
        (added,) = set(each) - set(order)
        order.append(added)
    return order


def test_of_more_hosts_the_fastest_is_joined_by_those_that_add_most(choosing: Choosing) -> None:
    speeds = {f"h{number}": 10.0 + number for number in range(10)}
    links = {"h3": 5e6, "h9": 1e6, "h1": 1e9}  # of the others 1e8; h8's is half duplex, h5's slow in one direction
    hosts = [host(name, 40, links.get(name, 1e8), devices=0) for name in speeds]
    hosts[8] = dataclasses.replace(hosts[8], both=1.5e8)
    hosts[5] = dataclasses.replace(hosts[5], down=1e7)
    speeds["h6"] = 0.0  # it does not fit alone
    found = ranked(choosing, hosts, speeds)
    # Speeds times a link's part of the usual 1e8: h8 18 * 3 / 4, h5 15 / 10, h3 13 / 20, h1 no more than 11.
    expected = ["h9", "h7", "h4", "h8", "h2", "h1", "h0", "h5", "h3", "h6"]
    assert order_of(found, "h9") == expected
    assert all(list(each) == sorted(each) for each in found), "in the survey's order"


def test_hosts_whose_links_are_not_known_are_joined_by_speed(choosing: Choosing) -> None:
    speeds = {f"h{number}": 10.0 + number for number in range(10)}
    unknown = [host(name, 40, 0.0, devices=0) for name in speeds]
    assert order_of(ranked(choosing, unknown, speeds), "h9") == [f"h{number}" for number in range(9, -1, -1)]
    some = [*unknown[:7], *(host(f"h{number}", 40, 1e8, devices=0) for number in (7, 8, 9))]
    assert order_of(ranked(choosing, some, speeds), "h9") == [f"h{number}" for number in range(9, -1, -1)]


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(9, [*range(2, 10)]), (10, [*range(2, 11)]), (15, [*range(2, 11), 15]), (40, [*range(2, 11), 15, 22, 33, 40])],
)
def test_of_many_hosts_ever_larger_sets_are_looked_at(choosing: Choosing, count: int, sizes: list[int]) -> None:
    fleet = survey([host(f"h{number:02}", 40, devices=0) for number in range(count)])
    _, asked = choosing(fleet, lambda way: 1 / len(way.hosts), Limits(strategy="allreduce"))
    assert [len(each) for each in list(dict.fromkeys(sets(asked, "allreduce")))[count:]] == sizes


def test_of_more_hosts_single_ones_are_added_and_left_out_while_a_step_gets_shorter(choosing: Choosing) -> None:
    fleet = survey([host(f"h{number}", 40) for number in range(10)])
    singles = {f"h{number}": 10.0 + number for number in range(10)}  # the order in which sets grow: h0, h1, h2 ...
    sets_s = {("h0", "h1", "h2"): 4.0, ("h0", "h2"): 3.0, ("h0", "h2", "h9"): 2.0, ("h0", "h2", "h8", "h9"): 1.99}

    def takes(way: Way) -> float:
        return singles[way.hosts[0]] if len(way.hosts) == 1 else sets_s.get(way.hosts, 9.0)

    found, _ = choosing(fleet, takes, Limits(strategy="allreduce"))
    assert found.best.way.hosts == ("h0", "h2", "h9"), "what h8 would add is less than the margin"
    assert found.best in found.ways
    assert found.gains["h9"] == pytest.approx(0.5)
    kept, _ = choosing(fleet, takes, Limits(strategy="allreduce", all_hosts=True))
    assert kept.best.way.hosts == fleet.names
