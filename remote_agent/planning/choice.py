"""Chooses the fastest way to train, and its hosts, by predicting every way that the user allows. Pure.

Up to :data:`MAX_SUBSETS` hosts all subsets are tried, those with the shortest lower bound first, until no other can be
the shortest. Of more, hosts are ranked by what they add beside the fastest one, and the first 1, 2, 3, ... of them are
tried; so the time grows with the number of hosts, not with 2 to its power. Of what was found each single host is then
left out, or added, as long as a step gets shorter by that.
Of two ways whose times differ by less than :data:`MARGIN` the one with fewer hosts is taken, then the simpler one: a
difference below the prediction's own error says nothing. ``sync`` counts as the simplest: most faults cost it least.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from remote_agent.planning.blocks import LOSSY
from remote_agent.planning.simulator import predict
from remote_agent.planning.sites import DoesNotFit, NoRoom
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import ALLREDUCE, LOCAL, SYNC, Prediction, Way
from remote_agent.settings import TrainingConfig
from remote_agent.strategies import AUTO

MARGIN = 0.03
"""Part of a step's time below which a predicted difference is none."""

MAX_SUBSETS = 8
"""Up to so many hosts all subsets are tried."""

LOCAL_STEPS = (10, 20, 50)
"""Lengths of a round of ``local_sgd`` that are tried where the user fixed none."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the user fixed, or allowed.

    Attributes:
        strategy: the only one that is considered; empty: all that are allowed.
        inexact: ways with other weights than those of one process are allowed.
        codec: the only one; empty: fp32, and with ``inexact`` others too.
        shards: of the parameter server; 0: as many as pay.
        local_steps: of a round; 0: any of :data:`LOCAL_STEPS`.
        local_batch: samples of a local step; 0: the batch over all devices.
        overlap: of rounds; None: either.
    """

    strategy: str = ""
    inexact: bool = False
    codec: str = ""
    shards: int = 0
    local_steps: int = 0
    local_batch: int = 0
    overlap: bool | None = None
    all_hosts: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was found.

    Attributes:
        ways: the best of each strategy and codec, the fastest first; ``best`` is among them.
        gains: for each host that computes, how much shorter (in part of the time without it) a step is with it, in the
            best way; below 0: it is longer. None: without it the job does not fit.
        alone: the fastest host by itself; None: the job fits into none.
        everything: the best way with all hosts; None: it does not fit.
        refused: ways that do not fit, and why.
        considered: how many ways were predicted.
    """

    best: Prediction
    ways: tuple[Prediction, ...]
    gains: dict[str, float | None]
    alone: Prediction | None
    everything: Prediction | None
    refused: tuple[str, ...]
    considered: int


def choose(survey: Survey, limits: Limits | None = None) -> Choice:
    """The fastest way; raises DoesNotFit if the job fits into no set of hosts."""
    search = _Search(survey, limits or Limits())
    found: list[Prediction] = []
    templates = list(_templates(survey, search.limits))
    hosts = list(search.subsets(templates[0]))
    likely = hosts  # of many variants: the hosts that suit the exact ways, all, or one
    for template in templates:
        known = search.shortest(template, hosts if template.exact or len(templates) <= 2 else likely)
        best = search.preferred(known)
        found += [best] if best is not None else []
        likely = list(dict.fromkeys((*(each.way.hosts for each in found), survey.names, *_alone(hosts))))
    if not found:
        kind = NoRoom if search.lacks_room else DoesNotFit
        raise kind("; ".join(search.refused) or "no device is there")
    best = search.preferred(found)
    assert best is not None, "there is one"
    found.remove(best)
    best, gains = _improved(search, survey, best)
    found.append(best)
    found.sort(key=lambda each: -each.speed)
    singles = [search.of(dataclasses.replace(best.way, hosts=names)) for names in _alone(hosts)]
    alone = max((each for each in singles if each is not None), key=lambda each: each.speed, default=None)
    return Choice(
        best=best,
        ways=tuple(found),
        gains=gains,
        alone=alone,
        everything=search.of(dataclasses.replace(best.way, hosts=survey.names)),
        refused=search.refused,
        considered=search.considered,
    )


def _alone(hosts: Sequence[tuple[str, ...]]) -> Sequence[tuple[str, ...]]:
    return [names for names in hosts if len(names) == 1][:MAX_SUBSETS]


class _Search:
    """Predicts each way once."""

    def __init__(self, survey: Survey, limits: Limits) -> None:
        self._survey, self.limits = survey, limits
        self._known: dict[Way, Prediction | None] = {}
        self._refused: dict[str, DoesNotFit] = {}

    @property
    def refused(self) -> tuple[str, ...]:
        return tuple(self._refused)

    @property
    def lacks_room(self) -> bool:
        """Whether a way was refused because the model is too large."""
        return any(isinstance(error, NoRoom) for error in self._refused.values())

    @property
    def considered(self) -> int:
        return len(self._known)

    def of(self, way: Way) -> Prediction | None:
        """The prediction; None: it does not fit."""
        if way not in self._known:
            try:
                self._known[way] = predict(self._survey, way)
            except DoesNotFit as error:
                self._known[way] = None
                self._refused[str(error)] = error
        return self._known[way]

    def shortest(self, template: Way, hosts: Sequence[tuple[str, ...]]) -> list[Prediction]:
        """Predictions of a way with these sets of hosts: all that may be the best within the margin."""
        ways = [dataclasses.replace(template, hosts=names) for names in hosts]
        if template.strategy != SYNC:
            return [each for each in map(self.of, ways) if each is not None]
        bounds = [(found.seconds, way) for way in ways if (found := self._bound(way)) is not None]
        known: list[Prediction] = []
        for least, way in sorted(bounds, key=lambda each: each[0]):
            if known and least > (1 + MARGIN) * min(each.seconds for each in known):
                break
            found = self.of(way)
            known += [found] if found is not None else []
        return known

    def _bound(self, way: Way) -> Prediction | None:
        try:
            return predict(self._survey, way, bound=True)
        except DoesNotFit as error:
            self._refused[str(error)] = error
            return None

    def subsets(self, template: Way) -> Iterator[tuple[str, ...]]:
        """Sets of hosts that may be the best; in each, hosts are in the survey's order."""
        names = self._survey.names
        if self.limits.all_hosts:
            yield names
        elif len(names) <= MAX_SUBSETS:
            for count in range(1, len(names) + 1):
                yield from itertools.combinations(names, count)
        else:
            yield from self._ranked(template)

    def _ranked(self, template: Way) -> Iterator[tuple[str, ...]]:
        names = self._survey.names
        singles = {name: self.of(dataclasses.replace(template, hosts=(name,))) for name in names}
        speed = {name: each.speed if each is not None else 0.0 for name, each in singles.items()}
        known = sorted(host.rate for host in self._survey.hosts if math.isfinite(host.rate))
        typical = known[len(known) // 2] if known else 0.0
        first = max(names, key=speed.__getitem__)
        # What a host adds is its speed, unless its link is slower than that of the others.
        slow = {host.name: host.rate / typical for host in self._survey.hosts if host.rate < typical}
        worth = {name: speed[name] * slow.get(name, 1.0) for name in names}
        ranked = [first, *sorted((name for name in names if name != first), key=lambda name: -worth[name])]
        sizes = sorted({*range(1, MAX_SUBSETS + 2), *_log_spaced(len(names)), len(names)})
        for size in sizes:
            chosen = set(ranked[:size])
            yield tuple(name for name in names if name in chosen)

    def preferred(self, found: Iterable[Prediction]) -> Prediction | None:
        """The fastest; of those that are as fast within the margin, the one with the fewest hosts."""
        known = list(found)
        if not known:
            return None
        best = max(known, key=lambda each: each.speed)
        alike = [each for each in known if each.speed * (1 + MARGIN) >= best.speed]
        return min(
            alike, key=lambda each: (not each.way.exact, len(each.way.hosts), each.way.strategy != SYNC, -each.speed)
        )


def _log_spaced(most: int) -> list[int]:
    sizes, size = [], 10.0
    while size < most:
        sizes.append(int(size))
        size *= 1.5
    return sizes


def _templates(survey: Survey, limits: Limits) -> Iterator[Way]:
    """All ways that the limits allow, without hosts."""
    base = Way(strategy=SYNC, hosts=(), shards=limits.shards, local_batch=limits.local_batch)
    usable = (SYNC, ALLREDUCE, *((LOCAL,) if limits.inexact else ())) if not limits.strategy else ()
    for strategy in usable or (limits.strategy,):
        if not survey.work.streamable and strategy != ALLREDUCE:
            if limits.strategy:
                strategy = ALLREDUCE
            else:
                continue
        way = dataclasses.replace(base, strategy=strategy)
        if strategy == ALLREDUCE:
            yield dataclasses.replace(way, codec="fp32", shards=0)
            continue
        codecs = (limits.codec,) if limits.codec else ("fp32", *(LOSSY if limits.inexact else ()))
        for codec in codecs:
            if strategy != LOCAL:
                yield dataclasses.replace(way, codec=codec)
                continue
            overlaps = (False, True) if limits.overlap is None else (limits.overlap,)
            lengths = (limits.local_steps,) if limits.local_steps else LOCAL_STEPS
            for length, overlap in itertools.product(lengths, overlaps):
                yield dataclasses.replace(way, codec=codec, local_steps=length, overlap=overlap)


def _improved(search: _Search, survey: Survey, best: Prediction) -> tuple[Prediction, dict[str, float | None]]:
    """The way with hosts added or left out one by one, while that makes a step shorter; what each host gains there."""
    while True:
        gains = _gains(search, survey, best)
        inside = set(best.way.hosts)
        # By how much faster a step is with the host added, or left out.
        by = {
            name: (1 / (1 + gain) if name in inside else 1 + gain) for name, gain in gains.items() if gain is not None
        }
        change = max(by, key=by.__getitem__, default="")
        if search.limits.all_hosts or not change or by[change] <= 1 + MARGIN:
            return best, gains
        names = tuple(name for name in survey.names if (name in inside) != (name == change))
        better = search.of(dataclasses.replace(best.way, hosts=names))
        assert better is not None, "its speed is known"
        best = better


def _gains(search: _Search, survey: Survey, best: Prediction) -> dict[str, float | None]:
    gains: dict[str, float | None] = {}
    inside = set(best.way.hosts)
    for host in survey.hosts:
        if not host.devices or len(survey.hosts) > 64:
            continue
        others = inside - {host.name} if host.name in inside else inside | {host.name}
        names = tuple(name for name in survey.names if name in others)
        other = search.of(dataclasses.replace(best.way, hosts=names)) if names else None
        if host.name in inside:
            gains[host.name] = best.speed / other.speed - 1 if other is not None else None
        elif other is not None:
            gains[host.name] = other.speed / best.speed - 1
        else:
            gains[host.name] = -math.inf
    return gains


# --- From settings ----------------------------------------------------------------------------------------------------


def limits_of(config: TrainingConfig) -> Limits:
    """What the settings leave open: with ``strategy=auto`` the way and the hosts, else nothing.

    A setting that differs from its default is one that the user fixed.
    """
    if config.strategy != AUTO:
        return Limits(
            strategy=config.strategy,
            codec=config.codec,
            shards=config.shards,
            local_steps=config.local_steps,
            local_batch=config.local_batch,
            overlap=config.overlap,
            all_hosts=True,
        )
    usual = TrainingConfig()
    return Limits(
        inexact=config.allow == "inexact",
        codec=config.codec if config.codec != usual.codec else "",
        shards=config.shards,
        local_steps=config.local_steps if config.local_steps != usual.local_steps else 0,
        local_batch=config.local_batch,
        overlap=config.overlap or None,
    )
