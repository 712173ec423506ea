"""Refuses, before anything is started on the hosts, what can't become a run, and says what will have no effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hetero_tui.errors import OrderError
from hetero_tui.events import Level
from hetero_tui.fleet.bring_up import judged
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.fleet.survey import head_name
from hetero_tui.inventory import Host
from hetero_tui.runs.launch import refuse_in_clear
from hetero_tui.runs.order import Order, placed, rest_of, without_effect
from remote_agent import settings as fields
from remote_agent.strategies import AUTO, SPECS


def refuse_for(order: Order, hosts: Sequence[Host]) -> None:
    """Refuse what the inventory's ``hosts`` can't do, before anything is contacted.

    Raises:
        OrderError: each shard is on a host of its own, and there are fewer; no device may take a unit.
    """
    values = fields.values_of(order.settings, rest_of(order.job))
    shards, strategy = values.get("shards", 0), values.get("strategy", AUTO)
    limits = [host.max_batch for host in hosts if host.role != "server"]
    unit = min(values.get("unit", 0), values.get("batch_size", 0))
    if unit and limits and all(limits) and unit > (most := max(limit or 0 for limit in limits)):
        cause = f"unit={unit}: one device computes a unit, and the inventory's largest max_batch is {most}"
        raise OrderError((placed(cause, order.settings, order.job),), hint=f"set unit={most} or less")
    if shards > len(hosts) and (strategy not in SPECS or SPECS[strategy].servers):
        are = "is 1 host" if len(hosts) == 1 else f"are {len(hosts)} hosts"
        cause = f"shards={shards}: there {are} in the inventory, and each shard is on a host of its own"
        hint = "leave it out: the plan then chooses how many"
        raise OrderError((placed(cause, order.settings, order.job),), hint=hint)


def needed_by_head(order: Order) -> tuple[str, ...]:
    """Packages that the run's settings need on its head, beside the job's own requirements."""
    log_to = fields.values_of(order.settings, rest_of(order.job)).get("log_to")
    return ("tensorboard",) if log_to == "tensorboard" else ()


def refuse_early(fleet: LiveFleet, order: Order) -> None:
    """Raise RunError for what would have to be encrypted and can't be, by the hosts' last probe."""
    fit, _ = judged(fleet.inventory, fleet.probed, head_name(fleet.surveyed))
    if fleet.inventory.encrypted:
        refuse_in_clear(order.settings, sum(host.role != "server" for host, _ in fit.values()))


async def archive_of(order: Order, notice: Callable[[Level, str], None]) -> bytes | None:
    """The files that go with the job, packed; None: there are none. ``notice`` is told which, and of idle settings.

    Raises:
        OrderError: one can't be read.
    """
    swept = [parameter.name for parameter in order.search.parameters] if order.search is not None else ()
    without = without_effect(order.job, order.settings, swept) if order.settings else {}
    given = [name for name in order.settings if name in without]
    said = [f"{name}={order.settings[name]} has no effect: {without[name]}" for name in given]
    for text in said:
        notice(Level.WARNING, text)
    if order.code is None:
        return None
    if order.code.others:
        notice(Level.INFO, f"sent with the job: {order.code.others}")
    return await asyncio.to_thread(order.code.archive)
