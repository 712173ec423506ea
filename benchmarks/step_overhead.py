"""What a synchronous step costs: ours, beside plain single process and beside the naive pattern.

``python -m benchmarks.step_overhead [--rounds N] [--sizes …]``

Multilayer perceptrons of 0.10, 3.26 and 26 million parameters, batch 64, SGD with momentum, two workers on this
computer with one torch thread each. One run, interleaved: in each round a block of steps of each way in turn, and the
median of its steps. Figures are medians over the rounds; the ratio is the median of the rounds' own, so that what
disturbs the computer for a while disturbs both its sides. Three ways:

- *plain*: a torch loop in one process, one thread, the whole batch;
- *naive*: a parameter-server actor as commonly written on Ray: the driver fetches a dict of tensors, sends it by value
  to each worker, fetches each worker's dict of gradients, sends those by value to the server;
- *ours*: the product's own engine (``remote_agent.training``), nothing left out: events, clocks and shares included.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from remote_agent.protocol import DeviceSpec
from remote_agent.strategies import spec_of
from remote_agent.training import TrainingConfig
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.setup import session_of
from remote_agent.training.job import Job

BATCH, INPUTS, CLASSES, WORKERS = 64, 784, 10, 2
WIDTHS = {"0.10M": (128,), "3.26M": (1536, 1312), "26M": (4096, 4096, 1450)}
STEPS_A_BLOCK = {"0.10M": 40, "3.26M": 15, "26M": 4}
LEARNING_RATE, MOMENTUM = 0.01, 0.9


class Perceptron:
    """The job: ReLU layers of these widths on fixed random data (only the time of a step matters here)."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.widths = widths

    def create_model(self) -> nn.Module:
        """The network."""
        sizes = (INPUTS, *self.widths)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], CLASSES))

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=MOMENTUM)

    def create_data(self) -> TensorDataset:
        """512 samples."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(512, INPUTS, generator=generator)
        return TensorDataset(x, torch.randint(CLASSES, (512,), generator=generator))


# --- Plain -----------------------------------------------------------------------------------------------------------


class Plain:
    """A torch loop in a process of its own, so that it has one thread as the others do."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        torch.set_num_threads(1)
        factory = Perceptron(widths)
        self.model = factory.create_model()
        self.optimizer = factory.create_optimizer(self.model, TrainingConfig(learning_rate=LEARNING_RATE))
        self.x, self.y = factory.create_data().tensors

    def steps(self, count: int) -> list[float]:
        """Seconds of each of ``count`` steps."""
        times = []
        for step in range(count):
            started = time.perf_counter()
            rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(self.x)
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(self.x[rows]), self.y[rows]).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            times.append(time.perf_counter() - started)
        return times


# --- Naive -----------------------------------------------------------------------------------------------------------


class NaiveServer:
    """Holds the model; gives and takes dicts of tensors."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        torch.set_num_threads(1)
        factory = Perceptron(widths)
        self.model = factory.create_model()
        self.optimizer = factory.create_optimizer(self.model, TrainingConfig(learning_rate=LEARNING_RATE))

    def get_weights(self) -> dict[str, Tensor]:
        """The weights."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def apply_gradients(self, gradients: list[dict[str, Tensor]]) -> None:
        """Average the workers' gradients and make a step."""
        self.optimizer.zero_grad()
        for name, parameter in self.model.named_parameters():
            parameter.grad = torch.stack([each[name] for each in gradients]).mean(0)
        self.optimizer.step()


class NaiveWorker:
    """Computes the gradients of its half of the batch."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        torch.set_num_threads(1)
        factory = Perceptron(widths)
        self.model = factory.create_model()
        self.x, self.y = factory.create_data().tensors

    def compute_gradients(self, weights: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        """The gradients at ``weights``."""
        self.model.load_state_dict(weights)
        self.model.zero_grad()
        functional.cross_entropy(self.model(self.x[rows]), self.y[rows]).backward()  # type: ignore[no-untyped-call]
        return {name: parameter.grad for name, parameter in self.model.named_parameters() if parameter.grad is not None}


def naive_steps(server: Any, workers: list[Any], count: int) -> list[float]:
    """Seconds of each of ``count`` steps of the naive pattern."""
    times = []
    half = BATCH // WORKERS
    for step in range(count):
        started = time.perf_counter()
        weights = ray.get(server.get_weights.remote())
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % 512
        parts = [rows[index * half : (index + 1) * half] for index in range(WORKERS)]
        gradients = ray.get(
            [worker.compute_gradients.remote(weights, part) for worker, part in zip(workers, parts, strict=True)]
        )
        ray.get(server.apply_gradients.remote(gradients))
        times.append(time.perf_counter() - started)
    return times


# --- Ours ------------------------------------------------------------------------------------------------------------


def our_steps(widths: tuple[int, ...], folder: Path) -> Iterator[float]:
    """Seconds of step after step of the product's engine, without end."""
    factory = Perceptron(widths)
    nodes = placement.living_nodes()
    host = nodes[0].host
    config = TrainingConfig(batch_size=BATCH, num_iterations=10**9, learning_rate=LEARNING_RATE)
    request = Request(
        run="bench",
        job=Job("perceptron", factory, factory.create_data),
        config=config,
        devices=tuple(
            DeviceSpec(host=host, device="cpu", name="cpu", max_batch=BATCH // WORKERS) for _ in range(WORKERS)
        ),
        server_host=host,
        host=host,
        folder=folder,
    )
    with session_of(request, Journal(folder / "events.jsonl"), lambda: False, Crashes()) as (session, _):
        for report in spec_of(session.config.strategy).strategy()().steps(session):
            yield report.seconds


# --- Side by side ----------------------------------------------------------------------------------------------------


def start_actor(kind: type, widths: tuple[int, ...]) -> Any:
    """An object of this class in a process of its own."""
    return ray.remote(num_cpus=0)(kind).remote(widths)


@dataclass(frozen=True)
class Row:
    """Milliseconds of a step, and the computer's load (processes that want to run) meanwhile."""

    model: str
    parameters: int
    plain_ms: float
    naive_ms: float
    ours_ms: float
    naive_over_ours: float
    load: float


def compare(model: str, rounds: int) -> Row:
    """One size: blocks of steps of the three in turn. The first step of each block warms up and is left out."""
    widths, steps = WIDTHS[model], STEPS_A_BLOCK[model]
    parameters = sum(parameter.numel() for parameter in Perceptron(widths).create_model().parameters())
    with tempfile.TemporaryDirectory(prefix="step") as folder:
        plain, server = start_actor(Plain, widths), start_actor(NaiveServer, widths)
        workers = [start_actor(NaiveWorker, widths) for _ in range(WORKERS)]
        engine = our_steps(widths, Path(folder))
        ways: dict[str, Callable[[int], list[float]]] = {
            "plain": lambda count: ray.get(plain.steps.remote(count)),
            "naive": lambda count: naive_steps(server, workers, count),
            "ours": lambda count: [next(engine) for _ in range(count)],
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way(3)
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(statistics.median(way(steps + 1)[1:]) * 1e3)
        engine.close()  # type: ignore[attr-defined]
        for actor in (plain, server, *workers):
            ray.kill(actor)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = statistics.median(naive / ours for naive, ours in zip(times["naive"], times["ours"], strict=True))
    load = os.getloadavg()[0]
    return Row(model, parameters, medians["plain"], medians["naive"], medians["ours"], ratio, load)


def start_ray(store_bytes: int) -> None:
    """A Ray on this computer for the workers, with an object store of this size; says what it is."""
    os.environ["RAY_enable_metrics_collection"] = "0"  # noqa: SIM112 - Ray spells it so
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a private cluster on loopback, gone in a minute; leaves no token behind
    root = str(Path(__file__).resolve().parents[1])
    ray.init(
        address="local",
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=store_bytes,
        runtime_env={"env_vars": {"PYTHONPATH": root}},
    )
    print(f"batch {BATCH}, {WORKERS} workers with 1 thread each, torch {torch.__version__}, ray {ray.__version__}")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="blocks of steps of each way, per size (default: 5)")
    parser.add_argument("--sizes", nargs="+", choices=list(WIDTHS), default=list(WIDTHS))
    options = parser.parse_args()
    start_ray(2_000_000_000)
    print(
        f"{'model':>6} {'parameters':>11} {'plain ms':>9} {'naive ms':>9} {'ours ms':>9} {'naive/ours':>11} {'load':>5}"
    )
    for model in options.sizes:
        row = compare(model, options.rounds)
        print(
            f"{row.model:>6} {row.parameters:>11,} {row.plain_ms:>9.2f} {row.naive_ms:>9.1f} {row.ours_ms:>9.2f}"
            f" {row.naive_over_ours:>10.1f}x {row.load:>5.1f}",
            flush=True,
        )
    ray.shutdown()


if __name__ == "__main__":
    main()
