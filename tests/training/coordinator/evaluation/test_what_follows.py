"""The best checkpoint, early stopping, and a learning rate that goes by the validation; after a resume, too."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.checkpoint.checkpoint import Checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.evaluation import judge
from remote_agent.training.coordinator.evaluation.evaluator import Evaluation
from remote_agent.training.coordinator.validation import Validation, check_plateau
from remote_agent.training.data import datasets
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.errors import JobError
from remote_agent.training.job import create_model
from tests.training import plain
from tests.training.conftest import Launch

JOB = """
import torch
from torch import nn

class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def loss(self, model, batch):
        scores = model(batch[0])
        right = (scores.argmax(1) == batch[1]).float().mean()
        return nn.functional.cross_entropy(scores, batch[1]), {"right": right}

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=1.5, momentum=0.9)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)

    def samples(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 6, generator=generator)
        return x, torch.randint(0, 3, (count,), generator=generator)

    def create_data(self):
        return self.samples(64, 1)

    def create_validation_data(self):
        return self.samples(50, 2)
"""

SETTINGS = {"batch_size": 16, "evaluate_every": 2, "measure_seconds": 0.05, "checkpoint_seconds": 0.0, "ema_decay": 0.8}


def textbook(
    folder: Path, steps: int, norms: list[tuple[float, float]]
) -> tuple[dict[str, Tensor], list[float], dict[str, Tensor]]:
    """Weights, validation losses and averaged weights of a plain loop, its scheduler going by the validation.

    ``norms`` gets that of each step's gradient, and how many of its samples are right.
    """
    job, config = plain.job_of(JOB, folder), TrainingConfig(batch_size=16)
    model = create_model(job, config.seed)
    optimizer = job.create_optimizer(model, config)
    scheduler = job.create_scheduler(optimizer, config)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    samples, (x, y) = datasets.as_dataset(job.create_data()), job.create_validation_data()
    order, losses = SampleOrder(config.seed, len(samples), config.batch_size), []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        inputs, targets = datasets.fetch(samples, order.step(step))
        scores = model(inputs)
        functional.cross_entropy(scores, targets).backward()
        norm = float(torch.nn.utils.get_total_norm([each.grad for each in model.parameters()]))
        norms.append((norm, float((scores.argmax(1) == targets).float().mean())))
        optimizer.step()
        average.update_parameters(model)
        if step % 2 == 0:
            with torch.no_grad():
                losses.append(float(functional.cross_entropy(model(x), y)))
            scheduler.step(losses[-1])
    assert optimizer.param_groups[0]["lr"] < 1.5 * 0.3, "it was reduced more than once"
    return checkpoint.portable_state(model), losses, checkpoint.portable_state(average.module)


@pytest.mark.ray
def test_the_rate_that_goes_by_the_validation_and_the_average_are_a_plain_loops_after_a_resume_too(
    launch: Launch, tmp_path: Path
) -> None:
    """It begins with all-reduce and goes on with servers."""
    first = launch(JOB, "ab", num_iterations=9, keep_best="val_loss", strategy="allreduce", **SETTINGS)
    code, errors = first.finish()
    assert code == 0, errors
    resumed = launch(JOB, "ab", num_iterations=20, keep_best="val_loss", resume=first, **SETTINGS)
    code, errors = resumed.finish()
    assert code == 0, errors
    weights, losses, average = textbook(tmp_path, 20, norms := [])
    found = {event["step"]: event["metrics"]["val_loss"] for event in resumed.of_kind("evaluated")}
    for number, loss in enumerate(losses, start=1):
        assert found[2 * number] == pytest.approx(loss, rel=1e-4), 2 * number
    plain.assert_equal(plain.weights_of(resumed), weights)
    (finished,) = resumed.of_kind("run_finished")
    kept = checkpoint.find(Path(finished["checkpoint"])).training_state().optimizer
    plain.assert_equal({name: torch.as_tensor(entries["ema"]) for name, entries in kept.items()}, average)
    rates = [event["learning_rate"] for event in resumed.of_kind("step")]
    assert rates[0] == 1.5
    told = [event["gradient_norm"] for event in resumed.of_kind("step")]
    assert told[:9] == [pytest.approx(norm, rel=1e-4) for norm, _ in norms[:9]]
    assert told[9:] == [None] * 11, "no server has the whole gradient"
    for event, (_, right) in zip(resumed.of_kind("step"), norms, strict=True):
        assert event["scalars"] == {"right": pytest.approx(right, abs=0.07)}  # one of 16 may be on the edge
    assert rates[-1] < 1.5 * 0.3
    best = 2 * (1 + losses.index(min(losses)))
    assert Path(finished["best"]).name == f"step-{best:08d}.safetensors"
    assert Path(finished["best"]).is_file()


@pytest.mark.ray
def test_a_run_that_gets_no_better_ends_and_the_best_outlives_the_newest(launch: Launch) -> None:
    how = {"keep_best": "val_loss", "early_stopping": 4, "keep_checkpoints": 1, "checkpoint_every": 1}
    run = launch(JOB, "ab", num_iterations=400, **SETTINGS | how)
    code, errors = run.finish()
    assert code == 0, errors
    (finished,) = run.of_kind("run_finished")
    evaluated = run.of_kind("evaluated")
    losses = [event["metrics"]["val_loss"] for event in evaluated]
    assert losses.index(min(losses)) == len(losses) - 5
    best = evaluated[-5]
    assert best["best"]
    assert not any(event["best"] for event in evaluated[-4:])
    assert f"4 evaluations; best {min(losses):.4g} at step {best['step']}" in finished["reason"]
    assert not finished["stopped"]
    assert finished["steps"] == evaluated[-1]["step"]
    left = sorted(path.name for path in (run.folder / "checkpoints").glob("*.json"))
    assert left == [f"step-{best['step']:08d}.json", f"step-{finished['steps']:08d}.json"]


@pytest.mark.ray
def test_a_metric_that_is_not_measured_is_refused_before_the_first_step(launch: Launch) -> None:
    source = JOB.replace("def create_scheduler", "def _left_out")
    run = launch(source, "a", num_iterations=9, **SETTINGS | {"keep_best": "max:recall"})
    code, _ = run.finish()
    assert code == 1
    (failed,) = run.of_kind("run_failed")
    assert "val_loss, val_right, and not recall" in failed["cause"]
    assert failed["hint"]
    assert not run.of_kind("step")


def test_a_scheduler_that_can_not_go_by_the_validation_is_refused() -> None:
    data = Validation([(0.0, 0)], ())
    with pytest.raises(JobError, match="goes by the validation") as refused:
        check_plateau("min", "", None)
    assert refused.value.hint
    with pytest.raises(JobError, match="mode=min") as refused:
        check_plateau("min", "max:accuracy", data)
    assert refused.value.hint
    check_plateau("min", "val_loss", data)
    check_plateau("", "max:accuracy", None)


def test_a_scheduler_is_not_given_figures_of_two_metrics() -> None:
    data, config = Validation([(0.0, 0)], ()), {"keep_best": "max:right"}
    found = Checkpoint(path=Path("step-5"), step=5, position=40, seed=0, config=config, watched=((4, 0.5),))
    with pytest.raises(JobError, match="went by max:right up to step 5, and would go by accuracy") as refused:
        check_plateau("max", "max:accuracy", data, found)
    assert "keep_best=max:right" in refused.value.hint
    check_plateau("max", "max:right", data, found)
    check_plateau("max", "max:accuracy", data, dataclasses.replace(found, watched=()))
    check_plateau("", "max:accuracy", data, found)


def test_a_run_that_is_stopped_has_no_figures_of_an_older_step_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = Evaluation(metrics={"val_loss": 0.5, "odd": None}, samples=8, seconds=0.1)
    monkeypatch.setattr(judge, "Evaluator", lambda _: SimpleNamespace(evaluate=lambda *_, **__: evaluation))
    session: Any = SimpleNamespace(
        config=TrainingConfig(), validation=object(), order=SimpleNamespace(done=0, size=8), takeover=None,
        watched=(), plateau=False, evaluations=SimpleNamespace(watched=()), source=SimpleNamespace(size=8),
        journal=SimpleNamespace(write=lambda *_, **__: None), is_evaluated=lambda step, *_: step == 4,
    )  # fmt: skip
    judged = judge.Judge(session, "h")
    for step in (4, 5):
        judged.after(session, step, 0, 8)
    assert judged.figures_of(4) == {"val_loss": 0.5}
    assert judged.figures_of(5) == {}, "the user stopped it, and its last step was not evaluated"
