"""Defines the measurements of the devices before a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.shared.dataplane import Usage
from remote_agent.training.shared.findings import Findings
from remote_agent.training.shared.job_fingerprint import Named
from remote_agent.training.shared.messages import DeviceCosts

T = TypeVar("T")


@dataclass(frozen=True)
class Measurements:
    """A profile for each candidate, what the model does with its tensors, and what simulated devices refer to.

    Attributes:
        findings: whether parts of a batch give what the whole batch gives.
        loss: with the first weights.
        notes: for the plan: how the devices compute, and what fits into their memory.
        costs: seconds of work beside forward and backward.
        calls_s: seconds until each worker has answered if all are called at once.
        workers: what each worker, by its name, made of the first samples.
    """

    profiles: tuple[DeviceProfile, ...]
    usage: Usage
    findings: Findings
    loss: float
    reference: DeviceProfile | None
    notes: tuple[str, ...] = ()
    costs: tuple[DeviceCosts, ...] = ()
    calls_s: tuple[float, ...] = ()
    workers: tuple[Named, ...] = ()

    def of(self, positions: Sequence[int]) -> Measurements:
        """The same of these candidates only."""

        def only(values: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(values[position] for position in positions) if values else ()

        return dataclasses.replace(
            self,
            profiles=only(self.profiles),
            costs=only(self.costs),
            calls_s=only(self.calls_s),
            workers=only(self.workers),
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
