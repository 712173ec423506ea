"""Which links share something, by what they carry all at once and one at a time. Pure.

Where all hosts send and receive at once, each has what the others leave of a medium that they share, such as one Wi-Fi
or a powerline. One that sends alone has all of it. So hosts whose link carries far more alone share one medium. What
that carries is the sum of what all of them sent and received at once: each byte between two of them passes it twice, as
on a Wi-Fi with an access point. A single host of that kind shares its link with itself: one direction at a time.

Connections that share need not have as much each: over half a second one may have nine times as much as another. So a
host is compared by what it sent and received, and hosts that seem to share are compared together once more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.planning.survey import Host

SHARED = "that hosts share"
"""Name of the medium that was found."""

FASTER = 1.6
"""Times as much that a shared link carries alone: where two share it is twice as much, measured with some error."""

SLOWED = 1.25
"""Times as much that a host sends alone, if what it sent at once was slowed at all."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What of some links is shared.

    Attributes:
        both: bytes/s of both directions together, of each link on which they share a channel; 0: they do not.
        medium: bytes/s of what all these links share; 0: nothing is.
    """

    both: tuple[float, ...]
    medium: float = 0.0


def found(at_once: Sequence[tuple[float, float]], alone: Sequence[float]) -> Found:
    """What is shared.

    Args:
        at_once: bytes/s that each host sent to the next one, and received from the one before, while all did.
        alone: bytes/s that each sent to the next one while nothing else was sent; 0: it was not measured.
    """
    seem = [
        up > 0 and by_itself > FASTER * (up + down) / 2 for (up, down), by_itself in zip(at_once, alone, strict=True)
    ]
    # A host that only receives less, from a partner with a slow link, seems to share as well.
    slowed = [each and alone[place] > SLOWED * at_once[place][0] for place, each in enumerate(seem)]
    for members in (seem, slowed):
        if _share(members, at_once, alone):
            together = sum(up + down for (up, down), shares in zip(at_once, members, strict=True) if shares)
            both = tuple(together if shares else 0.0 for shares in members)
            return Found(both=both, medium=together if sum(members) > 1 else 0.0)
    return Found(both=(0.0,) * len(at_once))


def _share(members: Sequence[bool], at_once: Sequence[tuple[float, float]], alone: Sequence[float]) -> bool:
    """Whether what these send and receive is more, by far, one at a time than at once."""
    theirs = [place for place in range(len(members)) if members[place] or members[(place + 1) % len(members)]]
    return sum(alone[place] for place in theirs) > FASTER * sum(at_once[place][0] for place in theirs)


def on(host: Host, both: float, medium: float) -> Host:
    """The host on what its link shares; see :class:`Found`."""
    return dataclasses.replace(host, both=both, medium=SHARED if both and medium else "")
