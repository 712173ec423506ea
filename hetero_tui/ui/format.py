"""Figures for people: human units, few digits, and a constant width wherever a figure stands in a column.

Memory is counted in units of 1,024 and written GB, as ``top`` and graphics drivers do; links in decimal bits, as
network cards do. ``None`` is unknown and becomes ``n/a``, never 0.
"""

from __future__ import annotations

import re
from datetime import datetime, tzinfo

from hetero_tui.text import duration as precise
from remote_agent.goals import shown
from remote_agent.wording import number
from remote_agent.wording import share as part

UNKNOWN = "n/a"

_MAKERS = re.compile(r"^(?:(?:NVIDIA|AMD|Apple|Intel(?:\(R\))?)\s+)?(?:GeForce\s+)?(?:GTX\s+(?=TITAN))?(?:Radeon\s+)?")


def gigabytes(count: int | None) -> str:
    """Bytes as gigabytes with one digit, without the unit: ``9.1``."""
    return UNKNOWN if count is None else f"{count / 2**30:.1f}"


def memory(used: int | None, total: int | None) -> str:
    """Used and total bytes: ``9.1/12.0 GB``; ``n/a`` where it is unknown how much is used."""
    return UNKNOWN if used is None else f"{gigabytes(used)}/{gigabytes(total)} GB"


def size(count: int | None) -> str:
    """Bytes with the unit that fits: ``512 B``, ``4.1 MB``, ``1.2 TB``; eight characters at most, up to 999 TB.

    From 1,000 KB, MB and GB on it is the next unit: ``1.0 GB`` for 1,004.7 MB.
    """
    if count is None:
        return UNKNOWN
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < (1024 if unit == "B" else 999.95):
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def milliseconds(seconds: float | None) -> str:
    """A short time: ``0.4 ms``, ``212 ms``; from ten seconds on ``12.3 s``."""
    if seconds is None:
        return UNKNOWN
    if seconds >= 9.9995:
        return f"{seconds:.1f} s"
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 9.95 else f"{value:,.0f} ms"


def duration(seconds: float | None) -> str:
    """A time to wait or an age: ``8 s``, ``98 s``, and from 100 s on rounded, ``38 min``, ``2 h 05``, ``3 d``.

    Of what is over :func:`took` is said.
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 100:
        return f"{max(0, int(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02}" if minutes < 1440 else f"{round(minutes / 1440)} d"


def took(seconds: float | None) -> str:
    """How long something took: ``0.8 s``, ``12 s``, ``1 min 38 s``, ``2 h 5 min``."""
    if seconds is None:
        return UNKNOWN
    said = f"{max(0.0, seconds):.1f} s" if seconds < 9.95 else precise(seconds)
    return said.removesuffix(" 0 s").removesuffix(" 0 min")


def spent(seconds: float) -> str:
    """For how long something has been under way: it moves every second, ``8 s``, ``2 min 5 s``."""
    return precise(int(seconds))


def recent(seconds: float) -> str:
    """An age with a digit where it is short: ``0.8 s``, ``12 s``, ``2 min``."""
    return took(seconds) if seconds < 9.95 else duration(seconds)


def ago(seconds: float | None) -> str:
    """An age: ``now``, ``12 s ago``, ``2 min ago``; ``never`` for None."""
    if seconds is None:
        return "never"
    return "now" if seconds < 3 else f"{duration(seconds)} ago"


def link_rate(bytes_per_second: float | None) -> str:
    """Traffic in decimal bits: ``0.2 Mb/s``, ``941 Mb/s``, ``2.5 Gb/s``."""
    if bytes_per_second is None:
        return UNKNOWN
    megabits = bytes_per_second * 8 / 1e6
    if megabits >= 999.5:
        return f"{megabits / 1000:.1f} Gb/s"
    return f"{megabits:.1f} Mb/s" if megabits < 9.95 else f"{megabits:.0f} Mb/s"


def throughput(samples_per_second: float | None) -> str:
    """``1,841 samples/s``."""
    if samples_per_second is None:
        return f"{UNKNOWN} samples/s"
    return f"{samples_per_second:,.{0 if samples_per_second >= 10 else 1}f} samples/s"


def percent(fraction: float | None) -> str:
    """A fraction as a right-aligned percentage of four characters: ``' 84%'``; ``' n/a'`` when unknown."""
    return f"{UNKNOWN:>4}" if fraction is None else f"{round(fraction * 100):3d}%"


def share(fraction: float) -> str:
    """A part of a whole in four characters, right-aligned: ``' 41%'``, ``' <1%'``, and ``'100%'`` only of all of it."""
    return f"{part(fraction):>4}"


def figure(name: str, value: float) -> str:
    """One figure of a job's own evaluation: ``test accuracy 97.3%``; fractions named so become per cent."""
    words = shown(name).replace("_", " ")
    return f"{words} {value:.1%}" if "accuracy" in words and 0 <= value <= 1 else f"{words} {number(value, 4)}"


def clock(time: float, zone: tzinfo | None = None, *, seconds: bool = True) -> str:
    """A time of day on the user's clock (``zone`` None: the computer's own time zone)."""
    return datetime.fromtimestamp(time, tz=zone).strftime("%H:%M:%S" if seconds else "%H:%M")


def day(time: float, now: float, zone: tzinfo | None = None) -> str:
    """A moment in the past: ``14:21`` of today, ``Mon 14:21``, ``21 Sep 14:21``."""
    then, today = datetime.fromtimestamp(time, tz=zone), datetime.fromtimestamp(now, tz=zone)
    if then.date() == today.date():
        return f"{then:%H:%M}"
    return f"{then:%a %H:%M}" if (today.date() - then.date()).days < 7 else f"{then:%d %b %H:%M}"


def short_device(name: str) -> str:
    """A product name without its maker and family: ``NVIDIA GeForce RTX 3090`` becomes ``RTX 3090``."""
    short = _MAKERS.sub("", name, count=1)
    return short or name


def plural(count: int, noun: str) -> str:
    """``1 host``, ``3 hosts``, ``2 processes``, ``8 micro-batches``."""
    if count == 1:
        return f"1 {noun}"
    return (
        f"{count:,} {noun[:-1]}ies"
        if noun.endswith("y")
        else f"{count:,} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"
    )
