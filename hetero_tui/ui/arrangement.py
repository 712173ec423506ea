"""Divides the main screen for a terminal's size, in lines and cells that always add up. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FRAME = 2
"""Lines (and cells) of a panel's border."""

SIDE_BY_SIDE = 100
"""Cells from which the loss and the times stand beside each other."""

WITH_DETAILS = 160
"""Cells from which the marked host's details stand beside the events."""

_LOW = 12
"""Lines below which only the hosts are shown, without a border."""

_BARS = 2
"""Header and key line."""

_MIN = FRAME + 2
"""Lines of the smallest useful table (titles and a host), and of the smallest event log."""

_MIN_CURVE = FRAME + 4
_TALLEST_FIGURES = 34
_DETAILS_WIDTH = 56
_IDLE = FRAME + 5
"""Lines of what there is to do while there is no run."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Heights in lines, borders included; 0 leaves a panel out. ``details_width`` is in cells.

    Side by side, ``time``, ``timeline`` and ``rate`` share the right half of ``figures``, and ``loss`` has the left.
    """

    framed: bool = True
    hosts: int
    outcome: int = 0
    figures: int = 0
    side_by_side: bool = False
    loss: int = 0
    time: int = 0
    timeline: int = 0
    rate: int = 0
    idle: int = 0
    events: int = 0
    details_width: int = 0


def arrange(width: int, height: int, *, hosts: int, workers: int, run: bool, final: bool) -> Arrangement:
    """The division of ``width`` by ``height`` cells.

    Args:
        width: Cells of the terminal.
        height: Lines of the terminal.
        hosts: Hosts in the table.
        workers: Workers with a bar.
        run: Whether there is a run to show.
        final: Whether it has ended, and how is to be said in a line.
    """
    body = max(1, height - _BARS)
    if height < _LOW:
        return Arrangement(framed=False, hosts=body)
    wanted = hosts + 1 + FRAME
    details = _DETAILS_WIDTH if width >= WITH_DETAILS else 0
    if not run:
        events = max(_MIN, min(body // 3, 16), body - wanted)
        idle = _IDLE if events >= _MIN + _IDLE else 0
        return Arrangement(hosts=body - events, idle=idle, events=events - idle, details_width=details)
    outcome = 1 if final else 0
    beside = _beside(body, wanted, outcome, max(1, workers), details) if width >= SIDE_BY_SIDE else None
    return beside or _stacked(body, wanted, outcome, max(1, workers))


def _beside(body: int, wanted: int, outcome: int, workers: int, details: int) -> Arrangement | None:
    """The loss beside the times; None where there is no line for what is inside their borders."""
    least_events = _MIN + 1
    least_figures = FRAME + min(workers, 6) + 1
    most_hosts = min(body - outcome - least_events - least_figures, max(body * 2 // 5, FRAME + 5))
    hosts = max(_MIN, min(wanted, most_hosts))
    rest = body - hosts - outcome
    figures = max(min(rest - least_events, least_figures), min(_TALLEST_FIGURES, rest * 11 // 20))
    if figures <= FRAME:
        return None
    airy = FRAME + 2 * min(workers, 8)
    time = min(airy + 1, figures)
    timeline = airy if details and figures - time >= airy else 0
    rate = figures - time - timeline
    if rate < _MIN_CURVE:
        time, rate = time + rate, 0
    return Arrangement(
        hosts=hosts,
        outcome=outcome,
        figures=figures,
        side_by_side=True,
        loss=figures,
        time=time,
        timeline=timeline,
        rate=rate,
        events=rest - figures,
        details_width=details,
    )


def _stacked(body: int, wanted: int, outcome: int, workers: int) -> Arrangement:
    room = body - outcome
    loss, time = FRAME + 1, FRAME + min(workers, 4) + 1
    some_hosts = min(wanted, _MIN + 3)
    if room < some_hosts + loss + time + _MIN:
        time = 0
    if room < some_hosts + loss + time + _MIN:
        loss = 0
    hosts = max(_MIN, min(wanted, room - loss - time - _MIN))
    spare = room - hosts - loss - time - _MIN
    if loss and spare > 8:
        loss += min(12, spare // 2)
    return Arrangement(
        hosts=hosts,
        outcome=outcome,
        figures=loss + time,
        loss=loss,
        time=time,
        events=room - hosts - loss - time,
    )
