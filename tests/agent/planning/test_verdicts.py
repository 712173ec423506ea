"""What a plan says in words, from choices that are given: what to use, what each host adds, what limits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from remote_agent.planning.choice import Choice
from remote_agent.planning.survey import Survey
from remote_agent.planning.verdicts import local_steps_for, names, rate, seconds, verdicts
from remote_agent.planning.ways import COMPUTE, EXCHANGE, HANDLING, Prediction, Term, Way
from tests.agent.planning.fleets import host, survey

FLEET = survey([host("a", 40), host("b", 40), host("c", 4)])
AB, ALL = ("a", "b"), ("a", "b", "c")


def found(
    hosts: tuple[str, ...] = AB, terms: dict[str, float] | None = None, *, samples: int = 48, **more: Any
) -> Prediction:
    way = {key: more.pop(key) for key in ("strategy", "codec", "local_steps", "overlap") if key in more}
    known = {"bound": "computing on a/0", "link": "the link of a", "link_s": 0.0} | more
    return Prediction(
        way=Way(strategy=str(way.pop("strategy", "sync")), hosts=hosts, **way),
        terms=tuple(Term(name=name, seconds=each, source="") for name, each in (terms or {COMPUTE: 2.0}).items()),
        samples=samples,
        shares={},
        busy_s={},
        parts={},
        **known,
    )


def choice(
    best: Prediction, gains: dict[str, float | None] | None = None, everything: Prediction | None = None
) -> Choice:
    return Choice(
        best=best, ways=(best,), gains=gains or {}, alone=None, everything=everything, refused=(), considered=1
    )


def said(best: Prediction, of: Survey = FLEET, **more: Any) -> tuple[str, ...]:
    return verdicts(of, choice(best, **more))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0 ms"),
        (2e-16, "0 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (18.64, "18.6 s"),
        (99.96, "100 s"),
        (12345.0, "12,345 s"),
    ],
)
def test_a_time_has_the_unit_that_fits(value: float, words: str) -> None:
    assert seconds(value) == words


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ("abc", "a, b and c"),
        ("abcdefgh", "a, b, c, d, e, f, g and h"),
        ("abcdefghi", "a, b, c, d, e, f and 3 more"),
    ],
)
def test_hosts_are_named_and_of_many_the_first(hosts: str, words: str) -> None:
    assert names(tuple(hosts)) == words


def test_a_speed_has_three_digits_or_all_before_the_point() -> None:
    assert [rate(value) for value in (0.01234, 24.32, 99.96, 1234.5)] == ["0.0123", "24.3", "100", "1,234"]


def test_what_to_use_is_said_first() -> None:
    assert said(found())[0] == "use sync on a and b: 2 s a step of 48 samples, 24 samples/s"
    assert said(found(("a",)), everything=None)[0] == "use a: 2 s a step"
    one = survey([host("a", 40)])
    assert said(found(("a",)), of=one, everything=found(("a",)))[0] == "use a: 2 s a step"
    other = found(ALL, {COMPUTE: 8.0}, samples=96)  # twice as many samples in a step
    assert said(found(("a",)), everything=other)[0] == "use a alone: 2 s a step against 4 s with all 3 hosts"
    near = found(AB, {COMPUTE: 1.95})
    two = survey([host("a", 40), host("b", 40)])
    assert said(found(("a",)), of=two, everything=near)[0] == (
        "use a alone: 2 s a step; 1.95 s with both hosts is within the prediction's error"
    )


def test_a_way_that_is_not_exact_is_said_to_be_none() -> None:
    note = "it is not exact: what is predicted is samples per second, not how soon a loss is reached"
    assert note in said(found(strategy="local_sgd", local_steps=10, overlap=True))
    assert said(found(strategy="local_sgd", local_steps=10, overlap=True))[0].startswith(
        "use local_sgd, 10 local steps, overlap on a and b"
    )
    assert note in said(found(codec="int8"))
    assert note not in said(found())


@pytest.mark.parametrize(
    ("name", "gain", "words"),
    [
        ("b", 0.5, "b adds 50%: use it"),
        ("b", 0.03, "b adds 3%: use it"),
        ("b", 0.0299, "b makes little difference (+3.0%)"),
        ("b", -0.01, "b makes little difference (-1.0%)"),
        ("b", None, "b is needed: without it the job does not fit"),
        ("c", 0.02, "c would add 2.0% only, less than the prediction's error: leave it out"),
        ("b", -0.4, "b slows the step by 67%: leave it out"),
        ("c", 0.0, "c would make no difference: leave it out"),
        ("c", -0.004, "c would make no difference: leave it out"),
        ("c", -0.2, "c would slow the step by 25%: leave it out"),
        ("c", None, "c is left out: with it the job does not fit"),
        ("c", -math.inf, "c is left out: with it the job does not fit"),
    ],
)
def test_what_a_host_adds_is_a_sentence(name: str, gain: float | None, words: str) -> None:
    assert said(found(), gains={name: gain})[1] == words


def test_a_host_that_is_used_alone_adds_nothing_to_itself() -> None:
    assert [line for line in said(found(("a",)), gains={"a": 0.5}) if "adds" in line] == []


def test_hosts_of_which_the_same_is_said_are_named_together_where_they_are_many() -> None:
    many = {f"h{number}": 0.5 for number in range(6)}
    best = found(tuple(many))
    assert said(best, gains=many)[1] == "each of h0, h1, h2, h3, h4 and h5 adds 50%: use it"
    five = dict(list(many.items())[:5])
    assert [line for line in said(best, gains=five) if "adds" in line] == [f"{name} adds 50%: use it" for name in five]


def test_what_limits_is_computing_a_link_or_what_else_takes_the_time() -> None:
    computing = found(terms={COMPUTE: 2.0, EXCHANGE: 0.3})
    assert said(computing)[-1] == "computing on a/0 is the limit"
    handling = found(terms={COMPUTE: 2.0, EXCHANGE: 0.3, HANDLING: 0.7}, link_s=0.3)
    assert said(handling)[-1] == "beside computing, most time goes to packing and summing gradients: 700 ms of 3 s"
    idle = found(terms={COMPUTE: 2.0, EXCHANGE: 1.0}, link_s=0.4)
    assert said(idle)[-1] == "beside computing, most time goes to the exchange of gradients and weights: 1 s of 3 s"
    link = found(terms={COMPUTE: 2.0, EXCHANGE: 1.0}, link_s=0.5)
    assert said(link)[-1].startswith("the link of a limits: 500 ms of 3 s")
    assert said(found(terms={COMPUTE: 4.0, EXCHANGE: 1.0}, link_s=1.0))[-1].startswith("the link of a limits")
    assert said(found(terms={COMPUTE: 4.1, EXCHANGE: 1.0}, link_s=1.0))[-1] == "computing on a/0 is the limit"
    assert len(said(found(("a",)))) == 1, "one host waits for no link"


def test_where_a_link_limits_it_is_said_which_ways_would_be_faster() -> None:
    slow = survey([host("a", 400, 1e6), host("b", 400, 1e6)])
    exact = found(terms={COMPUTE: 0.1, EXCHANGE: 4.0}, link_s=4.0)
    line = said(exact, of=slow)[-1]
    assert "bf16 would make it" in line
    assert "int8 would make it" in line
    faster = survey([host("a", 40, 1e7), host("b", 40, 1e7)])
    assert "local steps reach 95% of the summed speed (not exact)" in said(exact, of=faster)[-1]
    ring = dataclasses.replace(exact, way=dataclasses.replace(exact.way, strategy="allreduce"))
    assert "int8 would make it" in said(ring, of=slow)[-1], "as sync, since a ring sends fp32 only"
    unstreamable = survey([host("a", 400, 1e6), host("b", 400, 1e6)], streamable=False)
    assert "would make it" not in said(exact, of=unstreamable)[-1]


def test_the_fewest_local_steps_that_hide_a_link_are_found() -> None:
    way = Way(strategy="sync", hosts=AB)
    assert local_steps_for(survey([host("a", 40, 1e15), host("b", 40, 1e15)]), way) == 1
    assert local_steps_for(survey([host("a", 40, 1e3), host("b", 40, 1e3)]), way) is None, "more than a thousand"
    full = survey([host("a", 40, device_memory=1), host("b", 40)])
    assert local_steps_for(full, way) is None
