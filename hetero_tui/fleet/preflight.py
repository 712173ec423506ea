"""May this machine join? Pure verdicts on facts, each with what to do next; nothing is asked of a host here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hetero_tui.facts import HostFacts
from hetero_tui.inventory import Host

NEEDED_PACKAGES = ("ray", "torch", "safetensors", "psutil", "numpy")
"""What the agent's Python must have for a host to join a cluster."""

OLDEST_PYTHON = (3, 11)
MIN_FREE_DISK = 1 << 30
"""Bytes that must be free for Ray's spill files, logs and a checkpoint."""

MIN_FREE_MEMORY = 300 << 20
"""Bytes of memory that Ray's own processes need before anything is trained."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a host can't join, in a sentence, and what to do about it."""

    cause: str
    hint: str


def judge(host: Host, facts: HostFacts) -> tuple[Problem, ...]:
    """What keeps one host from joining; empty when nothing does."""
    problems: list[Problem] = []
    if facts.python.minor < OLDEST_PYTHON:
        problems.append(
            Problem(
                f"Python {facts.python.version} is too old, {'.'.join(map(str, OLDEST_PYTHON))} is needed",
                "set `python:` for this host to a newer one that has hetero-tui[node]'s packages",
            )
        )
    missing = [package for package in NEEDED_PACKAGES if facts.packages.get(package) is None]
    if missing:
        problems.append(
            Problem(
                f"{facts.python.executable} has no {', '.join(missing)}",
                "make an environment there with `pip install 'hetero-tui[node]'` and set `python:` to its python",
            )
        )
    blank = next((path for path in (facts.python.executable, facts.home) if " " in path), None)
    if blank is not None:
        problems.append(
            Problem(
                f"Ray starts no worker below a folder with a blank in its name: {blank}",
                "use an environment and a home folder without blanks",
            )
        )
    if facts.disk.unwritable:
        problems.append(
            Problem(
                f"nothing can be written in {facts.disk.path}: {facts.disk.unwritable}",
                "give this user the right to write in its home folder there",
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
    absent = [device for device in host.devices or () if not _has_device(facts, device)]
    if absent:
        problems.append(
            Problem(
                f"no {', '.join(absent)} there (found: {', '.join((*facts.devices, 'cpu'))})",
                "correct `devices:` of this host, or its driver",
            )
        )
    return tuple(problems)


def judge_together(fleet: Mapping[str, HostFacts]) -> dict[str, Problem]:
    """Hosts whose versions of Ray or Python do not match the majority's: Ray refuses them in one cluster."""
    odd: dict[str, Problem] = {}
    for word, version_of in (("Ray", _ray_version), ("Python", _python_minor)):
        versions = Counter(version_of(facts) for facts in fleet.values())
        if len(versions) < 2:
            continue
        usual = versions.most_common(1)[0][0]
        for name, facts in fleet.items():
            if version_of(facts) != usual and name not in odd:
                odd[name] = Problem(
                    f"has {word} {version_of(facts)}, most of the others have {usual}",
                    f"give every host the same {word}: one cluster can't mix them",
                )
    return odd


def training_devices(host: Host, facts: HostFacts) -> tuple[str, ...]:
    """The devices of this host that train, by torch's names: what the inventory says, else all that there are."""
    if host.role == "server":
        return ()
    if host.devices is None:
        return facts.devices
    chosen: list[str] = []
    for device in host.devices:
        if device == "cuda":
            chosen.extend(name for name in facts.devices if name.startswith("cuda:"))
        else:
            chosen.append(device)
    return tuple(dict.fromkeys(chosen))


def _has_device(facts: HostFacts, device: str) -> bool:
    if device == "cpu":
        return True
    if device == "cuda":
        return any(name.startswith("cuda:") for name in facts.devices)
    return device in facts.devices


def _ray_version(facts: HostFacts) -> str:
    return facts.packages.get("ray") or "none"


def _python_minor(facts: HostFacts) -> str:
    return ".".join(map(str, facts.python.minor))
