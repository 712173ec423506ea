"""Refuses, before anything is started on the hosts, what can't become a run, and says what will have no effect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetero_tui import deadlines
from hetero_tui.errors import HostError, OrderError
from hetero_tui.events import Level
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import agent
from hetero_tui.fleet.bring_up import judged
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.fleet.survey import head_name
from hetero_tui.inventory import Host
from hetero_tui.runs.launch import refuse_in_clear
from hetero_tui.runs.order import Order, placed, rest_of, without_effect
from remote_agent import settings as fields
from remote_agent.kinds import convert
from remote_agent.strategies import AUTO, SPECS

STEP = "look at the job's files"

OF_FILES = ("model", "data", "tokenizer", "lora_targets")
"""Settings of ``hf-lm`` that name files, or what is in them."""


def refuse_for(order: Order, hosts: Sequence[Host]) -> None:
    """Refuse what the inventory's ``hosts`` can't do, before anything is contacted.

    Raises:
        OrderError: each shard is on a host of its own, and there are fewer; no device may take a unit.
    """
    values = fields.values_of(order.settings, rest_of(order.job, order.code))
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
    log_to = fields.values_of(order.settings, rest_of(order.job, order.code)).get("log_to")
    return ("tensorboard",) if log_to == "tensorboard" else ()


async def refuse_early(fleet: LiveFleet, order: Order) -> None:
    """Refuse what would end a run in its first seconds, by the hosts' last probe.

    Raises:
        OrderError: the files of a ready job; see :func:`refuse_files`.
        RunError: what would have to be encrypted, and can't be.
    """
    fit, _ = judged(fleet.inventory, fleet.probed, head_name(fleet.surveyed))
    if fleet.inventory.encrypted:
        refuse_in_clear(order.settings, sum(host.role != "server" for host, _ in fit.values()))
    await refuse_files(fleet, order)


async def refuse_files(fleet: LiveFleet, order: Order) -> None:
    """Refuse files with which a run would end in its first seconds: on its head, or on each host that may be it.

    Raises:
        OrderError: what is wrong, on which hosts.
    """
    if order.job.file is not None or order.job.name != "hf-lm":
        return
    given: dict[str, Any] = {name: order.settings[name] for name in OF_FILES if name in order.settings}
    if not {"model", "data"} <= given.keys():  # trials of a sweep get them
        return
    given["from_scratch"] = convert(bool, order.settings.get("from_scratch", "false"), parse=True)
    given |= {name: fields.values_of(order.settings).get(name) for name in ("lora_rank", "quantize")}
    head = head_name(fleet.surveyed) or fleet.inventory.head
    fit, _ = judged(fleet.inventory, fleet.probed, head)
    given["memory"] = _memory([facts for _, facts in fit.values()])
    asked = {name: facts for name, (_, facts) in fit.items() if head in (None, name)}

    async def ask(host: str) -> Mapping[str, str] | None:
        words = agent.inline("host/model_files.py", json.dumps(given))
        command = agent.with_python(words, [asked[host].python.executable])
        try:
            done = await fleet.transports[host].run(command, step=STEP, deadline=deadlines.COMMAND)
            found = json.loads(done.stdout.last('{"mistakes"') or "")["mistakes"]
            return {str(cause): str(hint) for cause, hint in found}
        except (HostError, ValueError, KeyError, TypeError):
            return None  # the run's own check says more

    answers = dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))
    if not answers or any(answer is None for answer in answers.values()):
        return
    first, *others = (answer for answer in answers.values() if answer is not None)
    sure = [cause for cause in first if all(cause in answer for answer in others)]
    if sure:
        where = f" (on {' and on '.join(answers)})"
        hint = "; ".join(dict.fromkeys(first[cause] for cause in sure))
        raise OrderError(tuple(f"{cause}{where}" for cause in sure), hint=hint)


async def archive_of(order: Order, notice: Callable[[Level, str], None]) -> bytes | None:
    """The files that go with the job, packed; None: there are none. ``notice`` is told which, and of idle settings.

    Raises:
        OrderError: one can't be read.
    """
    swept = [parameter.name for parameter in order.search.parameters] if order.search is not None else ()
    without = without_effect(order.job, order.code, order.settings, swept) if order.settings else {}
    given = [name for name in order.settings if name in without]
    said = [f"{name}={order.settings[name]} has no effect: {without[name]}" for name in given]
    for text in (*said, *(order.code.notices if order.code is not None else ())):
        notice(Level.WARNING, text)
    if order.code is None:
        return None
    if order.code.others:
        notice(Level.INFO, f"sent with the job: {order.code.others}")
    return await asyncio.to_thread(order.code.archive)


def _memory(machines: Sequence[HostFacts]) -> int:
    """Bytes of memory of all these machines and their accelerators; 0: of one it is not known."""
    sizes = [machine.memory.total_bytes for machine in machines]
    sizes += [each.memory_bytes for machine in machines for each in machine.accelerators]
    return sum(size or 0 for size in sizes) if all(sizes) else 0
