"""Ways to train, and what is predicted of them: the values that the planner works with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from remote_agent.wording import number

SYNC, ALLREDUCE, LOCAL = "sync", "allreduce", "local_sgd"

PIPELINE = "pipeline"
"""The model cut by its layers, which is predicted by itself (:mod:`~remote_agent.planning.pipeline`)."""

EXACT = (SYNC, ALLREDUCE)
"""Strategies with the weights of one process, in fp32."""

PREDICTED = (SYNC, ALLREDUCE, LOCAL)
"""Strategies that there is a prediction for."""

COMPUTE, EXCHANGE, HANDLING, UPDATE, CALLS = "compute", "exchange", "handling", "update", "calls"
OTHER = "other"
"""Names of terms."""


def ratio_name(strategy: str, term: str) -> str:
    """Under which it is kept how far predictions of a term are off.

    Computing is the same in every strategy. What a parameter server's exchange shows says nothing of a ring's, which
    has other threads, processes and connections.
    """
    return f"{term} of {strategy}" if strategy == ALLREDUCE and term != COMPUTE else term


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to train.

    Attributes:
        shards: of the parameter server; 0: as many as pay.
        local_steps: of the fastest device in a round of ``local_sgd``.
        local_batch: samples of one of them; 0: the batch over all devices.
        overlap: a round is exchanged while the next one is computed.
        parts: of the parameter server, by host, where that is given; empty: as the product would site them.
    """

    strategy: str
    hosts: tuple[str, ...]
    codec: str = "fp32"
    shards: int = 0
    local_steps: int = 20
    local_batch: int = 0
    overlap: bool = False
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the weights are those of one process on the same batches."""
        return self.strategy in (*EXACT, PIPELINE) and self.codec == "fp32"

    @property
    def title(self) -> str:
        """In words, without the hosts."""
        words = [self.strategy]
        words += [f"{self.local_steps} local steps"] if self.strategy == LOCAL else []
        words += [self.codec] if self.codec != "fp32" else []
        words += ["overlap"] if self.overlap and self.strategy == LOCAL else []
        return ", ".join(words)


@dataclass(frozen=True, kw_only=True)
class Term:
    """A part of a step's time, and where it comes from."""

    name: str
    seconds: float
    source: str

    def times(self, ratio: float) -> Term:
        """The same, so many times as long, as steps of this job showed it."""
        if ratio == 1:
            return self
        source = f"{self.source}; {number(ratio, 2)} times that in steps of this job"
        return Term(name=self.name, seconds=ratio * self.seconds, source=source)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A step, as it is predicted.

    Attributes:
        terms: that add up to its seconds.
        shares: samples of each device, in the order of the way's hosts.
        busy_s: seconds that each device computes.
        parts: of the parameter server, by host.
        bound: what limits it, in words.
        link_s: seconds that the busiest link is at work.
        link: which one that is.
    """

    way: Way
    terms: tuple[Term, ...]
    samples: int
    shares: Mapping[str, int]
    busy_s: Mapping[str, float]
    parts: Mapping[str, float]
    bound: str = ""
    link_s: float = 0.0
    link: str = ""

    @property
    def seconds(self) -> float:
        """Of the step."""
        return sum(term.seconds for term in self.terms)

    @property
    def speed(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds > 0 else math.inf

    def term(self, name: str) -> float:
        """Seconds of one of its terms."""
        return sum(term.seconds for term in self.terms if term.name == name)

    @property
    def beside(self) -> Term | None:
        """The longest term beside computing; None: there is nothing else."""
        others = [term for term in self.terms if term.name != COMPUTE]
        return max(others, key=lambda term: term.seconds, default=None)

    @property
    def waits_for_link(self) -> bool:
        """Most of what is not computing is the exchange, and most of that its busiest link."""
        exposed, exchange = self.seconds - self.term(COMPUTE), self.term(EXCHANGE)
        return bool(self.link) and exchange >= 0.5 * exposed and self.link_s >= 0.5 * exchange

    @property
    def limit(self) -> str:
        """What limits it, in words."""
        beside = self.beside
        if beside is None or self.term(COMPUTE) >= 0.5 * self.seconds:
            return f"computing on {max(self.busy_s, key=self.busy_s.__getitem__)}"
        return self.link if self.waits_for_link else beside.name
