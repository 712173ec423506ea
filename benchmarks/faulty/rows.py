"""The rows of the table: which fault each is, what is measured in it, and what it may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.faulty import strikes
from benchmarks.faulty.stage import PIPELINE
from benchmarks.faulty.strikes import Strike


@dataclass(frozen=True)
class Figure:
    """What is measured; ``budget`` is the most that it may be, None where there is none."""

    name: str
    unit: str
    budget: float | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A fault.

    Attributes:
        key: on the command line.
        name: in the table.
        stall: budget of the longest gap between two new steps over the median one, in seconds; None: none.
        figures: what else is measured, by the keys of :attr:`Blow.values`.
        strike: does it, and waits until all is well again.
        settings: of the runs.
        sharded: each host holds a part of the parameter server.
        alone: each repetition has a run of its own, and what was switched off is brought back after it.
    """

    key: str
    name: str
    stall: float | None
    strike: Strike
    figures: Mapping[str, Figure] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    sharded: bool = False
    alone: bool = False

    def stall_with(self, strategy: str) -> float | None:
        """The budget of the stall with a strategy."""
        return max(self.stall, PIPELINE_STALL_S) if self.stall is not None and strategy == PIPELINE else self.stall

    def is_of(self, strategy: str) -> bool:
        """Whether the fault is one of the strategy's: a pipeline has no shards."""
        return strategy != PIPELINE or not self.sharded

    def is_alone(self, strategy: str) -> bool:
        """Whether each repetition has a run of its own: a pipeline follows speeds once in 20 times that this takes."""
        return self.alone or (strategy == PIPELINE and self.stall is None)


PIPELINE_STALL_S = 15.0
"""What a fault may cost a pipeline at least: layers are cut anew, and the steps since the copy are made again."""

WORKER_BACK = Figure("worker back", "s", None)
HOST_BACK = Figure("worker back after the cable is in again", "s", 15.0)

ROWS: Mapping[str, Row] = {
    row.key: row
    for row in (
        Row(
            key="worker",
            name="worker process killed",
            stall=1.0,
            strike=strikes.worker_killed,
            figures={"back": WORKER_BACK},
        ),
        Row(key="cut", name="cable cut for 20 s", stall=3.0, strike=strikes.cable_cut, figures={"back": HOST_BACK}),
        Row(
            key="power",
            name="host killed (power)",
            stall=3.0,
            strike=strikes.power_lost,
            figures={"back": Figure("worker back after it answers", "s", 15.0)},
        ),
        Row(
            key="slow",
            name="device slows down to 0.4",
            stall=None,
            strike=strikes.device_slow,
            figures={
                "named": Figure("until worker_slow", "steps", 10),
                "shares": Figure("until shares follow", "steps", 10),
            },
        ),
        Row(
            key="two",
            name="worker killed and cable cut",
            stall=3.0,
            strike=strikes.two_at_once,
            figures={"back": Figure("both back after the cable is in again", "s", None)},
        ),
        Row(
            key="laptop",
            name="laptop's command killed",
            stall=1.0,
            strike=strikes.laptop_killed,
            figures={"whole": Figure("until attach shows all of it", "s", None)},
        ),
        Row(
            key="coordinator",
            name="coordinator killed",
            stall=1.0,
            strike=strikes.coordinator_killed,
            settings={"checkpoint_every": 40},
        ),
        Row(
            key="overseer",
            name="coordinator and overseer killed",
            stall=60.0,
            strike=strikes.overseer_killed,
            settings={"checkpoint_every": 40},
        ),
        Row(key="shard", name="shard's host lost", stall=3.0, strike=strikes.shard_lost, sharded=True, alone=True),
        Row(
            key="shard-cut",
            name="cable cut, each host has a shard",
            stall=3.0,
            strike=strikes.shard_cut,
            sharded=True,
            alone=True,
        ),
        Row(
            key="gcs",
            name="head's control store killed",
            stall=30.0,
            strike=strikes.gcs_killed,
            settings={"checkpoint_every": 40},
            alone=True,
        ),
        Row(
            key="head",
            name="head host lost",
            stall=60.0,
            strike=strikes.head_lost,
            settings={"checkpoint_every": 40},
            alone=True,
        ),
    )
}
"""By key, in the table's order."""
