"""Defines the measurements of the devices before a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.shared.audit import Audit
from remote_agent.training.shared.dataplane import Usage
from remote_agent.training.shared.messages import DeviceCosts

T = TypeVar("T")


@dataclass(frozen=True)
class Measurements:
    """A profile for each candidate, what the model does with its tensors, and what simulated devices refer to.

    Attributes:
        audit: what an audit of the job found; None: it was not audited.
        loss: with the first weights.
        notes: for the plan: how the devices compute, and what fits into their memory.
        costs: seconds of work beside forward and backward.
        calls_s: seconds until each worker has answered if all are called at once.
    """

    profiles: tuple[DeviceProfile, ...]
    usage: Usage
    audit: Audit | None
    loss: float
    reference: DeviceProfile | None
    notes: tuple[str, ...] = ()
    costs: tuple[DeviceCosts, ...] = ()
    calls_s: tuple[float, ...] = ()

    def of(self, positions: Sequence[int]) -> Measurements:
        """The same of these candidates only."""

        def only(values: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(values[position] for position in positions) if values else ()

        return dataclasses.replace(
            self,
            profiles=only(self.profiles),
            costs=only(self.costs),
            calls_s=only(self.calls_s),
        )

    def in_units(self, unit: int) -> Measurements:
        """The same, of slices that are computed ``unit`` samples at a time; 0: as it is."""
        profiles = tuple(each.in_units(unit) for each in self.profiles)
        reference = self.reference.in_units(unit) if self.reference is not None else None
        return dataclasses.replace(self, profiles=profiles, reference=reference)

    def moving(self, names: Iterable[str]) -> Measurements:
        """The same, with these buffers and frozen parameters as what the job's code changes."""
        usage = dataclasses.replace(self.usage, buffers=self.usage.buffers | frozenset(names))
        return dataclasses.replace(self, usage=usage)
