"""Derives the findings of ``check`` from facts and measurements; each says how to solve the problem. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from hetero_tui.errors import HostError
from hetero_tui.facts import HostFacts
from hetero_tui.fleet.install.verification import Verification, mend_for
from hetero_tui.fleet.preflight import NEEDED_PACKAGES, Problem, training_devices
from hetero_tui.inventory import Host, Inventory
from hetero_tui.outcomes import BAD, FIX, WARNING, Finding
from hetero_tui.planning.builds import torch_build

MOST_CLOCK_SKEW = 30.0
"""Seconds that a machine's clock may be off, since logs of several hosts are sorted by time."""

TRUSTED_ONLY = (
    "weights and gradients go between the hosts in clear: who controls a machine or a cable on the way can read and"
    " change them, though not get into the cluster; `security: tls` encrypts them"
)
FEWEST_FILES = 4096
"""Least limit of open files; Ray's processes need one for each connection."""

SLOW_LINK = 20e6 / 8
"""Bytes per second below which a link is reported; a few steps of a small model then take a minute."""

_ROOM = {"cpu": 4, "mps": 3}
_ROOM_OF_OTHERS = 16
"""GB that the installation of an environment needs for fetched and unpacked packages; CUDA's and ROCm's are large."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a machine's system does to processes that run for long.

    Attributes:
        skew: its clock's offset from this computer's, in seconds.
        open_files: files that a process may have open.
        sleeps_after: minutes without a user; 0: never.
        ends_at_logout: systemd kills what a user has started when the user logs out.
    """

    skew: float | None = None
    open_files: int | None = None
    sleeps_after: int = 0
    on_battery: bool = False
    ends_at_logout: bool = False


def of_network(addresses: Iterable[str], inventory: Inventory) -> str:
    """The warning about data in clear between hosts at these addresses.

    It is empty under TLS or WireGuard, and if there is one host alone, or all are on one computer.
    """
    different = set(addresses)
    on_wire = len(different) > 1 and not all(ipaddress.ip_address(each).is_loopback for each in different)
    return TRUSTED_ONLY if on_wire and not inventory.encrypted and not inventory.meshed else ""


def of_error(error: HostError) -> Finding:
    """The finding for a machine that could not be checked."""
    return Finding(error.host, BAD, error.cause, "nothing can be done there until it answers", error.hint)


def of_problem(host: str, problem: Problem) -> Finding:
    """The finding for a problem of preflight."""
    return Finding(host, BAD, problem.cause, "the host can't join the cluster", problem.hint)


def of_facts(host: Host, facts: HostFacts) -> tuple[Finding, ...]:
    """Findings from a machine's facts, apart from those that prevent it from joining."""
    found = [
        Finding(
            host.name, WARNING, problem, "what it concerns is not used", "mend its driver or tool, then check again"
        )
        for problem in facts.problems
    ]
    build = torch_build(facts, host.devices)
    bootstrap = FIX if host.python is None else f"install torch's build {build.name} in its `python:`"
    has = facts.torch_build or ""
    if build.concern:
        found.append(Finding(host.name, WARNING, build.concern, "it trains without", build.mend))
    if has.startswith("cu13") and build.name == "cu126":
        what = f"torch is built for CUDA 13 ({has}), and {build.why}"
        found.append(Finding(host.name, BAD, what, "its first operation on the GPU would fail", bootstrap))
    elif idle := idle_devices(host, facts):
        names = ", ".join(dict.fromkeys(facts.with_build(build.name).device_name(device) for device in idle))
        why = "" if has == "cpu" else f" (it is {has}; {build.name} is for it: {build.why})"
        what = f"torch is built for {'the CPU' if has == 'cpu' else 'other devices'}, and there is {names}{why}"
        found.append(Finding(host.name, WARNING, what, "its GPU is idle", bootstrap))
    if any(facts.packages.get(package) is None for package in NEEDED_PACKAGES):
        found += of_room(host.name, facts, build.name)
    return tuple(found)


def idle_devices(host: Host, facts: HostFacts) -> tuple[str, ...]:
    """The devices that would train with the build of torch that bootstrap chooses, and can't with the present one."""
    build = torch_build(facts, host.devices).name
    if (facts.torch_build or "").startswith("cu13") and build == "cu126":  # its driver may be the reason
        return training_devices(host, facts.with_build(build))
    used = training_devices(host, facts)
    return tuple(device for device in training_devices(host, facts.with_build(build)) if device not in used)


def of_room(host: str, facts: HostFacts, build: str) -> tuple[Finding, ...]:
    """Whether an environment with that build of torch has room on a machine's disk."""
    room = _ROOM.get(build, _ROOM_OF_OTHERS)
    if facts.disk.free_bytes is None or facts.disk.free_bytes >= room * 10**9:
        return ()
    what = f"{facts.disk.free_bytes / 1e9:.1f} GB free on {facts.disk.path}"
    why = f"an environment with torch {build} takes about {room} GB while it is made"
    return (Finding(host, WARNING, what, why, f"free {room} GB there before `hetero-tui bootstrap`"),)


def of_surroundings(host: str, facts: HostFacts, around: Surroundings) -> tuple[Finding, ...]:
    """Findings from a machine's system settings."""
    found: list[Finding] = []
    mac = facts.os.system == "Darwin"
    if around.skew is not None and abs(around.skew) > MOST_CLOCK_SKEW:
        what = f"its clock is {abs(around.skew):.0f} s {'ahead' if around.skew > 0 else 'behind'}"
        mend = "sudo sntp -sS time.apple.com" if mac else "sudo timedatectl set-ntp true"
        found.append(Finding(host, WARNING, what, "logs of several hosts are ordered by their clocks", mend))
    if around.sleeps_after:
        what = f"it goes to sleep after {around.sleeps_after} min without a user"
        mend = (
            "sudo pmset -c sleep 0"
            if mac
            else ("gsettings set org.gnome.settings-daemon.plugins.power sleep-inactive-ac-type nothing")
        )
        found.append(Finding(host, WARNING, what, "a machine that sleeps is lost to the run", mend))
    if around.on_battery:
        why = "it is slower so, and switches itself off in the end"
        found.append(Finding(host, WARNING, "it runs on its battery", why, "plug it in"))
    if around.ends_at_logout:
        what = "systemd kills all that you have started there when you log out (KillUserProcesses)"
        why = "its part of the cluster ends with the connection of the command that started it"
        mend = "`KillUserProcesses=no` below `[Login]` in /etc/systemd/logind.conf, then restart the machine"
        found.append(Finding(host, WARNING, what, why, mend))
    if around.open_files is not None and around.open_files < FEWEST_FILES:
        what = f"its processes may have {around.open_files} files open"
        mend = (
            "sudo launchctl limit maxfiles 65536 200000"
            if mac
            else ("a line `* hard nofile 65536` in /etc/security/limits.conf, then log in again")
        )
        found.append(Finding(host, WARNING, what, "Ray's have one for each connection", mend))
    return tuple(found)


def of_link(host: str, sends: float, receives: float) -> tuple[Finding, ...]:
    """Findings from the speed of a host's link to the others, in bytes per second."""
    slowest = min(sends, receives)
    if slowest >= SLOW_LINK:
        return ()
    way = "sends" if slowest == sends else "receives"
    what = f"it {way} {slowest * 8 / 1e6:.1f} Mbit/s, measured while all hosts sent and received"
    why = f"a step of 10 million parameters in fp32 would wait about {2 * 4e7 / slowest:.0f} s for it"
    mend = "connect it by cable; or train with --set strategy=local_sgd, or --set codec=int8"
    return (Finding(host, WARNING, what, why, mend),)


def of_trial(host: Host, facts: HostFacts, shown: Verification) -> tuple[Finding, ...]:
    """Findings from the test of a machine's devices."""
    mend = FIX if host.python is None else f"mend the packages of {facts.python.executable}"
    why = "training there would fail with it"
    return tuple(Finding(host.name, BAD, problem, why, mend_for(problem, mend)) for problem in shown.problems)
