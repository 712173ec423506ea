"""Predicted and simulated steps: the planner's model of an exchange beside the exchange that the product makes.

A run of some steps without faults, of hosts with links of one speed and devices that take their time; simulated are
the clock, links and devices, real are coordinator, workers, shards and what they send (see ``product``). So what the
two differ by is an error of the model, and of no measurement.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from remote_agent.planning import sharding
from remote_agent.planning.choice import Limits, choose
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.survey import Survey
from remote_agent.training.coordinator import trial
from remote_agent.training.coordinator.plan.measurements import Measurements
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.session import Session
from remote_agent.training.errors import TrainingError
from remote_agent.training.shared.dataplane import Usage
from remote_agent.training.shared.link_speed import LinkRates
from remote_agent.training.shared.messages import DeviceCosts
from tests.simulation import product, world
from tests.simulation.cluster import LATENCY_S, Host
from tests.simulation.world import BATCH, HOSTS, Factory, Line, Way, World

NUMBERS = 3000
"""Trained numbers of the model that stands for all: links are as much slower as it is smaller."""

ALONE_S = product.STEP_S + BATCH * product.SAMPLE_S
"""Of a step on the fastest device alone."""

ONE_SHARD = sharding.CHUNK_NUMBERS
"""Models of up to so many numbers have one shard, and one chunk."""

CHUNKS = 16
"""Of a shard of other models; they have 32 or more."""

SKIPPED, STEPS = 2, 6

MEAN_S = sum(LATENCY_S) / 2
"""Of a message."""


class Long(Line):
    """With more numbers, of which most count for nothing."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype, tally=False)
        self.rest = nn.Parameter(torch.zeros(NUMBERS - self.weight.numel() - 1, dtype=dtype))


class LongJob(Factory):
    """Trains it."""

    def create_model(self) -> nn.Module:
        return Long(self.way.dtype)

    @staticmethod
    def backward(model: Line, indices: Any) -> tuple[float, list[tuple[nn.Parameter, Tensor]]]:
        assert isinstance(model, Long), "it made it"
        loss, gradients = Factory.backward(model, indices)
        return loss, [*gradients, (model.rest, torch.zeros_like(model.rest))]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A step as it was predicted, with its terms, and as it was; and the hosts that would have been chosen for it."""

    predicted_s: float
    simulated_s: float
    samples: int
    terms: Mapping[str, float]
    chosen: tuple[str, ...]

    @property
    def off(self) -> float:
        """Predicted over simulated, less 1."""
        return self.predicted_s / self.simulated_s - 1


class TriedOnly(TrainingError):
    """Ends a run of which only a plan's steps are tried."""


class Trying(World):
    """A plan's trial in the place of a run; ``found`` is what it came to, ``told`` what was said meanwhile."""

    found: Survey | None = None

    def train(self, real: Callable[..., Any], request: Request, model: nn.Module, session: Session, *rest: Any) -> Any:
        del real, request, model, rest
        self.told: list[str] = []
        self.found = trial.surveyed(session, self.told.append)
        raise TriedOnly("it was tried")


def tried(speeds: Sequence[float], slower: float, rate: float) -> Trying:
    """Try steps of ``sync`` with three hosts that take so many times as long as was measured."""
    way = Way("tried", {"strategy": "sync"}, rate=rate)
    run = Trying(1, way, [], factory=LongJob(way))
    slowness = {name: 1 / speed for name, speed in zip(HOSTS, speeds, strict=True)}
    for name, host in run.hosts.items():
        host.slowness = slower * slowness[name]
    with _measured_as_they_are(slowness), world.installed_for(run):
        try:
            run.run()
        finally:
            run.kernel.close()
    assert isinstance(run.error, TriedOnly), run.error
    return run


class Undisturbed(World):
    """A run that ends after some steps."""

    def _over(self) -> bool:
        return self.steps >= SKIPPED + STEPS


def compared(
    settings: Mapping[str, Any], parameters: int, rate: float, speeds: Sequence[float], hosts: str = HOSTS
) -> Compared:
    """Train and look.

    Args:
        settings: of the run.
        parameters: of the model that is meant.
        rate: bytes/s of each host's link.
        speeds: of the hosts' devices, beside that of the first.
        hosts: that take part.
    """
    way = Way("undisturbed", dict(settings), rate=rate * NUMBERS / parameters)
    run = Undisturbed(1, way, [], hosts=hosts, factory=LongJob(way))
    run.request = dataclasses.replace(run.request, config=dataclasses.replace(run.request.config, shards=0))
    slowness = {name: 1 / speed for name, speed in zip(HOSTS, speeds, strict=True)}
    for name, host in run.hosts.items():
        host.slowness = slowness[name]
    with _measured_as_they_are(slowness), world.installed_for(run), _cut_as(parameters):
        try:
            run.run()
        finally:
            run.kernel.close()
        if run.error is not None:
            raise run.error
        assert run.session is not None, "it was trained"
        assert run.session.survey is not None, "it was planned"
        limits = Limits(strategy=way.settings["strategy"])
        chosen = choose(run.session.survey, limits).best.way.hosts
    plan = next(fields for _, kind, fields in run.events if kind == "PlanMade")
    steps = [fields for _, kind, fields in run.events if kind == "Step"][SKIPPED:]
    return Compared(
        predicted_s=plan["predicted_step_s"],
        simulated_s=statistics.fmean(step["seconds"] for step in steps),
        samples=steps[-1]["samples"],
        terms=plan["terms"],
        chosen=chosen,
    )


@contextmanager
def _measured_as_they_are(slowness: Mapping[str, float]) -> Iterator[None]:
    """What the product measures before a run is what the simulation does."""

    def measured(candidates: Sequence[Any], *_: Any, **__: Any) -> Measurements:
        slow = [slowness[candidate.seat.spec.host] for candidate in candidates]
        free = DeviceCosts(turn_s=0.0, touch_s=0.0, step_s=0.0, update_s=0.0, ready=(), codec_s={})
        return Measurements(
            tuple(DeviceProfile(1 / (product.SAMPLE_S * each), product.STEP_S * each) for each in slow),
            Usage(),
            None,
            1.0,
            product.PROFILE,
            costs=(free,) * len(slow),
            calls_s=(2 * MEAN_S,) * len(slow),
        )

    def surveyed(
        of: dict[str, Host], hosts: Sequence[str], actors: Sequence[Any], *, alone: bool = False
    ) -> tuple[LinkRates, ...]:
        del actors, alone
        of_link: Callable[[str], LinkRates] = lambda name: LinkRates(  # noqa: E731
            up=of[name].rate, down=of[name].rate, memory=1 << 34, reachable=True, latency_s=2 * MEAN_S
        )
        return tuple(map(of_link, hosts))

    with ExitStack() as stack:
        stack.enter_context(patch.object(product, "measured", measured))
        stack.enter_context(patch.object(product, "surveyed", surveyed))
        yield


@contextmanager
def _cut_as(parameters: int) -> Iterator[None]:
    """Shards and chunks are as many as those of a model of so many numbers."""
    is_small = parameters <= ONE_SHARD

    def chunk_numbers(numel: int, shards: int) -> int:
        return numel if is_small else -(-numel // (CHUNKS * shards))

    with ExitStack() as stack:
        stack.enter_context(patch.object(sharding, "CHUNK_NUMBERS", NUMBERS if is_small else 1))
        stack.enter_context(patch.object(sharding, "chunk_numbers", chunk_numbers))
        yield
