"""What memory a run's parameter server takes, with 2 and with 8 workers, over the network and through shared memory.

``python -m benchmarks.memory [--workers 2,8] [--ways network,memory,…] [--parameters N] [--csv FILE]``

The product's own engine trains a multilayer perceptron with one server. The figure is the server process's peak
resident memory, over its whole life, above that of a server that was opened with one layer of two numbers (what torch
imports when the first optimizer is made is in both); less what the optimizer's state takes; over the bytes of the
parameters. Not counted is what the process only maps: the workers' own gradients, which on one computer it reads where
they are, and pages of Ray's object store. Both have a column. The limit of 4 does not depend on the number of workers.
Exit code 1 when a row is above it. Linux only.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from remote_agent.protocol import DeviceSpec
from remote_agent.strategies import spec_of
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import cluster as ray_cluster
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.setup import session_of
from remote_agent.training.job import Job, dumps
from remote_agent.training.server.actor import ParameterServer
from remote_agent.training.shared import rpc
from remote_agent.training.shared.rpc import Actor, Ref
from tests.training import loopback

MAX = 4.0
"""The most that a server may take, in its parameters' bytes, beside the optimizer's state."""

PARAMETERS, WIDTH, STEPS, ANSWER_S = 16_900_000, 1024, 4, 60.0
SERVER_HOST, WORKER_HOST = "a", "b"

BOARD = 2
"""Copies of the weights that a lane's server keeps for its workers; the rest of what they share is their gradients."""

WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "network": ({"stream": "network", "shards": 1}, "momentum"),
    "network-adamw": ({"stream": "network", "shards": 1}, "adamw"),
    "network-int8": ({"stream": "network", "shards": 1, "codec": "int8"}, "momentum"),
    "network-clip": ({"stream": "network", "shards": 1, "clip_norm": 1.0}, "momentum"),
    "memory": ({"stream": "auto", "shards": 1}, "momentum"),
    "memory-adamw": ({"stream": "auto", "shards": 1}, "adamw"),
}
"""Name: its settings and its optimizer."""

STATE = {"momentum": 1, "adamw": 2}
"""Numbers of state for each parameter."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run. Sizes in bytes; ``peak`` is above an idle server's memory, ``of_workers`` and ``of_store`` are in it."""

    way: str
    workers: int
    parameter_bytes: int
    state_bytes: int
    idle: int
    peak: int
    of_workers: int
    of_store: int

    @property
    def ratio(self) -> float:
        """What :data:`MOST` limits."""
        return (self.peak - self.of_workers - self.of_store - self.state_bytes) / self.parameter_bytes


class Wide:
    """The job: square layers of ``width``, as many as make about ``parameters``."""

    def __init__(self, parameters: int, optimizer: str, width: int = WIDTH) -> None:
        self.layers, self.width, self.optimizer = max(1, round(parameters / (width * width))), width, optimizer

    def create_model(self) -> nn.Module:
        """The network."""
        return nn.Sequential(*(nn.Linear(self.width, self.width, bias=False) for _ in range(self.layers)))

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        """SGD with momentum, or AdamW."""
        if self.optimizer == "adamw":
            return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9)

    def create_data(self) -> Tensor:
        """64 vectors."""
        return torch.randn(64, self.width, generator=torch.Generator().manual_seed(0))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Distance from the input."""
        return (model(batch) - batch).square().mean()  # type: ignore[no-any-return]


def measure(way: str, workers: int, parameters: int, folder: Path) -> Row:
    """One run, with this process as its coordinator; ``folder`` is empty."""
    settings, optimizer = WAYS[way]
    factory = Wide(parameters, optimizer)
    request = Request(
        run=folder.name,
        job=Job(way, factory, factory.create_data),
        config=TrainingConfig(num_iterations=STEPS, batch_size=2 * workers, measure_seconds=0.05, **settings),
        # The limit makes each worker take part in each step.
        devices=(DeviceSpec(host=WORKER_HOST, device="cpu", name="test", max_batch=2),) * workers,
        server_host=SERVER_HOST,
        host=SERVER_HOST,
        folder=folder,
    )
    node = placement.node_of(SERVER_HOST, placement.living_nodes())
    idle = rpc.start(ParameterServer, placement.actor_options(node, placement.RETURN_MEMORY), 1)
    tiny = Wide(1, optimizer, width=2)
    state = safetensors.torch.save(checkpoint.portable_state(tiny.create_model()))
    journal = Journal(folder / "events.jsonl")
    try:
        rpc.get(idle.call("open", dumps(tiny), state, request.config), ANSWER_S)
        before = _ask(idle).resident
        with session_of(request, journal, lambda: False, Crashes()) as (session, model):
            for _ in itertools.islice(spec_of(session.config.strategy).strategy()().steps(session), STEPS):
                pass
            (server,) = session.servers
            after = _ask(server.actor)
    finally:
        journal.close()
        idle.kill()
    parameter_bytes = sum(parameter.nbytes for parameter in model.parameters())
    return Row(
        way=way,
        workers=workers,
        parameter_bytes=parameter_bytes,
        state_bytes=STATE[optimizer] * parameter_bytes,
        idle=before,
        peak=after.peak - before,
        of_workers=max(0, after.lane - BOARD * parameter_bytes),
        of_store=after.of_store,
    )


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A process's memory by the kernel's account (proc(5)), in bytes."""

    resident: int
    peak: int
    lane: int
    of_store: int


def account() -> Memory:
    """This process's memory; ``lane``: what it shares with workers through ``shared_memory``."""
    status = Path("/proc/self/status").read_text()
    resident, peak = (re.findall(rf"^{name}:\s+(\d+)", status, re.MULTILINE)[0] for name in ("VmRSS", "VmHWM"))
    lane = of_store = 0
    path = ""
    for text in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = text.split()
        if not first.endswith(":"):
            path = " ".join(rest[4:])  # a mapping's first line
        elif first == "Rss:" and "plasma" in path:
            of_store += 1024 * int(rest[0])
        elif first == "Rss:" and path.startswith("/memfd:hetero-tui"):
            lane += 1024 * int(rest[0])
    return Memory(resident=1024 * int(resident), peak=1024 * int(peak), lane=lane, of_store=of_store)


def _ask(actor: Actor) -> Memory:
    """What :func:`account` says in the actor's process."""
    answer: Ref[Memory] = Ref(actor.raw.__ray_call__.remote(lambda _: account()))
    return rpc.get(answer, ANSWER_S)


HEAD = f"{'way':14} {'workers':>7} {'param. MB':>9} {'state':>7} {'peak':>7} {'theirs':>7} {'store':>7} {'x param.':>8}"


def line(row: Row) -> str:
    """One row of the table."""
    sizes = (row.parameter_bytes, row.state_bytes, row.peak, row.of_workers, row.of_store)
    shown = [f"{size / 1e6:.1f}" for size in sizes]
    mark = "" if row.ratio <= MAX else f"  <-- above {MAX:g}"
    return (
        f"{row.way:14} {row.workers:>7} {shown[0]:>9} {shown[1]:>7} {shown[2]:>7} {shown[3]:>7} {shown[4]:>7}"
        f" {row.ratio:>8.2f}{mark}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 when a row is above the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="2,8", help="how many, with commas between (default: 2,8)")
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas between (default: all)")
    parser.add_argument("--parameters", type=int, default=PARAMETERS, help=f"about so many (default: {PARAMETERS})")
    parser.add_argument("--cluster", metavar="ADDRESS", help="one with hosts a and b (default: a new one)")
    parser.add_argument("--csv", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    ways = options.ways.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"no {', '.join(unknown)}; there are {', '.join(WAYS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster ends, too
    if options.cluster is None:
        with loopback.running((SERVER_HOST, WORKER_HOST)) as started:
            # Ray takes the token from the environment that a process begins with.
            given = sys.argv[1:] if arguments is None else arguments
            command = [sys.executable, "-m", "benchmarks.memory", *given, "--cluster", started.address]
            return subprocess.run(command, env=started.environment, check=False).returncode
    rows: list[Row] = []
    ray_cluster.connect(options.cluster, loopback.HEAD_ADDRESS)
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory(prefix="memory") as folder:
        for way, workers in itertools.product(ways, map(int, options.workers.split(","))):
            place = Path(folder) / f"{way}-{workers}"
            place.mkdir()
            rows.append(measure(way, workers, options.parameters, place))
            print(line(rows[-1]), flush=True)
    ray_cluster.disconnect()
    print("MB. x param.: (peak above an idle server - state - workers' gradients (theirs) - store) / parameters.")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*asdict(rows[0]), "ratio"])
            writer.writeheader()
            writer.writerows(asdict(row) | {"ratio": row.ratio} for row in rows)
    return 1 if any(row.ratio > MAX for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
