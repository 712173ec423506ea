"""A choice in words and figures: what to use, what each host adds, what limits, and what would help. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from remote_agent.planning.blocks import LOSSY
from remote_agent.planning.choice import MARGIN, Choice
from remote_agent.planning.simulator import tried
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import (
    ALLREDUCE,
    CALLS,
    COMPUTE,
    EXCHANGE,
    HANDLING,
    LOCAL,
    OTHER,
    SYNC,
    UPDATE,
    Prediction,
    Way,
)
from remote_agent.wording import number

SHARE_OF_SUM = 0.95
"""Of the summed speed that a number of local steps is proposed for."""

MAX_LOCAL_STEPS = 1000

_TERMS = {
    EXCHANGE: "the exchange of gradients and weights",
    HANDLING: "packing and summing gradients",
    UPDATE: "the optimizer's step",
    CALLS: "calls between processes",
    OTHER: "something that was not predicted",
}
"""What a step does beside computing, for people."""

MOST_NAMED = 5
"""Of more hosts of which the same is said, one line tells of all."""


def seconds(value: float) -> str:
    """A time as people write it: ``18.6 s``, ``240 ms``."""
    if value < 5e-7:
        return "0 ms"
    return f"{number(value)} s" if value >= 0.9995 else f"{number(value * 1e3)} ms"


def rate(value: float) -> str:
    """Of samples a second: ``24.3``, ``12,300``."""
    return number(value)


def names(hosts: Sequence[str]) -> str:
    """``a, b and c``; of many the first and how many more."""
    if len(hosts) > 8:
        return f"{', '.join(hosts[:6])} and {len(hosts) - 6} more"
    return " and ".join(filter(None, (", ".join(hosts[:-1]), hosts[-1])))


def verdicts(survey: Survey, choice: Choice) -> tuple[str, ...]:
    """What the user should know, the most important first."""
    return (*_use(survey, choice), *_hosts(choice), *_limit(survey, choice), *_shared(survey))


def left_out(choice: Choice) -> dict[str, str]:
    """Why each host that has no part in the best way has none."""
    others = {host: gain for host, gain in choice.gains.items() if host not in choice.best.way.hosts}
    return {host: _why_not(gain) for host, gain in others.items()}


def _use(survey: Survey, choice: Choice) -> Iterator[str]:
    best, everything = choice.best, choice.everything
    alone = len(best.way.hosts) == 1
    if alone and everything is not None and len(survey.hosts) > 1:
        others, count = _same_samples(everything, best), len(survey.hosts)
        against = f"{seconds(others)} with {f'all {count}' if count > 2 else 'both'} hosts"
        is_less = others < best.seconds  # though by less than the margin
        against = f"; {against} is within the prediction's error" if is_less else f" against {against}"
        yield f"use {best.way.hosts[0]} alone: {seconds(best.seconds)} a step{against}"
    elif alone:
        yield f"use {best.way.hosts[0]}: {seconds(best.seconds)} a step"
    else:
        yield (
            f"use {best.way.title} on {names(best.way.hosts)}: {seconds(best.seconds)} a step of"
            f" {best.samples} samples, {rate(best.speed)} samples/s"
        )
    if not best.way.exact:
        yield "it is not exact: what is predicted is samples per second, not how soon a loss is reached"


def _same_samples(other: Prediction, best: Prediction) -> float:
    """The other's seconds for as many samples as a step of the best has."""
    return best.samples / other.speed


def _hosts(choice: Choice) -> Iterator[str]:
    """What each host adds; hosts of which the same is to be said are named together."""
    told: dict[str, list[str]] = {}
    for host, gain in choice.gains.items():
        said = _about(gain, inside=host in choice.best.way.hosts, alone=len(choice.best.way.hosts) == 1)
        if said:
            told.setdefault(said, []).append(host)
    for said, hosts in told.items():
        for group in [hosts] if len(hosts) > MOST_NAMED else [[host] for host in hosts]:
            yield f"{'each of ' if len(group) > 1 else ''}{names(group)} {said}"


def _about(gain: float | None, *, inside: bool, alone: bool) -> str:
    if inside:
        if alone:
            return ""
        if gain is None:
            return "is needed: without it the job does not fit"
        if gain >= MARGIN:
            return f"adds {100 * gain:.0f}%: use it"
        if gain <= -MARGIN:
            return f"slows the step by {_slower(gain)}: leave it out"
        return f"makes little difference ({100 * gain:+.1f}%)"
    if gain is None or gain <= -math.inf:
        return f"is left out: {_why_not(gain)}"
    return f"{_why_not(gain)}: leave it out"


def _why_not(gain: float | None) -> str:
    if gain is None or gain <= -math.inf:
        return "with it the job does not fit"
    if gain <= -0.005:
        return f"would slow the step by {_slower(gain)}"
    if gain < 0.0005:
        return "would make no difference"
    return f"would add {100 * gain:.1f}% only, less than the prediction's error"


def _slower(gain: float) -> str:
    """By how much longer a step is with a host, of the time without it."""
    return f"{100 * (1 / (1 + gain) - 1):,.0f}%"


def _limit(survey: Survey, choice: Choice) -> Iterator[str]:
    best = choice.best
    if len(best.way.hosts) == 1:
        return
    exposed, beside = best.seconds - best.term(COMPUTE), best.beside
    if beside is None or exposed < 0.2 * best.seconds:
        yield f"{best.bound} is the limit"
        return
    if not best.waits_for_link:
        part = f"{seconds(beside.seconds)} of {seconds(best.seconds)}"
        yield f"beside computing, most time goes to {_TERMS.get(beside.name, beside.name)}: {part}"
        return
    words = [f"{best.link} limits: {seconds(best.link_s)} of {seconds(best.seconds)}"]
    for codec in LOSSY:
        strategy = SYNC if best.way.strategy == ALLREDUCE else best.way.strategy
        shorter = tried(survey, dataclasses.replace(best.way, strategy=strategy, codec=codec))
        if (
            best.way.codec == "fp32"
            and survey.work.streamable
            and shorter is not None
            and shorter.speed > 1.1 * best.speed
        ):
            words.append(f"{codec} would make it {seconds(shorter.seconds)} (not exact)")
    steps = local_steps_for(survey, best.way)
    if best.way.strategy != LOCAL and steps is not None:
        words.append(f"{steps} local steps reach {100 * SHARE_OF_SUM:.0f}% of the summed speed (not exact)")
    yield "; ".join(words)


def _shared(survey: Survey) -> Iterator[str]:
    """What links were found to share, which fewer machines would have more of."""
    media: dict[str, list[str]] = {}
    for host in survey.hosts:
        if host.both or host.medium in survey.media:
            media.setdefault(host.medium or host.name, []).append(host.name)
    for medium, hosts in media.items():
        if len(hosts) == 1:
            both = survey.media.get(medium) or next(host.both for host in survey.hosts if host.name == hosts[0])
            yield f"the link of {hosts[0]} carries one direction at a time, {number(both / 1e6)} MB/s"
            continue
        carries = f"{number(survey.media[medium] / 1e6)} MB/s, sent and received"
        yield f"{names(hosts)} share one medium of {carries}: the fewer use it, the more each has"


def local_steps_for(survey: Survey, way: Way) -> int | None:
    """The fewest local steps of a round that reach :data:`SHARE_OF_SUM`; None: too many, or it can't be."""
    most = 1
    while most <= MAX_LOCAL_STEPS:
        found = tried(survey, dataclasses.replace(way, strategy=LOCAL, codec="fp32", local_steps=most))
        if found is None:
            return None
        if found.term(COMPUTE) >= SHARE_OF_SUM * found.seconds:
            return most
        share = found.term(COMPUTE) / found.seconds
        # The exchange is the same whatever the round's length: what is missing can be told.
        wanted = most * (1 / share - 1) * SHARE_OF_SUM / (1 - SHARE_OF_SUM) if share > 0 else 2 * most
        most = max(most + 1, math.ceil(wanted))
    return None
