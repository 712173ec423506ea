"""Decides from facts whether a machine may join, and says what to do if not. Pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from hetero_tui.facts import Disk, HostFacts
from hetero_tui.inventory import Host, Inventory
from remote_agent.device_kinds import NUMBERED

NEEDED_PACKAGES = ("ray", "torch", "safetensors", "psutil", "numpy")
"""Packages that the agent's Python needs for a host to join a cluster."""

NEEDED_RAY = "2.60"
"""The version of Ray that the agent needs (pyproject.toml); all nodes of a cluster have the same patch release."""

BOOTSTRAP_MENDS = "`hetero-tui bootstrap` makes an environment there that has all of it (or `up --bootstrap`)"
"""The hint for a host whose Python lacks something."""

AWKWARD = re.compile(r"[\s'\"\\]")
"""What the path of a Python may not have for Ray."""

OLDEST_PYTHON = (3, 11)
MIN_FREE_DISK = 1 << 30
"""Bytes that must be free for Ray's spill files, logs and a checkpoint."""

MIN_FREE_MEMORY = 300 << 20
"""Bytes of memory that Ray's own processes need before anything is trained."""


_LEAST = (
    ("memory_bytes", 4 << 30, 1 << 20, "MB of memory for each process (ulimit -v)", "as unlimited"),
    ("processes", 500, 1, "processes and threads (ulimit -u)", "nproc unlimited"),
    ("files", 500, 1, "open files (ulimit -n)", "nofile 65536"),
    ("file_bytes", 1 << 30, 1 << 20, "MB for each file (ulimit -f)", "fsize unlimited"),
    ("seconds", 3600, 1, "s of processor time for each process (ulimit -t)", "cpu unlimited"),
    ("tasks", 500, 1, "processes and threads in its container or session (pids.max of its cgroup)", ""),
)
"""The user's limits that Ray and a run need: field of :class:`~hetero_tui.facts.Limits`, least value, unit, words, and
what raises it in limits.conf(5)."""


_WRITABLE = {
    "the home folder": "`sudo mkdir -p {home} && sudo chown {user} {home}`",
    "it is no folder": "`mv {path} {path}.old`",
    "the file system is read-only": '`sudo mount -o remount,rw "$(findmnt -n -o TARGET -T {path})"`, if `dmesg` names'
    " no error of its disk",
    "it belongs to another user": "`sudo chown -R {user} {path}`",
    "its mode": "`chmod u+rwx {path}`",
    "the file system has room": "delete files there that are not needed: `df -i {path}` counts them",
}
"""What mends a folder in which nothing can be written, by how the probe's word on it begins."""

_SHM = "/dev/shm"  # noqa: S108 - it is named, not used
_CONTAINER = "; or start its container with it (`--shm-size=2g`)"
_THERE = {
    "/proc is not mounted": "`sudo mount -t proc proc /proc`",
    f"{_SHM} is not there": f"`sudo mkdir -p {_SHM} && sudo mount -t tmpfs tmpfs {_SHM}`{_CONTAINER}",
    f"nothing can be written in {_SHM}": f"`sudo mount -o remount,rw,mode=1777 {_SHM}`{_CONTAINER}",
}
"""What brings what a system lacks, by the probe's word."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why a host can't join, in a sentence, and what to do about it.

    ``instead`` is the host that is used in its place: the same machine, or one with the same folder.
    """

    cause: str
    hint: str
    instead: str = ""


def judge_fleet(
    inventory: Inventory, fleet: Mapping[str, HostFacts], head: str | None = None
) -> dict[str, tuple[Problem, ...]]:
    """The problems that prevent each of these hosts from joining. ``head`` is the running cluster's."""
    judged = {host.name: judge(host, fleet[host.name]) for host in inventory.hosts if host.name in fleet}
    fit = {name: fleet[name] for name, problems in judged.items() if not problems}
    wanted = next((name for name in (head, inventory.head) if name in fit), None)
    at_home = {host.name for host in inventory.hosts if host.name in fleet and _is_there(host, fleet[host.name])}
    # Among all: two bare ones would get their environments in one folder, at the same time.
    there = sorted(judged, key=lambda name: (name != wanted, name not in at_home, name not in fit))
    twins = _twins({name: fleet[name] for name in there})
    twins |= _sharers({name: fleet[name] for name in there if name not in twins})
    odd = judge_together({name: facts for name, facts in fit.items() if name not in twins}, head)
    return judged | {name: (problem,) for name, problem in (twins | odd).items()}


def _is_there(host: Host, facts: HostFacts) -> bool:
    """Whether the machine says that it has the address in the inventory, or the one that its name resolved to."""
    return any(each.address in (host.address, facts.reached) for each in facts.addresses)


def _twins(fleet: Mapping[str, HostFacts]) -> dict[str, Problem]:
    """Hosts that are the same machine as another one, of which the first is used.

    The order of ``fleet``: the wanted head; then those at an address that they say they have, so that a host that
    repeats another machine's answers can't replace it; then those that are fit; then the inventory's.
    """
    used: dict[str, str] = {}
    twins: dict[str, Problem] = {}
    for name, facts in fleet.items():
        machine = facts.machine
        if machine is None:
            continue
        if machine in used:
            twins[name] = Problem(
                f"is the same machine as {used[machine]}, which is used",
                f"`hetero-tui remove {name}`, or the other one: two nodes of one cluster there would end each other",
                used[machine],
            )
        used.setdefault(machine, name)
    return twins


def _sharers(fleet: Mapping[str, HostFacts]) -> dict[str, Problem]:
    """Machines that share our folder on a server with another one, or with the server; the first is used."""
    used: dict[str, Disk] = {}
    sharers: dict[str, Problem] = {}
    for name, disk in ((name, facts.disk) for name, facts in fleet.items()):
        other = next((other for other, its in used.items() if _is_same_folder(disk, its)), None)
        if other is not None:
            place = disk.shared or used[other].shared or disk.path
            sharers[name] = Problem(
                f"has its home folder in common with {other} ({place}), and two nodes there would end each other",
                "give each a disk of its own: `mkdir -p /var/tmp/$USER-ht` on all that share it, and once"
                " `ln -s /var/tmp/$USER-ht ~/.hetero-tui` (where there is no such folder yet)",
                other,
            )
        used.setdefault(name, disk)
    return sharers


def _is_same_folder(disk: Disk, other: Disk) -> bool:
    """Whether two machines have one folder: from one server, by whatever name, or one of them is the server.

    Machines that were made from one image may have folders with one identity, each on a disk of its own.
    """
    if disk.shared is None and other.shared is None:
        return False
    return disk.shared == other.shared or (disk.identity is not None and disk.identity == other.identity)


def judge(host: Host, facts: HostFacts) -> tuple[Problem, ...]:
    """The problems that prevent one host from joining; empty if there are none."""
    problems: list[Problem] = []
    if facts.python.minor < OLDEST_PYTHON:
        problems.append(
            Problem(
                f"Python {facts.python.version} is too old, {'.'.join(map(str, OLDEST_PYTHON))} is needed",
                _environment_hint(host),
            )
        )
    missing = [package for package in NEEDED_PACKAGES if facts.packages.get(package) is None]
    if missing:
        problems.append(
            Problem(
                f"{facts.python.executable} has no {', '.join(missing)}",
                _environment_hint(host),
            )
        )
    ray = facts.packages.get("ray")
    if ray is not None and not ray.startswith(f"{NEEDED_RAY}."):
        problems.append(
            Problem(
                f"has Ray {ray}, and this hetero-tui needs {NEEDED_RAY}",
                f"`{shlex.quote(facts.python.executable)} -m pip install 'ray=={NEEDED_RAY}.*'`"
                if host.python is not None
                else _environment_hint(host),
            )
        )
    if AWKWARD.search(facts.python.executable):
        environment = shlex.quote(str(PurePosixPath(facts.python.executable).parents[1]))
        problems.append(
            Problem(
                f"Ray can't use a Python with a blank or a quotation mark in its path: {facts.python.executable}",
                f"`ln -s {environment} ~/ray-env` there gives its environment a plain path; then set"
                " `python: ~/ray-env/bin/python`",
            )
        )
    if facts.disk.unwritable:
        problems.append(
            Problem(
                f"nothing can be written in {facts.disk.path}: {facts.disk.unwritable}",
                _writable(facts),
            )
        )
    if facts.disk.free_bytes is not None and facts.disk.free_bytes < MIN_FREE_DISK:
        problems.append(
            Problem(
                f"only {facts.disk.free_bytes >> 20} MB free on {facts.disk.path}",
                f"free at least {MIN_FREE_DISK >> 20} MB there",
            )
        )
    available = facts.memory.available_bytes
    if available is not None and available < MIN_FREE_MEMORY:
        problems.append(Problem(f"only {available >> 20} MB of memory free", "end something else on this machine"))
    problems.extend(_limits(facts))
    for lack in facts.lacks:
        mend = _THERE.get(lack, "mount it there, as root")
        problems.append(Problem(f"{lack}, which Ray and training need", mend))
    absent = [device for device in host.devices or () if not _has_device(facts, device)]
    if absent:
        problems.append(
            Problem(
                f"no {', '.join(absent)} there (found: {', '.join(dict.fromkeys((*facts.devices, 'cpu')))})",
                "; ".join((*facts.unused, "correct `devices:` of this host, or its driver")),
            )
        )
    return tuple(problems)


def _writable(facts: HostFacts) -> str:
    """What has this user write where the cluster's folder goes."""
    words = {"path": facts.disk.path, "home": facts.home, "user": facts.user}
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    for begins, mend in _WRITABLE.items():
        if facts.disk.unwritable.startswith(begins):
            return mend.format(**quoted)
    return "it has to be a folder with a plain name, on a disk with room, in which this user may make files"


def _limits(facts: HostFacts) -> Iterator[Problem]:
    """The user's limits that are too low for Ray or a run."""
    for name, least, unit, what, raised in _LEAST:
        limit = getattr(facts.limits, name)
        if limit is not None and limit < least:
            mend = "raise it there, in the user's start-up files (~/.bashrc) or by launchctl"
            if not raised:
                mend = "start its container with more (`--pids-limit`), or raise TasksMax= of its systemd slice"
            elif facts.os.system == "Linux":
                line = shlex.quote(f"{facts.user} - {raised}")
                mend = (
                    f"`echo {line} | sudo tee -a /etc/security/limits.d/hetero-tui.conf` raises it from the next login"
                )
                mend += " on, unless a start-up file (~/.bashrc) lowers it"
            yield Problem(f"its user may have only {limit // unit} {what}; {least // unit} are needed", mend)


def _environment_hint(host: Host) -> str:
    """The hint for a host without a usable Python."""
    if host.python is None:
        return BOOTSTRAP_MENDS
    return "install `hetero-tui[node]`'s packages in that one, or take `python:` out and run `hetero-tui bootstrap`"


def judge_together(fleet: Mapping[str, HostFacts], head: str | None = None) -> dict[str, Problem]:
    """Hosts whose Ray or Python differs from that of the running ``head``, or without one from that of most hosts.

    If two versions are equally frequent, the first host's counts.
    """
    odd: dict[str, Problem] = {}
    for word, version_of in (("Ray", _ray_version), ("Python", _python_minor)):
        versions = {name: version_of(facts) for name, facts in fleet.items()}
        if len(set(versions.values())) < 2:
            continue
        usual = versions[head] if head in versions else Counter(versions.values()).most_common(1)[0][0]
        who = f"the running head, {head}, has" if head in versions else _have(versions, usual)
        for name, version in versions.items():
            if version != usual and name not in odd:
                hint = _same_version_hint(word, usual, fleet[name], head_runs=head in versions)
                odd[name] = Problem(f"has {word} {version}, and {who} {usual}", f"{hint}: one cluster can't mix them")
    return odd


def _same_version_hint(word: str, version: str, facts: HostFacts, *, head_runs: bool) -> str:
    """The hint for a host whose Ray or Python is not of the others' version."""
    if "/.hetero-tui/" in facts.python.executable:
        first = "run `hetero-tui down`, then " if head_runs else ""
        return f"{first}`hetero-tui bootstrap` gives all hosts the same"
    if word == "Ray":
        return f"`{shlex.quote(facts.python.executable)} -m pip install 'ray=={version}'`"
    return f"name a Python {version} there as `python:`, or run `hetero-tui bootstrap` without any `python:` there"


def _have(versions: Mapping[str, str], version: str) -> str:
    names = [name for name, own in versions.items() if own == version]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} {'has' if len(names) == 1 else 'have'}"


def training_devices(host: Host, facts: HostFacts) -> tuple[str, ...]:
    """The devices of this host that train, by torch's names: those in the inventory, else all."""
    if host.role == "server":
        return ()
    if host.devices is None:
        return facts.devices
    chosen: list[str] = []
    for device in host.devices:
        if device in NUMBERED:
            chosen.extend(name for name in facts.devices if name.startswith(f"{device}:"))
        else:
            chosen.append(device)
    return tuple(dict.fromkeys(chosen))


def _has_device(facts: HostFacts, device: str) -> bool:
    if device == "cpu":
        return True
    if device in NUMBERED:
        return any(name.startswith(f"{device}:") for name in facts.devices)
    return device in facts.devices


def _ray_version(facts: HostFacts) -> str:
    return facts.packages.get("ray") or "none"


def _python_minor(facts: HostFacts) -> str:
    return ".".join(map(str, facts.python.minor))
