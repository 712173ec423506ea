"""The table of :mod:`benchmarks.scaling`: what its rows are made of, and how they are printed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import solo
from benchmarks.lab import Outcome
from benchmarks.ours import OurWay
from benchmarks.solo import Beside, Solo
from remote_agent.planning import shares
from remote_agent.planning.device_profile import DeviceProfile

COMMON_STEPS = ("sync", "allreduce")
"""Strategies of ours whose steps end when the last part is there."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way at one speed of the links.

    Attributes:
        solo_sum: samples/s of the hosts alone, added up; the mean of what was measured before and after.
        solo_spread: how far these two lie apart, as a part of the mean.
        pace_spread: the same of this computer's own pace.
        efficiency: samples/s over ``solo_sum``.
        of_ceiling: efficiency over that of the hosts with whole batches and without any exchange; None where that was
            not measured.
        cut: the efficiency that the size of what a host computes at a time allows; None where it is not ours to choose.
        bytes_all_hosts: per parameter and step of ``batch`` samples, as ``bytes_busiest_host``.
    """

    name: str
    rate_mbit: float
    steps: int
    samples: int
    seconds: float
    samples_per_second: float
    solo_sum: float
    solo_spread: float
    pace_spread: float
    efficiency: float
    of_ceiling: float | None
    cut: float | None
    bytes_all_hosts: float
    bytes_busiest_host: float
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the rows at one speed of the links have in common.

    Attributes:
        rate_mbit: of the links.
        batch: samples of a step.
        parameters: of the model.
        reference: of the simulated devices, for who does not measure one.
    """

    rate_mbit: float
    batch: int
    parameters: int
    reference: DeviceProfile


def row_of(outcome: Outcome, setting: Setting, beside: Beside, ceiling: float | None, way: OurWay | None) -> Row:
    """One outcome in the table's units.

    Args:
        outcome: what the run gave.
        setting: of all rows.
        beside: what the hosts did alone before and after.
        ceiling: the efficiency without any exchange, if it is known.
        way: the strategy of ours that it is; None: another's.
    """
    # Ours measures the computer anew for each run: its efficiency is over its own reference.
    reference = outcome.reference or setting.reference
    alone = beside.total(reference)
    efficiency = outcome.samples_per_second / alone
    units = setting.parameters * outcome.samples / setting.batch or float("inf")
    return Row(
        name=outcome.name,
        rate_mbit=setting.rate_mbit,
        steps=outcome.steps,
        samples=outcome.samples,
        seconds=outcome.seconds,
        samples_per_second=outcome.samples_per_second,
        solo_sum=alone,
        solo_spread=beside.spread(reference),
        pace_spread=beside.pace_spread,
        efficiency=efficiency,
        of_ceiling=efficiency / ceiling if ceiling else None,
        cut=None if way is None else allowed(way, beside.after, reference),
        bytes_all_hosts=sum(outcome.sent) / units,
        bytes_busiest_host=max(outcome.sent, default=0) / units,
        error=outcome.error,
    )


def allowed(way: OurWay, alone: Solo, reference: DeviceProfile) -> float:
    """The efficiency that is left by the size of what a host computes at a time, were there nothing to exchange.

    A host's part of a step is as our planner cuts it. With ``local_sgd`` every host makes steps of one size.
    """
    hosts = len(alone.speeds)
    if way.strategy == "local_sgd":
        local = int(way.settings.get("local_batch", "0")) or max(1, alone.batch // hosts)
        return solo.cut_bound(alone, reference, [local] * hosts, common=False)
    parts = shares.split(alone.batch, solo.profiles(alone.speeds, reference))
    return solo.cut_bound(alone, reference, parts, common=way.strategy in COMMON_STEPS)


HEAD = (
    f"{'':52} {'Mbit/s':>6} {'steps':>6} {'samples/s':>10} {'of sum':>7} {'±sum':>6} {'±pace':>6} {'of ceiling':>10}"
    f" {'cut':>5} {'B/param/step':>13} {'busiest':>8}"
)


def line(row: Row) -> str:
    """One row of the table."""
    if row.error:
        return f"{row.name:52} {row.rate_mbit:>6g} failed: {row.error}"
    ceiling, cut = ("" if value is None else f"{value:.2f}" for value in (row.of_ceiling, row.cut))
    return (
        f"{row.name:52} {row.rate_mbit:>6g} {row.steps:>6} {row.samples_per_second:>10.2f} {row.efficiency:>7.3f}"
        f" {row.solo_spread:>6.1%} {row.pace_spread:>6.1%} {ceiling:>10} {cut:>5}"
        f" {row.bytes_all_hosts:>13.2f} {row.bytes_busiest_host:>8.2f}"
    )
