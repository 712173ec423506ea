"""What validation, and what callbacks and loggers cost a run.

``python -m benchmarks.validation [--json FILE] [--rounds N]``

One run of the product's engine on this computer: two workers with one torch thread each, a perceptron of 3.26 million
parameters, batch 64. In each round, in turn:

- a block of 20 steps, then the validation of 10,000 samples, as every 20 steps of a run. Its *cost* is the time from
  that step's report to the next one's, less a usual step. Beside it the *compute*: two plain processes put half of the
  same batches each through the same model, under ``no_grad``, and do nothing else;
- a block of steps with callbacks (a user's own, CSV and TensorBoard) and one without any, both with their events.

Figures are medians over the rounds; ratios are medians of the rounds' own, so that what disturbs the computer for a
while disturbs both sides. ``callback CPU`` is what the callbacks' thread itself used for a step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.step_overhead import BATCH, INPUTS, WIDTHS, WORKERS, Perceptron, start_actor, start_ray
from remote_agent import protocol
from remote_agent.protocol import DeviceSpec
from remote_agent.strategies import spec_of
from remote_agent.training import Callback, CSVLogger, TensorBoardLogger, TrainingConfig
from remote_agent.training.coordinator.evaluation.judge import Judge
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.reporting.callbacks import Callbacks
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.setup import session_of
from remote_agent.training.coordinator.validation import Validation
from remote_agent.training.job import Job

SAMPLES, EVERY, BLOCK = 10_000, 20, 20


def validation_data() -> tuple[Tensor, Tensor]:
    """10,000 samples."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, INPUTS, generator=generator), torch.randint(10, (SAMPLES,), generator=generator)


class PlainValidation:
    """A plain loop over a part of the batches."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        torch.set_num_threads(1)
        self.model = Perceptron(widths).create_model().eval()
        self.x, self.y = validation_data()

    def measure(self, batches: list[Any]) -> float:
        """The sum of their losses."""
        total = 0.0
        with torch.no_grad():
            for indices in batches:
                rows = torch.from_numpy(indices)
                scores, targets = self.model(self.x[rows]), self.y[rows]
                total += float(functional.cross_entropy(scores, targets, reduction="sum"))
                total += float((scores.argmax(1) == targets).sum())
        return total


class Own(Callback):
    """What a user's callback does, and the processor's time of its thread."""

    def __init__(self) -> None:
        self.losses: list[float | None] = []
        self.cpu_s = 0.0

    def on_step(self, event: protocol.Step) -> None:
        self.losses.append(event.loss)
        self.cpu_s = time.thread_time()


@dataclass(frozen=True)
class Figures:
    """Medians; times in milliseconds, and of the callbacks' thread in microseconds a step."""

    validation_ms: float
    compute_ms: float
    validation_over_compute: float
    step_ms: float
    with_callbacks_ms: float
    with_over_without: float
    callback_cpu_us: float
    load: float


class Engine:
    """The product's engine; gives step after step, and evaluates after every 20th of those of :meth:`evaluated`."""

    def __init__(self, folder: Path) -> None:
        factory = Perceptron(WIDTHS["3.26M"])
        host = placement.living_nodes()[0].host
        device = DeviceSpec(host=host, device="cpu", name="cpu", max_batch=BATCH // WORKERS)
        self.request = Request(
            run="bench",
            job=Job("perceptron", factory, factory.create_data, create_validation=validation_data),
            config=TrainingConfig(batch_size=BATCH, num_iterations=10**9, learning_rate=0.01, evaluate_every=EVERY),
            devices=(device,) * WORKERS,
            server_host=host,
            host=host,
            folder=folder,
        )
        self.journal = Journal(folder / "events.jsonl")
        self.validation: Validation | None = None

    def steps(self) -> Iterator[tuple[float, float]]:
        """(when it was reported, the seconds of its evaluation) of step after step."""
        with session_of(self.request, self.journal, lambda: False, Crashes()) as (session, _):
            self.validation = session.validation
            judge, position = Judge(session, self.request.host), 0
            for report in spec_of(session.config.strategy).strategy()().steps(session):
                self.journal.write(protocol.Step, **report.fields())
                began, position = time.perf_counter(), position + report.samples
                judge.after(session, report.step, position - report.samples, position)
                yield began, time.perf_counter() - began


def compare(rounds: int) -> Figures:
    """All rounds."""
    validations, computes, withouts, withs, cpu = [], [], [], [], []
    with tempfile.TemporaryDirectory(prefix="validation") as name:
        folder = Path(name)
        engine = Engine(folder)
        steps = engine.steps()
        plain = [start_actor(PlainValidation, WIDTHS["3.26M"]) for _ in range(WORKERS)]
        times = [next(steps)[0] for _ in range(2 * EVERY)]
        assert engine.validation is not None
        batches = engine.validation.batches
        halves = [list(batches[number::WORKERS]) for number in range(WORKERS)]
        ray.get([actor.measure.remote(half) for actor, half in zip(plain, halves, strict=True)])
        for number in range(rounds):
            times = [next(steps)[0] for _ in range(EVERY)]
            usual = statistics.median(after - before for before, after in itertools.pairwise(times))
            validations.append(next(steps)[0] - times[-1] - usual)
            began = time.perf_counter()
            ray.get([actor.measure.remote(half) for actor, half in zip(plain, halves, strict=True)])
            computes.append(time.perf_counter() - began)
            for _ in range(EVERY - 1):  # to the next evaluation, which is left out of what follows
                next(steps)
            own = Own()
            blocks = {}
            for told in (number % 2 == 0, number % 2 != 0):
                callbacks: list[Callback] = [CSVLogger(), TensorBoardLogger(), own] if told else []
                with Callbacks(callbacks, engine.journal, folder / str(number), engine.request.host) as _:
                    for listener in engine.journal.listeners:
                        listener(_started())
                    times = [next(steps)[0] for _ in range(BLOCK - 1)]
                engine.journal.listeners.clear()
                next(steps)
                blocks[told] = statistics.median(b - a for a, b in itertools.pairwise(times))
            withs.append(blocks[True])
            withouts.append(blocks[False])
            cpu.append(own.cpu_s / (BLOCK - 1))
    return Figures(
        validation_ms=statistics.median(validations) * 1e3,
        compute_ms=statistics.median(computes) * 1e3,
        validation_over_compute=statistics.median(a / b for a, b in zip(validations, computes, strict=True)),
        step_ms=statistics.median(withouts) * 1e3,
        with_callbacks_ms=statistics.median(withs) * 1e3,
        with_over_without=statistics.median(a / b for a, b in zip(withs, withouts, strict=True)),
        callback_cpu_us=statistics.median(cpu) * 1e6,
        load=os.getloadavg()[0],
    )


def _started() -> protocol.RunStarted:
    return protocol.RunStarted(
        seq=1, time=0.0, run="bench", job="perceptron", host="", iterations=1, batch_size=BATCH, parameters=1
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=15, help="(default: 15)")
    options = parser.parse_args()
    start_ray(1_000_000_000)
    figures = compare(options.rounds)
    print(f"validation of {SAMPLES:,} samples every {EVERY} steps: {figures.validation_ms:.1f} ms")
    print(f"its compute alone: {figures.compute_ms:.1f} ms; ratio {figures.validation_over_compute:.3f}")
    print(f"a step without callbacks: {figures.step_ms:.2f} ms, with them {figures.with_callbacks_ms:.2f} ms", end="; ")
    print(f"ratio {figures.with_over_without:.3f}")
    print(f"callback CPU: {figures.callback_cpu_us:.0f} us a step; load {figures.load:.1f}")
    if options.json:
        options.json.write_text(json.dumps(asdict(figures), indent=2) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
