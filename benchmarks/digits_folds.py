"""Does the ready job ``digits`` reach plain torch's accuracy with each strategy? Five-fold cross-validation.

``python -m benchmarks.digits_folds [--strategies NAMES] [--folds 5] [--epochs 27]``

Each fold's images are classified by a model that was trained on the other four folds': by a plain loop in one process,
and by each strategy on three unequal workers, all with the same number of samples. Dropout is off: its random numbers
are no part of what is compared. An exact strategy (sync, allreduce) has to be within 0.2 points of the plain loop, over
all folds together, and each other one within 1 point; else the exit code is 1. Nothing is simulated, nothing is tuned.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compatibility import local_ray
from benchmarks.compatible.running import unequal
from remote_agent.jobs.digits import Digits, folds
from remote_agent.training import DistributedTrainer
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data.order import SampleOrder

LIMITS = (160, 96, 90)
"""The most samples that each of the three workers takes."""

STRATEGIES: dict[str, tuple[dict[str, Any], float]] = {
    "sync": ({}, 0.2),
    "allreduce": ({"strategy": "allreduce"}, 0.2),
    "local_sgd": ({"strategy": "local_sgd"}, 1.0),
    "local_sgd-overlap": ({"strategy": "local_sgd", "overlap": True}, 1.0),
}
"""Name: its settings, and how many points it may be away from the plain loop."""

Part = tuple[Tensor, Tensor]


class WithoutDropout(Digits):
    """The ready job, without dropout."""

    def create_model(self) -> nn.Module:
        model = super().create_model()
        for layer in model.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        return model


def config_of(epochs: int, **settings: Any) -> TrainingConfig:
    """The job's own settings, for so many epochs."""
    job = Digits.config
    common = {"epochs": epochs, "batch_size": job.batch_size, "learning_rate": job.learning_rate, "seed": 3}
    return TrainingConfig(**(common | settings))


def plain(training: Part, config: TrainingConfig) -> nn.Module:
    """A plain torch loop over the same batches."""
    torch.manual_seed(config.seed)
    job = WithoutDropout()
    model = job.create_model()
    optimizer = job.create_optimizer(model, config)
    samples = config.epochs * len(training[1])
    order = SampleOrder(config.seed, len(training[1]), config.batch_size, limit=samples)
    for step in range(1, -(-samples // config.batch_size) + 1):
        indices = torch.from_numpy(order.step(step))
        optimizer.zero_grad()
        job.loss(model, (training[0][indices], training[1][indices])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def distributed(training: Part, config: TrainingConfig, folder: Path) -> nn.Module:
    """The script API's run on three workers."""
    trainer = DistributedTrainer(model_factory=WithoutDropout(), data_loader=training, config=config)
    with unequal(LIMITS):
        result = trainer.train(folder=folder, progress=False)
    model = WithoutDropout().create_model()
    model.load_state_dict(result.state_dict)
    return model


@torch.no_grad()
def right(model: nn.Module, part: Part) -> int:
    """Images that are classified rightly."""
    return int((model.eval()(part[0]).argmax(1) == part[1]).sum())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 when a strategy is too far away."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digits_folds", description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="with commas between (default: all)")
    parser.add_argument("--folds", type=int, default=5, help="how many of the five (default: all)")
    parser.add_argument("--epochs", type=int, default=27, help="default: as many samples as the job's own settings")
    options = parser.parse_args(arguments)
    names = options.strategies.split(",")
    parts = list(folds())[: options.folds]
    images = sum(len(test[1]) for _, test in parts)
    print(f"{'strategy':18} {'accuracy':>8} {'points':>7} {'s':>6}  by fold", flush=True)
    began = time.monotonic()
    found = [right(plain(training, config_of(options.epochs)), test) for training, test in parts]
    reference = 100 * sum(found) / images
    _print("plain torch", reference, 0.0, began, found, parts)
    bad = []
    with local_ray(), tempfile.TemporaryDirectory(prefix="folds") as folder:
        for name in names:
            settings, most = STRATEGIES[name]
            config = config_of(options.epochs, num_cpu_workers=len(LIMITS), num_gpu_workers=0, **settings)
            began = time.monotonic()
            found = [
                right(distributed(training, config, Path(folder) / f"{name}-{number}"), test)
                for number, (training, test) in enumerate(parts)
            ]
            accuracy = 100 * sum(found) / images
            if abs(accuracy - reference) > most:
                bad.append(name)
            _print(name, accuracy, accuracy - reference, began, found, parts)
    print(f"too far away: {', '.join(bad)}" if bad else "all are as near as they have to be")
    return 1 if bad else 0


def _print(
    name: str, accuracy: float, points: float, began: float, found: Sequence[int], parts: Sequence[tuple[Part, Part]]
) -> None:
    by_fold = "  ".join(f"{100 * n / len(test[1]):.2f}" for n, (_, test) in zip(found, parts, strict=True))
    print(f"{name:18} {accuracy:7.2f}% {points:+7.2f} {time.monotonic() - began:6.1f}  {by_fold}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
