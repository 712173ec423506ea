"""What a run's weights are compared with: the textbook's loop in this process, on the same job and batches."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets, record
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.job import create_model, loss_function


def job_of(source: str, folder: Path) -> Any:
    """A new ``Job`` from the text of a job file, which is written into ``folder``."""
    path = folder / "plain_job.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("plain_job", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Job()


def times_counted(path: Path, order: SampleOrder) -> np.ndarray:
    """How often each sample of the dataset was counted, by the record at ``path``."""
    total = np.zeros(order.size, np.int64)
    for spans in record.read(path).values():
        for span in spans:
            np.add.at(total, order.take(span.begin, span.end), 1)
    return total


def train(
    job: Any,
    config: TrainingConfig,
    steps: int | None = None,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    norms: list[float] | None = None,
    counts: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """The weights after ``steps`` (default: all of the configuration's) of whole batches, with torch's own clipping.

    Args:
        job: makes model, optimizer, data and perhaps a scheduler.
        config: batch, seed, clipping and schedule.
        steps: how many are made.
        loss: in the place of the job's own.
        norms: gets each step's gradient norm before it is clipped.
        counts: of the samples of a batch so many, in turn, are taken; None: all.
    """
    model = create_model(job, config.seed, config)
    optimizer = job.create_optimizer(model, config)
    scheduler = _scheduler(job, optimizer, config)
    samples = datasets.as_dataset(job.create_data())
    order = SampleOrder(config.seed, len(samples), config.batch_size)
    loss = loss or loss_function(job)
    for step in range(1, (steps or config.num_iterations) + 1):
        optimizer.zero_grad()
        indices = order.step(step)
        taken = len(indices) if counts is None else counts[step % len(counts)]
        loss(model, datasets.fetch(samples, indices[:taken])).backward()
        if config.clip_norm:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
            if norms is not None:
                norms.append(float(norm))
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return checkpoint.portable_state(model)


def _scheduler(job: Any, optimizer: torch.optim.Optimizer, config: TrainingConfig) -> Any:
    """The job's own, or torch's for a cosine with a warm-up."""
    if hasattr(job, "create_scheduler"):
        return job.create_scheduler(optimizer, config)
    if config.schedule != "cosine":
        return None
    warmup, rest = config.warmup_steps, config.num_iterations - config.warmup_steps
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), 1.0, warmup)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rest)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], [warmup])


def weights_of(run: Any) -> dict[str, Tensor]:
    """Those that a run ended with."""
    (finished,) = run.of_kind("run_finished")
    return checkpoint.load(Path(finished["checkpoint"]))


def assert_equal(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal but for sums of float32 in another order."""
    for name, error in errors(weights, expected).items():
        assert error <= 1e-5, f"{name}: {error:.2e}"


def errors(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """How far each tensor is from the one that is expected, relative to its norm."""
    assert weights.keys() == expected.keys()
    return {
        name: float((weights[name] - value).double().norm() / value.double().norm().clamp_min(1e-12))
        for name, value in expected.items()
    }
