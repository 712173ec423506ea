"""The strategies, as one table: the name of each, the classes that carry it out, and what it needs.

Other parts ask a :class:`StrategySpec` and never compare names. This needs nothing but the standard library: the laptop
checks settings with it, and the classes are imported where they run.
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
        coordinator: ``module:Class`` of its :class:`~remote_agent.training.coordinator.strategies.base.Strategy`.
        worker: ``module:Class`` of its :class:`~remote_agent.training.worker.engine.Engine`.
        servers: the weights are with parameter servers, to which gradients are streamed; else with the workers alone.
        rounds: what is called a step is a round of many local steps, which the job's optimizer makes on each worker.
        split: each worker holds a part of the model, and all of them compute each sample together.
        otherwise: the strategy that gives the same weights for a model that servers can't hold; empty: there is none.
    """

    name: str
    coordinator: str
    worker: str
    servers: bool = True
    rounds: bool = False
    split: bool = False
    otherwise: str = ""

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


def spec_of(name: str) -> StrategySpec:
    """The strategy of that name, which the settings have checked; ``auto`` is as ``sync`` until one is chosen."""
    return SETTINGS[name]


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
