"""A plan of random faults, from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KINDS: Mapping[str, float] = {"worker": 5.0, "cut": 4.0, "slow": 3.0, "power": 2.0, "coordinator": 1.0}
"""Kinds of faults, and how often each comes beside the others."""

RECOVERY_S: Mapping[str, float] = {"worker": 10.0, "cut": 20.0, "slow": 5.0, "power": 45.0, "coordinator": 60.0}
"""After a fault's end its host is left alone for so long, so that a fault meets a host that is there."""

LENGTH = (0.1, 0.7)
"""How long a cut, a slow time or a time without power is, as parts of the time between two faults."""


@dataclass(frozen=True, order=True)
class Planned:
    """``at`` seconds after the beginning this happens to ``host``, for ``lasts`` seconds (0: it is a moment)."""

    at: float
    kind: str
    host: str
    lasts: float = 0.0


def planned(
    seed: int, faults: int, seconds: float, hosts: Sequence[str], kinds: Sequence[str] = tuple(KINDS)
) -> tuple[Planned, ...]:
    """So many faults within ``seconds``, by time; ``hosts[0]`` is the head, which keeps its power and its cable.

    One host is always left in peace, and none is struck while it recovers, unless all do.
    """
    dice = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    every = seconds / faults
    busy_until = dict.fromkeys((*hosts, "coordinator"), 0.0)
    found = []
    for number in range(faults):
        at = every * (number + dice.uniform(0.1, 0.5))
        free = [host for host in hosts if busy_until[host] <= at]
        possible = [
            (kind, host)
            for kind in kinds
            for host in (free if len(free) > 1 else [])
            if not (host == hosts[0] and kind in ("cut", "power"))
            and (kind != "coordinator" or (host == hosts[0] and busy_until["coordinator"] <= at))
        ]
        if possible:
            kind = dice.choices(kinds, [KINDS[kind] * any(kind == one for one, _ in possible) for kind in kinds])[0]
            host = dice.choice([host for one, host in possible if one == kind])
        else:
            kind, host = kinds[0], min(hosts, key=lambda host: busy_until[host])
        lasts = every * dice.uniform(*LENGTH) if kind in ("cut", "slow", "power") else 0.0
        busy_until["coordinator" if kind == "coordinator" else host] = at + lasts + RECOVERY_S[kind]
        found.append(Planned(at, kind, host, lasts))
    return tuple(found)
