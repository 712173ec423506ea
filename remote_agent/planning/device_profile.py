"""A device's measured speed."""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST = 2
"""Smallest slice that is measured: batch normalisation needs two samples."""


@dataclass(frozen=True)
class DeviceProfile:
    """What a device needs for a slice of ``b`` samples: ``overhead_s + b / speed`` seconds.

    Attributes:
        speed: samples per second, > 0.
        overhead_s: seconds that a slice costs whatever its size, >= 0.
        max_batch: most samples that fit into its memory; None: no limit known.
    """

    speed: float
    overhead_s: float = 0.0
    max_batch: int | None = None

    def seconds(self, samples: int) -> float:
        """Predicted seconds for a slice of ``samples``; 0 for an empty one, which is never sent."""
        return self.overhead_s + samples / self.speed if samples else 0.0

    def in_units(self, unit: int) -> DeviceProfile:
        """Of slices that are computed ``unit`` samples at a time, each of which costs the overhead; 0: as it is."""
        if not unit:
            return self
        return DeviceProfile(1.0 / (1.0 / self.speed + self.overhead_s / unit), 0.0, self.max_batch)
