"""Where the faults happen: a lab with our cluster on it, runs of the job, and what can be done to its hosts."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.faulty.job import PACE_FILE, WORKER_FILE, Layered, Paced
from benchmarks.lab import NAMES
from remote_agent import protocol
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.data import record
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.job import create_model
from tests.lab.following import Following, RunError, coordinators
from tests.lab.lab import Lab
from tests.lab.machines import Host, HostSpec, login
from tests.lab.product import HeteroTui, setting

FILE = Path(__file__).with_name("job.py")
CLUSTER = "lab"

RATE_MBIT = 1000.0

PACES = (0.004, 0.006, 0.009, 0.006, 0.012)
"""Seconds a sample on each host's device, by a sleep."""

BATCH = 60
ENDLESS = 1_000_000
"""Steps of a run that is stopped."""

EXACT = 1e-5
"""Most relative difference of the weights from those of a plain torch loop."""

PIPELINE = "pipeline"

SETTINGS: dict[str, dict[str, object]] = {
    "sync": {},
    "local_sgd": {"local_steps": 3},
    PIPELINE: {},
}
"""Of each strategy, beside what all runs have."""

EXACTLY = frozenset({"sync", PIPELINE})
"""Strategies that give a plain loop's weights."""

UP_S, STARTED_S, STOP_S = 240.0, 180.0, 120.0
"""Until ``up`` must have ended, until a run must have made its first steps, until it must have stopped."""

FIRST_STEPS = 40
"""Steps until shares have settled."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a run ended.

    Attributes:
        steps: that it made.
        error: largest over all tensors of ``norm(ours - plain) / norm(plain)``; None: the strategy is not exact.
        wrong: mistakes in words: samples left out or counted twice, missing events, a loss that is not a number.
    """

    steps: int
    error: float | None
    wrong: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Nothing was lost or doubled, and the weights are those of a plain loop where they have to be."""
        return not self.wrong and (self.error is None or self.error <= EXACT)

    @property
    def words(self) -> str:
        """One line for a table."""
        weights = "" if self.error is None else f", weights {self.error:.1e}"
        counted = "; ".join(self.wrong[:3]) or "every sample counted once"
        return f"{self.steps} steps{weights}, {counted}{'' if self.is_good else '  <-- NOT EXACT'}"


class Stage:
    """A lab whose cluster is up.

    Attributes:
        lab: the hosts.
        product: ours, on the laptop.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        for host, pace in zip(lab.hosts, PACES, strict=False):
            (host.home / PACE_FILE).write_text(str(pace))
        self.product = HeteroTui(lab.laptop, lab.inventory(cluster=CLUSTER))

    def up(self) -> None:
        """Bring the cluster up, or the hosts back that are missing.

        Raises:
            RunError: not all hosts came.
        """
        done = self.product.run("up", "--json", deadline=UP_S)
        if done.returncode != 0:
            raise RunError(f"`up` gave exit code {done.returncode}: {done.stderr.strip()[-500:]}")

    def down(self) -> None:
        """Take the cluster down.

        Raises:
            RunError: something is left on a host.
        """
        done = self.product.run("down", "--yes", "--json", deadline=UP_S)
        left = [
            f"{host.name}: {' '.join(one.argv)[:120]}"
            for host in self.lab.hosts
            if host.is_on
            for one in host.processes()
        ]
        if done.returncode != 0 or left:
            raise RunError(f"`down` gave exit code {done.returncode}: {done.stdout[-800:]}; left: {left[:5]}")

    def train(self, strategy: str, **settings: object) -> Following:
        """Start a run without an end, with a laptop attached, and wait until it has settled."""
        chosen = {"num_iterations": ENDLESS, "batch_size": BATCH, "strategy": strategy} | SETTINGS[strategy] | settings
        follower = Following(self.product, "train", f"{FILE}:{job_of(strategy).__name__}", *setting(chosen))
        try:
            follower.until_step(FIRST_STEPS, STARTED_S)
        except BaseException:
            follower.kill()
            raise
        return follower

    def finish(self, follower: Following, strategy: str) -> Verdict:
        """Stop the run, and judge what it made."""
        self.product.run("stop", follower.run, "--json", deadline=STOP_S)
        finished = follower.until(protocol.RunFinished, STOP_S)
        folder = self.run_folder(follower)
        spans = [span for slices in record.read(folder / record.FILE).values() for span in slices]
        wrong = list(record.gaps_and_overlaps(spans, finished.samples))
        seqs = [event.seq for event in follower.events]
        if seqs != list(range(1, len(seqs) + 1)):
            wrong.append("events are missing, or came twice")
        if finished.final_loss is None or not math.isfinite(finished.final_loss):
            wrong.append("the last loss is not a number")
        weights = checkpoint.load(self._seen(follower.head, finished.checkpoint))
        plain = plain_weights(finished.steps, job_of(strategy)()) if strategy in EXACTLY else None
        error = difference(weights, plain) if plain is not None else None
        return Verdict(steps=finished.steps, error=error, wrong=tuple(wrong))

    def run_folder(self, follower: Following) -> Path:
        """The run's folder on the host that coordinates it, as this computer sees it."""
        return self.lab.host(follower.head).home / ".hetero-tui" / CLUSTER / "runs" / follower.run

    def _seen(self, host: str, path: str) -> Path:
        return self.lab.host(host).home / Path(path).relative_to(login().pw_dir)

    def signal_coordinator(self, host: Host, number: signal.Signals) -> float:
        """Send a signal to the process that coordinates the run, on its head; return seconds since the epoch.

        Raises:
            ValueError: there is none at the moment.
        """
        found = coordinators(host)
        if len(found) < 2:
            raise ValueError("no coordinator is there")
        now = time.time()
        host.signal(found[-1], number)
        return now

    def kill_worker(self, host: Host) -> float:
        """Kill the process that trains there; return seconds since the epoch."""
        pid = int((host.home / WORKER_FILE).read_text())
        now = time.time()
        host.signal(pid, signal.SIGKILL)
        return now

    def set_speed(self, host: Host, factor: float) -> float:
        """Let the host's device take ``1 / factor`` times its usual time; return seconds since the epoch."""
        pace = PACES[self.lab.hosts.index(host)]
        fresh = host.home / f"{PACE_FILE}.new"
        fresh.write_text(str(pace / factor))
        fresh.replace(host.home / PACE_FILE)
        return time.time()

    def bring_back(self) -> None:
        """Switch hosts on that have no power, and have them in the cluster."""
        dark = [host for host in self.lab.hosts if not host.is_on]
        for host in dark:
            host.boot()
        if dark:
            self.lab.await_hosts(*dark)
            self.up()

    def others(self, follower: Following) -> tuple[Host, ...]:
        """All hosts but the head."""
        return tuple(host for host in self.lab.hosts if host.name != follower.head)


@contextlib.contextmanager
def opened(hosts: int) -> Iterator[Stage]:
    """A lab of so many hosts with the cluster up; taken down at the end, whatever happened."""
    with Lab([HostSpec(name=name, cpus=1) for name in NAMES[:hosts]], rate_mbit=RATE_MBIT) as lab:
        stage = Stage(lab)
        try:
            stage.up()
            yield stage
        except BaseException:
            stage.product.run("down", "--yes", "--json", deadline=UP_S)
            raise
        stage.down()


def simulated(hosts: int) -> list[str]:
    """Lines above the table that tell what is simulated."""
    paces = ", ".join(f"{1e3 * pace:g}" for pace in PACES[:hosts])
    return [
        f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__}; hosts are name spaces on one computer, with OpenSSH.",
        f"Simulated: device speeds by a sleep ({paces} ms a sample); a slow device is a longer sleep.",
        f"Simulated: links of {RATE_MBIT:g} Mbit/s by tc; a cut cable is a port that is down; no power is SIGKILL for",
        "all of a host's processes at once, with its memory and its interface gone.",
        "Real: the product from `up` to `down`, Ray, the exchange, the detection and the recovery.",
    ]


# --- Weights ---------------------------------------------------------------------------------------------------------


def job_of(strategy: str) -> type[Paced]:
    """What is trained: a model with layers that take the time, where it is cut by these."""
    return Layered if strategy == PIPELINE else Paced


def plain_weights(steps: int, job: Paced) -> dict[str, torch.Tensor]:
    """The job in one process, on the same batches: what an undisturbed run gives."""
    model = create_model(job, Paced.config.seed)
    optimizer = job.create_optimizer(model, Paced.config)
    x, y = job.create_data().tensors
    order = SampleOrder(Paced.config.seed, len(x), BATCH)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for step in range(1, steps + 1):
        indices = torch.from_numpy(order.step(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[indices]), y[indices]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.set_num_threads(threads)
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def difference(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest over all tensors of ``norm(weights - expected) / norm(expected)``."""
    return max(float((weights[name] - value).norm() / value.norm()) for name, value in expected.items())
