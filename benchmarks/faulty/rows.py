"""The rows of the table: which fault each is, what is measured in it, and what it may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.faulty import homes, rare, strikes
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
        sharded: each host holds a part of the parameter server, if the strategy has one.
        of_shard: the fault is that of a shard.
        alone: each repetition has a run of its own, and what was switched off is brought back after it.
        disks: each host's home folder is on a disk of its own.
    """

    key: str
    name: str
    stall: float | None
    strike: Strike
    figures: Mapping[str, Figure] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    sharded: bool = False
    of_shard: bool = False
    alone: bool = False
    disks: bool = False

    def stall_with(self, strategy: str) -> float | None:
        """The budget of the stall with a strategy."""
        return max(self.stall, PIPELINE_STALL_S) if self.stall is not None and strategy == PIPELINE else self.stall

    def is_of(self, strategy: str) -> bool:
        """Whether the fault is one of the strategy's: a pipeline has no shards."""
        return strategy != PIPELINE or not self.of_shard

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
        Row(
            key="shard",
            name="shard's host lost",
            stall=3.0,
            strike=strikes.shard_lost,
            sharded=True,
            of_shard=True,
            alone=True,
        ),
        Row(
            key="shard-cut",
            name="cable cut, each host has a shard",
            stall=3.0,
            strike=strikes.shard_cut,
            sharded=True,
            of_shard=True,
            alone=True,
        ),
        Row(
            key="gcs",
            name="head's control store killed",
            stall=30.0,
            strike=strikes.gcs_killed,
            alone=True,
        ),
        Row(
            key="head",
            name="head host lost",
            stall=30.0,
            strike=strikes.head_lost,
            alone=True,
        ),
    )
}
"""By key, in the table's order."""

ALL_BACK = Figure("all hosts in a step after its end", "s", None)


def _rare(key: str, name: str, strike: Strike, *, disks: bool = False) -> Row:
    settings = {"checkpoint_every": 40}
    return Row(
        key=key,
        name=name,
        stall=None,
        strike=strike,
        figures={"back": ALL_BACK},
        settings=settings,
        sharded=True,
        disks=disks,
    )


def _for(key: str, name: str, begin: rare.Begin, seconds: float, *, disks: bool = False) -> Row:
    return _rare(key, f"{name} for {seconds:.0f} s", rare.lasting(begin, seconds), disks=disks)


RARE: Mapping[str, Row] = {
    row.key: row
    for row in (
        _for("loss5", "a link loses 5 %", rare.losing(5), 30),
        _for("loss20", "a link loses 20 %", rare.losing(20), 30),
        _for("loss30", "a link loses 30 %", rare.losing(30), 30),
        _for("loss30-head", "the head's link loses 30 %", rare.losing(30, rare.head), 30),
        _for("deaf", "a host sends and never receives", rare.deaf, 20),
        _for("mute", "a host receives and never sends", rare.mute, 20),
        _for("apart", "two hosts do not reach each other", rare.apart, 60),
        _for("narrow", "a link carries 1 Mbit/s", rare.narrow, 30),
        _for("small-packets", "a link loses what is larger than 1200 bytes", rare.small_packets, 40),
        _for("small-frames", "a host's frames have 576 bytes at most", rare.small_frames(), 40),
        _for("small-frames-head", "the head's frames have 576 bytes at most", rare.small_frames(rare.head), 30),
        _for("address-lost", "the one of a host's two addresses that is used goes away", rare.address_lost, 40),
        _for("doubled", "two hosts have one address", rare.doubled, 30),
        _rare("flapping", "a cable out and in every 3 s for 60 s", rare.flapping(60)),
        _for("stop-worker", "worker stopped", rare.worker, 10),
        _for("stop-worker-long", "worker stopped", rare.worker, 90),
        _for("stop-raylet", "raylet stopped", rare.stopping("raylet"), 10),
        _for("stop-raylet-long", "raylet stopped", rare.stopping("raylet"), 90),
        _for("stop-head-raylet", "the head's raylet stopped", rare.stopping("raylet", rare.head), 20),
        _for("stop-gcs", "the head's control store stopped", rare.stopping("gcs_server", rare.head), 8),
        _for("stop-gcs-long", "the head's control store stopped", rare.stopping("gcs_server", rare.head), 90),
        _for("stop-supervisor", "supervisor stopped", rare.stopping("remote_agent.host.supervisor"), 10),
        _for("stop-coordinator", "coordinator stopped", rare.coordinator, 10),
        _for("stop-coordinator-long", "coordinator stopped", rare.coordinator, 90),
        _for("stop-sshd", "sshd on the head stopped", rare.ssh_server, 40),
        _for("kill-raylet", "raylet killed", rare.killing("raylet", rare.first), 5),
        _for("kill-raylets", "two raylets killed at once", rare.killing("raylet", rare.first, rare.second), 5),
        _for("kill-head-raylet", "the head's raylet killed", rare.killing("raylet", rare.head), 5),
        _for("full-shm", "shared memory full", rare.full_shared_memory, 30),
        _rare("asleep-twice", "a host sleeps for 120 s, twice", rare.twice(rare.asleep(), 120, 30)),
        _for("asleep", "a host sleeps", rare.asleep(), 10),
        _for("asleep-long", "a host sleeps", rare.asleep(), 90),
        _for("asleep-head", "the head sleeps", rare.asleep(rare.head), 10),
        _for("asleep-head-long", "the head sleeps", rare.asleep(rare.head), 90),
        _for("asleep-laptop", "the laptop sleeps", rare.laptop, 120),
        _for("moved", "a host has another address", rare.moved(rare.first), 10),
        _for("moved-head", "the head has another address", rare.moved(rare.head), 10),
        _for(
            "moved-dark", "a host has another address after 10 s without power", rare.moved(rare.first, dark=True), 10
        ),
        _for("moved-laptop", "the laptop has another address", rare.moved(rare.the_laptop), 40),
        _for("two-dark", "two hosts without power", rare.dark(rare.first, rare.second), 10),
        _for("head-dark", "the head and another host without power", rare.dark(rare.head, rare.first), 10),
        _for("no-agent", "all of the product deleted on a host", rare.without_agent(), 30),
        _for("no-agent-head", "all of the product deleted on the head", rare.without_agent(rare.head), 30),
        _for("cleaned", "all deleted in /tmp and /dev/shm of a host", homes.cleaned(), 20),
        _for("cleaned-head", "all deleted in /tmp and /dev/shm of the head", homes.cleaned(rare.head), 20),
        _for("logout", "all processes killed on a host", homes.logged_out(), 5),
        _for("logout-head", "all processes killed on the head", homes.logged_out(rare.head), 5),
        _for("slow-disk-head", "the head's disk writes 20 kB/s", homes.slow_disk(20_000), 60, disks=True),
        _for("read-only", "a host's home folder read-only", homes.read_only(), 30),
        _for("read-only-head", "the head's home folder read-only", homes.read_only(rare.head), 30),
    )
}
"""Faults that no promise names, each with a shard on every host; without budgets."""
