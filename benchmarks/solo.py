"""What hosts do that exchange nothing: each alone, which scaling is measured against, and all at the same time.

A host alone trains with the whole batch: the gradient at the pace of its simulated device, which follows from a
measurement of this computer (the *reference*), then the optimizer's step as it is here. So the rate of a host depends
on the reference as well as on the moment, and a run of ours has a reference of its own: what is measured here are the
parts of a step, and the rate for any reference follows from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.lab import SETUP_DEADLINE, Fleet, Outcome, Plan
from benchmarks.peers import environment, runner
from remote_agent.planning import shares
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.worker.device.simulation import SimulatedDevice

MODULE = "benchmarks.peers.apart"

WHOLE_STEP = 1.2
"""Hosts that train at the same time get so many times the slowest one's step, if that is more than they would have."""


@dataclass(frozen=True)
class Alone:
    """One host alone: seconds of the whole batch's gradient as this computer computes it, and of the optimizer."""

    gradient_s: float
    optimizer_s: float

    def rate(self, device: DeviceProfile, batch: int) -> float:
        """Samples/s on a simulated device: never sooner than it says, later where the computer is slower."""
        return batch / (max(device.seconds(batch), self.gradient_s) + self.optimizer_s)


@dataclass(frozen=True)
class Solo:
    """All hosts, each alone, one after the other.

    Attributes:
        speeds: of their simulated devices.
        batch: samples of a step.
        hosts: what was measured, in the order of ``speeds``.
    """

    speeds: tuple[float, ...]
    batch: int
    hosts: tuple[Alone, ...]

    def total(self, reference: DeviceProfile) -> float:
        """Samples/s of the hosts added up, were the simulated devices of this reference."""
        devices = profiles(self.speeds, reference)
        return sum(host.rate(device, self.batch) for host, device in zip(self.hosts, devices, strict=True))

    @property
    def pace(self) -> float:
        """Samples/s of this computer itself, one host at a time, gradients only."""
        return self.batch * len(self.hosts) / sum(host.gradient_s for host in self.hosts)

    @property
    def optimizer_s(self) -> float:
        """Seconds of a step of the optimizer, on average."""
        return sum(host.optimizer_s for host in self.hosts) / len(self.hosts)


@dataclass(frozen=True)
class Beside:
    """What hosts did alone directly before a row and directly after it."""

    before: Solo
    after: Solo

    def total(self, reference: DeviceProfile) -> float:
        """The mean of both sums, samples/s: what the row's own rate is compared with."""
        return (self.before.total(reference) + self.after.total(reference)) / 2

    def spread(self, reference: DeviceProfile) -> float:
        """By how much the two sums differ, as a part of their mean."""
        return abs(self.before.total(reference) - self.after.total(reference)) / self.total(reference)

    @property
    def pace_spread(self) -> float:
        """By how much this computer's own pace differs, as a part of the mean: all that is not simulated follows it."""
        return 2 * abs(self.before.pace - self.after.pace) / (self.before.pace + self.after.pace)


def cut_bound(solo: Solo, reference: DeviceProfile, parts: Sequence[int], *, common: bool) -> float:
    """What is left of the sum where the hosts compute such parts in the place of whole batches, and nothing else.

    A slice costs a device a fixed time beside its samples', and samples are whole: a part of a batch takes longer than
    its part of the time. The optimizer's step is in it as each kind of exchange has it.

    Args:
        solo: for the optimizer's step, and for the sum.
        reference: of the simulated devices.
        parts: samples that each host computes at a time.
        common: all wait for all parts of a step, and its optimizer's step is cut over the hosts as its batch is; else
            each goes on at its own pace, and the optimizer makes a step for each part.
    """
    devices = profiles(solo.speeds, reference)
    if common:
        rate = sum(parts) / (shares.step_seconds(parts, devices) + solo.optimizer_s / len(devices))
    else:
        rate = sum(
            part / (device.seconds(part) + host.optimizer_s)
            for part, device, host in zip(parts, devices, solo.hosts, strict=True)
            if part
        )
    return rate / solo.total(reference)


def profiles(speeds: Sequence[float], reference: DeviceProfile) -> tuple[DeviceProfile, ...]:
    """The simulated devices of these speeds."""
    return tuple(SimulatedDevice(speed, reference).profile for speed in speeds)


# --- On the lab's hosts ----------------------------------------------------------------------------------------------


def measure(fleet: Fleet, plan: Plan, seconds: float) -> Solo:
    """Each host alone for about so many seconds, one after the other.

    Raises:
        RuntimeError: one of them failed; the text says which, and why.
    """
    found = []
    for rank, host in enumerate(fleet.lab.hosts):
        settings = runner.settings_of(
            fleet, plan, DeviceProfile(1.0), hosts=len(fleet.speeds), rank=rank, variant="alone"
        )
        settings = dataclasses.replace(settings, seconds=seconds)
        found.append(Alone(**runner.measure(host, MODULE, settings, seconds + SETUP_DEADLINE, f"{host.name} alone")))
    return Solo(fleet.speeds, plan.batch, tuple(found))


def together(fleet: Fleet, plan: Plan, reference: DeviceProfile, batches: Sequence[int], name: str) -> Outcome:
    """All hosts at the same time, each training for itself with so many samples a step; who has none does nothing.

    For the plan's time, and at least for a whole step of all. A failure is the outcome's ``error``.
    """
    about = f"no exchange, steps of {', '.join(str(batch) for batch in batches)} samples"
    python, _ = environment.python_with("")
    busy = [index for index, batch in enumerate(batches) if batch]
    devices = profiles(fleet.speeds, reference)
    longest = max(devices[index].seconds(batches[index]) for index in busy)
    seconds = max(plan.seconds, WHOLE_STEP * longest)
    hosts = [fleet.lab.hosts[index] for index in busy]
    common = dataclasses.replace(
        runner.settings_of(fleet, plan, reference, hosts=len(fleet.speeds), rank=0, variant="together"),
        addresses=tuple(host.address for host in hosts),
        speeds=tuple(fleet.speeds[index] for index in busy),
        seconds=seconds,
        snapshot_every=0,
    )
    each = [dataclasses.replace(common, rank=rank, batch=batches[index]) for rank, index in enumerate(busy)]
    outcome = runner.run_together(hosts, python, MODULE, each, seconds + SETUP_DEADLINE)
    return dataclasses.replace(outcome, name=name, about=about)
