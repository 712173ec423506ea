"""Whether memory stays flat: thousands of tiny steps on three nodes, and what every process that serves them takes.

``python -m benchmarks.long_run [--steps N] [--ways sync,memory,…]``

A new cluster of three loopback nodes, a worker on each, a real coordinator in a process of its own, a checkpoint after
every tenth of the steps. The resident memory of the coordinator, the workers, the parameter server, Ray's raylets
(which hold the object stores) and Ray's head is read twice a second until the last step. The figure is the growth of a
straight line, fitted by least squares to the last half, from that half's beginning to its end, over the mean there.
What is only started (torch's caches, Ray's pools) is in the first half. Exit code 1 when a process grows by more than
1 % and by more than 1 MB: of Ray's own small processes 1 % is 0.3 MB, less than their allocator takes at a time. Linux
only.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from remote_agent.protocol import DeviceSpec, RunSpec, encode
from tests.training import loopback
from tests.training.loopback import Cluster

MAX, MAX_BYTES = 0.01, 1e6
"""The most that a process may grow over the last half: in its mean there, and in bytes if that is more."""

STEPS, BATCH, HOSTS, EVERY_S, MB = 10_000, 24, "abc", 0.5, 1e6

WAYS: dict[str, dict[str, Any]] = {
    "sync": {"stream": "network"},
    "memory": {},
    "local_sgd": {"strategy": "local_sgd", "local_steps": 2, "stream": "network"},
    "allreduce": {"strategy": "allreduce"},
}
"""Name: the run's settings."""

JOB = Path(__file__).with_name("tiny_job.py")

ACTORS = {"Worker": "worker", "ParameterServer": "server", "RunCopy": "copy"}
RAYS = {"raylet": "raylet", "gcs_server": "Ray's head"}
"""Our actors and Ray's own programs, and what they are called here. A raylet holds its node's object store."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The resident memory of one process, in bytes, at times in seconds."""

    name: str
    times: tuple[float, ...]
    resident: tuple[int, ...]

    @property
    def growth(self) -> float:
        """Of the fitted line over the last half, in the mean there."""
        times, resident = self._last_half()
        slope = float(np.polyfit(times - times[0], resident, 1)[0])
        return slope * float(times[-1] - times[0]) / self.mean

    @property
    def mean(self) -> float:
        """Over the last half, in bytes."""
        return float(self._last_half()[1].mean())

    @property
    def flat(self) -> bool:
        """Whether it grows by no more than :data:`MOST`."""
        return self.growth * self.mean < max(MAX * self.mean, MAX_BYTES)

    def _last_half(self) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
        times, resident = np.array(self.times, dtype=float), np.array(self.resident, dtype=float)
        late = times >= (times[0] + times[-1]) / 2
        return times[late], resident[late]


def processes_of(nodes: Mapping[str, int], overseer: int) -> dict[str, psutil.Process]:
    """The processes that serve a run, by what they are called here.

    Args:
        nodes: PID of each host's ``ray start``.
        overseer: PID of the run's, whose child coordinates it.
    """
    first = psutil.Process(overseer)
    (coordinator,) = first.children()
    found = {"overseer": first, "coordinator": coordinator}
    for host, pid in nodes.items():
        for process in psutil.Process(pid).children(recursive=True):
            try:
                words, program, begun = process.cmdline(), process.name(), process.create_time()
            except psutil.Error:
                continue
            # Ray calls an actor's process "ray::Class" or, while a call is on, "ray::Class.method".
            title = words[0].removeprefix("ray::").split(".")[0] if words and words[0].startswith("ray::") else ""
            name = ACTORS.get(title) or RAYS.get(program)
            if name is None:
                continue
            known = found.get(f"{name} {host}")
            if known is None or known.create_time() < begun:  # one of an earlier run may just be ending
                found[f"{name} {host}"] = process
    return found


def watch(processes: Mapping[str, psutil.Process], is_over: Callable[[float], bool]) -> list[Series]:
    """Read what ``processes`` take; one that ends is not read any further.

    Args:
        processes: by what they are called here.
        is_over: waits for so many seconds, and says whether there is nothing more to read.
    """
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name in processes}
    while True:
        now = time.monotonic()
        for name, process in processes.items():
            try:
                resident = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            if resident:  # nothing of a process that has ended and was not waited for
                seen[name].append((now, resident))
        if is_over(EVERY_S):
            return [
                Series(name=name, times=tuple(at for at, _ in pairs), resident=tuple(size for _, size in pairs))
                for name, pairs in seen.items()
            ]


def _has_ended(process: subprocess.Popen[str], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None


def measure(way: str, steps: int, cluster: Cluster, folder: Path) -> list[Series]:
    """One run of ``steps`` steps on the cluster's nodes; ``folder`` is empty.

    Raises:
        RuntimeError: the run failed.
    """
    shutil.copy(JOB, folder / JOB.name)
    spec = RunSpec(
        run=folder.name,
        job=f"{JOB.name}:Tiny",
        cluster="long-run",
        host=HOSTS[0],
        ray_address=cluster.address,
        node_address=loopback.HEAD_ADDRESS,
        devices=tuple(DeviceSpec(host=host, device="cpu", name="test") for host in HOSTS),
        server_host=HOSTS[0],
        config={"num_iterations": steps, "batch_size": BATCH, "checkpoint_every": max(1, steps // 10), **WAYS[way]},
    )
    (folder / "run.json").write_text(encode(spec))
    with (folder / "said.txt").open("w") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "remote_agent.training.coordinator.main", str(folder)],
            env=cluster.environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            text=True,
        )
        try:
            _wait_for_a_step(folder, run)
            nodes = {host: node.pid for host, node in cluster.nodes.items() if host in HOSTS}
            series = watch(processes_of(nodes, run.pid), functools.partial(_has_ended, run))
        finally:
            run.terminate()
            run.wait(loopback.STOP_S)
    if run.returncode:
        raise RuntimeError(f"{way}: the run failed: {(folder / 'said.txt').read_text().strip()}")
    return series


def _wait_for_a_step(folder: Path, run: subprocess.Popen[str]) -> None:
    path, end = folder / "events.jsonl", time.monotonic() + loopback.START_S
    while not (path.exists() and any(json.loads(line)["kind"] == "step" for line in path.read_text().splitlines())):
        if run.poll() is not None or time.monotonic() > end:
            return  # what became of it is told by its exit code
        time.sleep(EVERY_S)


HEAD = f"{'way':10} {'process':14} {'mean MB':>8} {'growth':>8}"


def lines(way: str, series: Iterable[Series]) -> list[str]:
    """The table's rows of one run."""
    return [
        f"{way:10} {each.name:14} {each.mean / MB:>8.1f} {each.growth:>8.2%}"
        + ("" if each.flat else f"  <-- above {MAX:.0%}")
        for each in series
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 when something is not flat."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run (default: {STEPS})")
    parser.add_argument("--ways", default="sync", help=f"with commas between, of {', '.join(WAYS)} (default: sync)")
    options = parser.parse_args(arguments)
    ways = options.ways.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"no {', '.join(unknown)}; there are {', '.join(WAYS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster ends, too
    results: dict[str, list[Series]] = {}
    print(HEAD, flush=True)
    for way in ways:
        # A cluster of its own: pools that one run has filled would hide what the next one takes.
        with loopback.running(HOSTS) as cluster, tempfile.TemporaryDirectory(prefix="long-run") as folder:
            place = Path(folder) / way
            place.mkdir()
            began = time.monotonic()
            results[way] = measure(way, options.steps, cluster, place)
            print("\n".join(lines(way, results[way])), flush=True)
            print(f"{way:10} {options.steps:,} steps in {time.monotonic() - began:.0f} s", flush=True)
    return 0 if all(each.flat for series in results.values() for each in series) else 1


if __name__ == "__main__":
    sys.exit(main())
