"""One step of all-reduce under way: whose the slices are, and what is awaited of whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from remote_agent.training.messages import Broken, Failed, Membership, Reduced, Slice
from remote_agent.training.rpc import Ref
from remote_agent.training.session import Member

Answer = Reduced | Broken | Failed


@dataclass(eq=False)
class Share:
    """A slice of a step and who computes it; ``lost_by`` had it before, ``issued`` is when it changed hands."""

    part: Slice
    member: Member
    lost_by: str = ""
    issued: float = 0.0


@dataclass(eq=False)
class Call:
    """A worker's part in a reduction that is under way."""

    answer: Ref[Answer]
    predicted_s: float


@dataclass(eq=False)
class Turn:
    """One step under way.

    ``due`` are the slices that are still to be handed out. ``moved`` is how much was reduced when last asked.
    """

    step: int
    samples: int
    end: int  # of the positions that were used with it
    shares: list[Share]
    due: list[Share] = field(default_factory=list)
    calls: dict[Member, Call] = field(default_factory=dict)
    submitted: dict[Member, float] = field(default_factory=dict)
    moved: int | None = None


@dataclass(frozen=True, eq=False)
class Group:
    """The workers that reduce together, and what each of them must know."""

    places: dict[Member, Membership]

    @property
    def number(self) -> int:
        """Of the group."""
        return next(iter(self.places.values())).number
