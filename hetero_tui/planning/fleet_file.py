"""A fleet that does not exist, from a file: for ``plan --fleet``, with every mistake at once. Pure but for the reading.

::

    parameters: 17000000          # trained numbers of the model
    batch: 512                    # samples of a step
    gflop: 6.0                    # of a sample, forward and backward; for devices of the catalogue
    hosts:
      gpu: {count: 40, device: rtx4070, link: 1gbit}
      nas: {speed: 3.5, link: 100mbit, memory_gb: 8}     # samples/s, where it is known
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hetero_tui.errors import PlanError
from hetero_tui.inventory.document import LARGEST, Mapping, Mistakes, Value, parse
from hetero_tui.planning.catalogue import DEVICES, OVERHEAD_S, USED, WIFI_BYTES, link_rate
from hetero_tui.text import meant
from remote_agent.planning.survey import Device, Host, Survey, Work
from remote_agent.removed import why_removed
from remote_agent.settings import TrainingConfig

MAX_DEVICES = 1000
"""Most devices of a file."""

BACKWARD = tuple(1 - 0.65 * (part + 1) / 16 for part in range(16))
"""When gradients are there, as backward takes two thirds of the time and goes from the last layer to the first."""

UPDATE_S = 2e-9
"""Assumed of the optimizer's step for a number, on a processor."""

_TOP = ("parameters", "batch", "gflop", "hosts")
_HOST = ("count", "device", "speed", "link", "memory_gb")


def under(survey: Survey, config: TrainingConfig) -> Survey:
    """The fleet with a run's settings; the file says the samples of a step unless they do."""
    work = dataclasses.replace(
        survey.work,
        batch=config.batch_size or survey.work.batch,
        clipped=config.clip_norm > 0,
        unit=config.unit,
    )
    return dataclasses.replace(survey, work=work)


def read(path: Path) -> Survey:
    """The fleet in a file.

    Raises:
        PlanError: it can't be read, or has mistakes: all of them, with their lines.
    """
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise PlanError((f"can't read {path}: {error.strerror}",)) from error
    mistakes = Mistakes()
    if len(text) > LARGEST:
        mistakes.add(0, "", f"larger than {LARGEST >> 10} KiB: no fleet file")
        raise PlanError(tuple(f"{path}: {each}" for each in mistakes))
    root = parse(text.decode("utf-8", "replace"), mistakes)
    found = _fleet(root, path.stem, mistakes) if not mistakes else None
    if mistakes or found is None:
        raise PlanError(tuple(f"{path}: {each}" for each in mistakes))
    return found


def _fleet(root: Value | None, name: str, mistakes: Mistakes) -> Survey | None:
    top = _entries(root, "", _TOP, mistakes)
    parameters = _number(top, "parameters", "", mistakes, whole=True)
    batch = _number(top, "batch", "", mistakes, whole=True)
    gflop = _number(top, "gflop", "", mistakes, default=0.0)
    groups = top.get("hosts")
    if groups is None or not isinstance(groups.value, Mapping) or not groups.value.entries:
        mistakes.add(groups.line if groups is not None else 0, "hosts", "expected one host or more")
        return None
    hosts: list[Host] = []
    names = set[str]()
    for entry in groups.value.entries:
        if not entry.key.strip() or not entry.key.isprintable():
            mistakes.add(entry.line, "hosts", f"expected a name that can be shown, not {entry.key!r}")
            continue
        room = MAX_DEVICES + 1 - len(hosts)  # of more, mistakes are told, but no hosts are made
        found = _hosts(entry.key, entry.value, gflop, mistakes, room)
        if room and len(found) == room:
            mistakes.add(entry.line, f"hosts.{entry.key}", f"more than {MAX_DEVICES:,} devices in all")
        twice = next((host.name for host in found if host.name in names), None)
        if twice is not None:
            mistakes.add(entry.line, f"hosts.{entry.key}", f"a host {twice!r} is there twice")
        hosts += found
        names.update(host.name for host in found)
    if mistakes:
        return None
    media = {"wifi": WIFI_BYTES} if any(host.medium for host in hosts) else {}
    work = Work(parameters=int(parameters), batch=int(batch), ready=BACKWARD)
    return Survey(job=name, work=work, hosts=tuple(hosts), media=media)


def _hosts(name: str, value: Value, gflop: float, mistakes: Mistakes, most: int) -> list[Host]:
    where = f"hosts.{name}"
    keys = _entries(value, where, _HOST, mistakes)
    count = int(_number(keys, "count", where, mistakes, default=1, whole=True))
    memory = _number(keys, "memory_gb", where, mistakes, default=0.0)
    device, speed = keys.get("device"), 0.0
    estimate = "speed as the file says"
    if device is not None and str(device.value) not in DEVICES:
        near = meant(str(device.value), DEVICES)
        mistakes.add(
            device.line, f"{where}.device", f"no device {device.value!r}{near}; there are {', '.join(DEVICES)}"
        )
    elif "speed" in keys:
        speed = _number(keys, "speed", where, mistakes)
    elif device is not None and gflop > 0:
        published = DEVICES[str(device.value)]
        speed = USED * published.tflops * 1e3 / gflop
        memory = memory or published.memory_gb
        estimate = f"{100 * USED:.0f}% of {published.tflops:g} TFLOPS fp32, {published.source}"
    else:
        mistakes.add(value.line, where, "expected speed (samples/s), or device together with gflop at the top")
    link = keys.get("link")
    text = "1gbit" if link is None else str(link.value)
    rate = WIFI_BYTES if text == "wifi" else link_rate(text)
    if rate is None:
        assert link is not None, "the default is one"
        mistakes.add(link.line, f"{where}.link", f"no link {text!r}: expected wifi, 100mbit, 1gbit, 2.5gbit ...")
    numbers = range(1, min(count, most) + 1)
    names = [name if count == 1 else f"{name}-{number}" for number in numbers]
    if mistakes or rate is None:
        return [Host(name=each, devices=()) for each in names]
    return [
        Host(
            name=each,
            devices=(
                Device(
                    name=f"{each}/device",
                    speed=speed,
                    overhead_s=OVERHEAD_S,
                    memory=int(memory * 1e9) or None,
                    estimate=estimate,
                ),
            ),
            up=rate,
            down=rate,
            both=rate if text == "wifi" else 0.0,
            medium="wifi" if text == "wifi" else "",
            update_s=UPDATE_S,
        )
        for each in names
    ]


def _entries(value: Value | None, where: str, known: Collection[str], mistakes: Mistakes) -> dict[str, Value]:
    if value is None or not isinstance(value.value, Mapping):
        mistakes.add(value.line if value is not None else 0, where, f"expected keys: {', '.join(known)}")
        return {}
    found: dict[str, Value] = {}
    for entry in value.value.entries:
        place = f"{where}.{entry.key}" if where else entry.key
        if entry.key not in known:
            removed = why_removed(f"{entry.key} in a fleet file")
            unknown = f"no such key{meant(entry.key, known)}; there are {', '.join(known)}"
            mistakes.add(entry.line, place, removed or unknown)
        elif entry.key in found:
            mistakes.add(entry.line, place, "is there twice")
        else:
            found[entry.key] = entry.value
    return found


def _number(
    keys: dict[str, Value],
    key: str,
    where: str,
    mistakes: Mistakes,
    *,
    default: float | None = None,
    whole: bool = False,
) -> float:
    place = f"{where}.{key}" if where else key
    value = keys.get(key)
    if value is None:
        if default is None:
            mistakes.add(0, place, "is missing")
        return default or 0.0
    number: Any = value.value
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not 0 < number < 1e15 or (whole and number != int(number)):
        mistakes.add(value.line, place, f"expected a {'whole ' if whole else ''}number above 0, not {number!r}")
        return default or 0.0
    return float(number)
