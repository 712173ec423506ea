"""Runs a peer on the hosts of a lab: brings the scripts there, starts one process a host, and reads what they print."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.lab import SETUP_DEADLINE, Fleet, Outcome, Plan, Point, last_line
from benchmarks.peers import PEERS, Peer, environment
from benchmarks.peers.task import Settings
from remote_agent.planning.device_profile import DeviceProfile
from tests.lab.machines import Host

_REPOSITORY = Path(__file__).resolve().parents[2]
_SHIPPED = "bench"
_ENVIRONMENT = ("GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1", "PYTHONWARNINGS=ignore")
_NO_PROFILE = DeviceProfile(1.0)


def run(fleet: Fleet, peer: Peer, plan: Plan, reference: DeviceProfile) -> Outcome:
    """Run a peer on the lab's hosts to its end. What goes wrong is the outcome's ``error``."""
    hosts = fleet.lab.hosts[: peer.hosts]
    batch = plan.step_samples(len(hosts), local=peer.local)
    round_steps = plan.round_steps * plan.batch // batch if peer.long_rounds else plan.round_steps
    about = peer.about.format(h=round_steps, b=batch // len(hosts))
    plan = dataclasses.replace(
        plan,
        batch=batch,
        round_steps=round_steps,
        steps=-(-plan.steps * plan.batch // batch),
        snapshot_every=plan.snapshot_every * plan.batch // batch,  # the same samples apart
    )
    python, missing = environment.python_with(peer.package)
    if missing:
        return Outcome(name=peer.name, about=about, error=missing)
    each = [
        settings_of(fleet, plan, reference, hosts=len(hosts), rank=rank, variant=peer.variant)
        for rank in range(len(hosts))
    ]
    found = run_together(hosts, python, f"benchmarks.peers.{peer.module}", each, plan.seconds + SETUP_DEADLINE)
    return dataclasses.replace(found, name=peer.name, about=about)


def run_together(hosts: Sequence[Host], python: str, module: str, each: Sequence[Settings], deadline: float) -> Outcome:
    """Run a script on these hosts at the same time, to its end on all of them.

    Args:
        hosts: where.
        python: with which.
        module: the script.
        each: the settings on each host.
        deadline: seconds until all have to have ended; nothing is left of them afterwards.

    Returns:
        The outcome, without a name; what goes wrong is its ``error``.
    """
    try:
        with ThreadPoolExecutor(len(hosts)) as pool:
            done = list(pool.map(lambda host, settings: start(host, python, module, settings, deadline), hosts, each))
    except subprocess.TimeoutExpired as late:
        said = last_line((late.stderr or b"").decode(errors="replace"))
        return Outcome(name="", about="", error=f"did not end within {late.timeout:.0f} s: {said}")
    finally:
        for host in hosts:
            end_processes(host, module)
    return outcome_of("", "", done)


def calibrate(fleet: Fleet, plan: Plan) -> DeviceProfile:
    """This computer with the plan's job, measured on the first host as our own workers measure it: the reference.

    Raises:
        RuntimeError: the measurement failed; the text says why.
    """
    settings = settings_of(fleet, plan, _NO_PROFILE, hosts=len(fleet.speeds), rank=0, variant="")
    module = "benchmarks.peers.reference"
    found = measure(fleet.lab.hosts[0], module, settings, SETUP_DEADLINE, "this computer's speed")
    return DeviceProfile(found["speed"], found["overhead_s"])


def measure(host: Host, module: str, settings: Settings, deadline: float, what: str) -> dict[str, float]:
    """What a script that measures something on a host prints at its end.

    Raises:
        RuntimeError: it failed, or took longer than ``deadline`` seconds; the text names ``what``, and why.
    """
    python, _ = environment.python_with("")
    try:
        done = start(host, python, module, settings, deadline)
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{what} was not measured within {late.timeout:.0f} s") from late
    if done.returncode:
        raise RuntimeError(f"{what} could not be measured: {last_line(done.stderr)}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def settings_of(fleet: Fleet, plan: Plan, reference: DeviceProfile, *, hosts: int, rank: int, variant: str) -> Settings:
    """What one process of a peer is told."""
    return Settings(
        job=plan.job_class,
        variant=variant,
        rank=rank,
        addresses=tuple(host.address for host in fleet.lab.hosts[:hosts]),
        speeds=fleet.speeds,
        reference_speed=reference.speed,
        reference_overhead_s=reference.overhead_s,
        batch=plan.batch,
        seed=plan.seed,
        steps=plan.steps,
        seconds=plan.seconds,
        snapshot_every=plan.snapshot_every,
        round_steps=plan.round_steps,
        learning_rate=plan.learning_rate,
    )


def start(
    host: Host, python: str, module: str, settings: Settings, deadline: float
) -> subprocess.CompletedProcess[str]:
    """Bring the scripts to the host and run one there to its end.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``deadline`` seconds.
    """
    ship(host)
    return host.exec(command(python, module, settings.encode()), deadline=deadline)


def command(python: str, module: str, settings: str) -> list[str]:
    """What starts one of the scripts on a host that they were brought to."""
    return ["env", f"PYTHONPATH={Path.home() / _SHIPPED}", *_ENVIRONMENT, python, "-m", module, settings]


def ship(host: Host) -> None:
    """Bring the peers' scripts, and what they share with ours, to the host."""
    target = host.home / _SHIPPED
    for package in ("remote_agent", "benchmarks"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_REPOSITORY / package, target / package, dirs_exist_ok=True, ignore=ignore)


def end_processes(host: Host, module: str) -> None:
    """End what a peer left on a host: its script, and what that started from the peers' environment."""
    for process in host.processes():
        if module in process.argv or (process.argv[:1] and process.argv[0].startswith(str(environment.folder()))):
            host.exec(["kill", "-KILL", str(process.pid)])


def outcome_of(name: str, about: str, done: Sequence[subprocess.CompletedProcess[str]]) -> Outcome:
    """The outcome in what a peer's processes printed; the first host's stands first."""
    points: list[Point] = []
    ends: list[dict[str, Any]] = []
    for process in done:
        lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
        documents = [json.loads(line) for line in lines]
        points += [Point(**document) for document in documents if "validation_loss" in document]
        ends += [document["end"] for document in documents if "end" in document]
    if len(ends) < len(done):
        silent = next(one for one in done if '"end"' not in one.stdout)
        return Outcome(name=name, about=about, error=f"exit code {silent.returncode}: {last_line(silent.stderr)}")
    return Outcome(
        name=name,
        about=about,
        points=tuple(points),
        seconds=float(ends[0]["seconds"]),
        steps=int(ends[0]["steps"]),
        samples=sum(int(end["samples"]) for end in ends),
        # Where hosts keep their own pace, each one's last step ends at its own time.
        samples_per_second=sum(end["samples"] / end["seconds"] for end in ends if end["seconds"]),
        sent=tuple(int(end["sent"]) for end in ends),
    )


def chosen_peers(names: str) -> tuple[Peer, ...]:
    """Peers by their names, with commas between; "all" for all, "none" for none.

    Raises:
        ValueError: there is no such peer.
    """
    if names in ("all", "none"):
        return PEERS if names == "all" else ()
    known = {peer.name: peer for peer in PEERS}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise ValueError(f"no peer {', '.join(unknown)}; there are {', '.join(known)}")
    return tuple(known[name] for name in names.split(","))
