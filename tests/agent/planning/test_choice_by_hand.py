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
    found, _ = choosing(fleet_of("ab"), lambda _: 1.0, Limits(all_hosts=True))
    assert {each.way.hosts for each in found.ways} == {("a", "b")}


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
