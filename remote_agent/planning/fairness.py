"""Shares channels among independent transfers, by max-min fairness. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def fair_rates(caps: Sequence[float], loads: Mapping[str, Sequence[float]], rates: Mapping[str, float]) -> list[float]:
    """Max-min fair rates: all rise together until a channel is full or a cap is reached, those concerned stay there.

    Args:
        caps: the most of each.
        loads: what one unit of each asks of each channel.
    """
    pace, open_ = [0.0] * len(caps), set(range(len(caps)))
    while open_:
        room = {
            name: (rates[name] - sum(load * each for load, each in zip(of, pace, strict=True)))
            / sum(of[number] for number in open_)
            for name, of in loads.items()
            if any(of[number] > 0 for number in open_)
        }
        level = {number: caps[number] - pace[number] for number in open_}
        rise = max(0.0, min([*room.values(), *level.values()]))
        for number in open_:
            pace[number] += rise
        full = {name for name, left in room.items() if left <= rise * (1 + 1e-9)}
        stopped = {
            number
            for number in open_
            if level[number] <= rise * (1 + 1e-9) or any(loads[name][number] > 0 for name in full)
        }
        open_ -= stopped or open_
    return pace
