"""The ways to train together, as one table: what each is called, which classes carry it out, and what it needs.

All that other parts ask about a strategy they ask of its :class:`StrategySpec`. Needs nothing but the standard library:
the laptop checks settings with it, and the classes are imported where they run.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections import ChainMap
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StrategySpec:
    """A strategy.

    Attributes:
        name: as the setting ``strategy`` has it.
        coordinator: its :class:`~remote_agent.training.coordinator.strategies.base.Strategy`: the class, or
            ``module:Class``.
        worker: its :class:`~remote_agent.training.worker.engine.Engine`: the class, or ``module:Class``.
        servers: the weights are with parameter servers, to which gradients are streamed; else with the workers alone.
        waits: a step is made once all its slices are there; else each slice is applied as it comes.
        rounds: what is called a step is a round of many local steps, which the job's optimizer makes on each worker.
        split: each worker holds a part of the model, and all of them compute each sample together.
        otherwise: the strategy that gives the same weights for a model that servers can't hold; empty: there is none.
    """

    name: str
    coordinator: str | type
    worker: str | type
    servers: bool = True
    waits: bool = True
    rounds: bool = False
    split: bool = False
    otherwise: str = ""

    @property
    def batches(self) -> bool:
        """Whether a step is one batch: the optimizer's steps are those of a plain loop."""
        return self.waits and not self.rounds

    @property
    def outlives(self) -> bool:
        """Whether a step can be ended by another coordinator than the one that issued it, which was killed."""
        return self.servers and self.waits

    @property
    def steps_on_workers(self) -> bool:
        """Whether the job's optimizer is with the workers."""
        return self.rounds or not self.servers

    def strategy(self) -> Any:
        """The class for the coordinator."""
        return _imported(self.coordinator)

    def engine(self) -> Any:
        return _imported(self.worker)


_STRATEGIES, _ENGINES = "remote_agent.training.coordinator.strategies", "remote_agent.training.worker"

SPECS: dict[str, StrategySpec] = {
    spec.name: spec
    for spec in (
        StrategySpec(
            name="sync",
            coordinator=f"{_STRATEGIES}.streamed:Streamed",
            worker=f"{_ENGINES}.served:StreamedEngine",
            otherwise="allreduce",
        ),
        StrategySpec(
            name="ssp",
            coordinator=f"{_STRATEGIES}.stale:Stale",
            worker=f"{_ENGINES}.served:StaleEngine",
            waits=False,
        ),
        StrategySpec(
            name="async",
            coordinator=f"{_STRATEGIES}.stale:Stale",
            worker=f"{_ENGINES}.served:StaleEngine",
            waits=False,
        ),
        StrategySpec(
            name="local_sgd",
            coordinator=f"{_STRATEGIES}.local_sgd:LocalSgd",
            worker=f"{_ENGINES}.served:LocalEngine",
            rounds=True,
        ),
        StrategySpec(
            name="allreduce",
            coordinator=f"{_STRATEGIES}.allreduce:AllReduce",
            worker=f"{_ENGINES}.reducing:ReductionEngine",
            servers=False,
        ),
        StrategySpec(
            name="pipeline",
            coordinator=f"{_STRATEGIES}.pipeline:Pipeline",
            worker=f"{_ENGINES}.staged:StageEngine",
            servers=False,
            split=True,
        ),
    )
}
"""All that there are, by name."""

AUTO = "auto"
"""In the place of a strategy's name: the planner chooses one before the first step."""

_UNTIL_CHOSEN = dataclasses.replace(SPECS["sync"], name=AUTO)

SETTINGS = ChainMap({AUTO: _UNTIL_CHOSEN}, SPECS)
"""All values of the setting, by name."""


_BUILT_IN = frozenset(SPECS)


def register(spec: StrategySpec) -> None:
    """Have one more: a job's file does so, beside its job, and the workers get it with the job."""
    SPECS[spec.name] = spec


def own() -> tuple[StrategySpec, ...]:
    """Those that the user's code has registered."""
    return tuple(spec for spec in SPECS.values() if spec.name not in _BUILT_IN)


def spec_of(name: str) -> StrategySpec:
    """The strategy of that name, which the settings have checked; ``auto`` is as ``sync`` until one is chosen."""
    return SETTINGS[name]


def _imported(path: str | type) -> Any:
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
