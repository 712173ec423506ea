"""A plan as a table, as JSON, and explained term by term. Pure."""

from __future__ import annotations

import math
import time
from typing import Any

from hetero_tui.planning.catalogue import OVERHEAD_S
from remote_agent.planning.choice import Choice
from remote_agent.planning.survey import Host, Survey
from remote_agent.planning.verdicts import names, rate, seconds
from remote_agent.planning.ways import Prediction

HOST_HEADINGS = ["HOST", "DEVICE", "SHARE", "COMPUTES", "LINK MB/s", "SHARDS", "HELPS"]
WAY_HEADINGS = ["WAY", "HOSTS", "STEP", "SAMPLES/S", "EXACT", "LIMIT"]

MAX_ROWS = 40
"""Hosts of a table; of more, those that take part come first."""


def host_rows(survey: Survey, choice: Choice) -> list[list[str]]:
    """A row for each device; with more than :data:`MAX_ROWS` hosts, the last one says how many are not there."""
    best, rows = choice.best, []
    hosts = list(survey.hosts)
    if len(hosts) > MAX_ROWS:
        hosts.sort(key=lambda host: host.name not in best.way.hosts)
    for host in hosts[:MAX_ROWS]:
        part = best.parts.get(host.name, 0.0)
        for device in host.devices:
            samples = best.shares.get(device.name, 0)
            share = f"{100 * samples / best.samples:.0f}%" if samples else "-"
            computes = seconds(best.busy_s[device.name]) if samples else "-"
            held = f"{100 * part:.0f}%" if part else "-"
            rows.append(
                [host.name, device.product or device.name, share, computes, link(host), held, _helps(choice, host.name)]
            )
    if len(hosts) > MAX_ROWS:
        rows.append([f"and {len(hosts) - MAX_ROWS:,} more", *("" for _ in HOST_HEADINGS[1:])])
    return rows


def link(host: Host) -> str:
    """Megabytes a second out and in."""
    return f"{host.up / 1e6:.1f}/{host.down / 1e6:.1f}" if host.up else "n/a"


def _helps(choice: Choice, host: str) -> str:
    gain, inside = choice.gains.get(host), host in choice.best.way.hosts
    if gain is None:
        return ("needed" if host in choice.gains and len(choice.best.way.hosts) > 1 else "") if inside else "left out"
    if inside and gain >= 0:
        return f"{100 * gain:+.0f}%"
    said = "does not fit" if gain <= -math.inf else f"step {100 * (1 / (1 + gain) - 1):+,.0f}%".replace("-0%", "+0%")
    return said if inside else f"{said}: left out"


def way_rows(choice: Choice, *, all_ways: bool = True) -> list[list[str]]:
    """A row for each way, the fastest first, and one for the fastest host alone.

    Args:
        all_ways: not the fastest of each strategy only.
    """
    best, rows, told = choice.best, [], set[str]()
    together = [each for each in choice.ways if len(each.way.hosts) > 1 or each is best]
    alone = [choice.alone] if choice.alone is not None and len(best.way.hosts) > 1 else []
    for each in sorted([*together, *alone], key=lambda each: -each.speed):
        way = each.way
        strategy = "alone" if len(way.hosts) == 1 else way.strategy
        if not all_ways and strategy in told and each is not best:
            continue
        told.add(strategy)
        title = ("> " if each is best else "  ") + ("alone" if len(way.hosts) == 1 else way.title)
        exact = "yes" if way.exact or len(way.hosts) == 1 else "no"
        rows.append([title, names(way.hosts), seconds(each.seconds), rate(each.speed), exact, each.bound])
    return rows


def measured_at(survey: Survey) -> list[str]:
    """When devices and links were measured."""
    if not survey.time:
        return []
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(survey.time))
    return [f"devices and links were measured {when}; --measure does it anew"]


def explained(best: Prediction) -> list[str]:
    """The terms of a step, each with its source."""
    lines = [f"{term.name}: {seconds(term.seconds)} ({term.source})" for term in best.terms]
    lines.append(f"in all: {seconds(best.seconds)} a step")
    return lines + (
        [f"{best.link} is at work for {seconds(best.link_s)} of {seconds(best.seconds)}"] if best.link else []
    )


def document(survey: Survey, choice: Choice, told: tuple[str, ...], *, measured: bool) -> dict[str, Any]:
    """For scripts."""
    gains = {name: (gain if gain is None or math.isfinite(gain) else None) for name, gain in choice.gains.items()}
    return {
        "job": survey.job,
        "parameters": survey.work.parameters,
        "batch": survey.work.batch,
        "measured_now": measured,
        "measured_at": survey.time or None,
        "chosen": _way(choice.best),
        "ways": [_way(each) for each in choice.ways],
        "hosts": [
            {
                "name": host.name,
                "used": host.name in choice.best.way.hosts,
                "gain": gains.get(host.name),
                "up": host.up,
                "down": host.down,
                "devices": [
                    {
                        "name": device.name,
                        "samples_per_second": device.speed,
                        "overhead_s": device.overhead_s,
                        "samples": choice.best.shares.get(device.name, 0),
                        "estimate": device.estimate or None,
                    }
                    for device in host.devices
                ],
            }
            for host in survey.hosts
        ],
        "verdicts": list(told),
        "does_not_fit": list(choice.refused),
        "considered": choice.considered,
    }


def _way(found: Prediction) -> dict[str, Any]:
    way = found.way
    return {
        "strategy": way.strategy,
        "codec": way.codec,
        "hosts": list(way.hosts),
        "local_steps": way.local_steps if way.strategy == "local_sgd" else None,
        "overlap": way.overlap,
        "exact": way.exact,
        "step_s": found.seconds,
        "samples": found.samples,
        "samples_per_second": found.speed,
        "terms": [{"name": term.name, "seconds": term.seconds, "source": term.source} for term in found.terms],
        "shards": dict(found.parts),
        "limit": found.bound,
    }


def estimates(survey: Survey) -> list[str]:
    """What of the fleet was not measured, and where its figures come from."""
    assumed = f"{1e3 * OVERHEAD_S:g} ms for a slice and {1e3 * survey.call_s:g} ms for a call are assumed"
    found: dict[str, list[str]] = {}
    for device in (device for host in survey.hosts for device in host.devices if device.estimate):
        found.setdefault(device.estimate, []).append(device.product or device.name)
    lines = [f"estimate: {names(devices)}: {source}" for source, devices in found.items()]
    return lines + ([] if survey.time else [f"nothing was measured: {assumed}"])
