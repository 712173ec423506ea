from __future__ import annotations

import pytest
import torch

from remote_agent import jobs
from remote_agent.training.data import datasets
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.errors import JobError
from remote_agent.training.job import create_model, from_object, loss_function


def losses(name: str, steps: int) -> tuple[list[float], dict[str, float]]:
    """Train a ready job in this process, one device, as its own defaults say."""
    job = from_object(name, jobs.ready(name))
    assert job.config is not None
    assert job.evaluate is not None
    model = create_model(job.factory, 0)
    optimizer = job.factory.create_optimizer(model, job.config)
    samples = datasets.as_dataset(job.create_data())
    order = SampleOrder(0, len(samples), job.config.batch_size)
    values = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = loss_function(job.factory)(model, datasets.fetch(samples, order.step(step)))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        values.append(loss.item())
    with torch.no_grad():
        return values, job.evaluate(model.eval())


def test_digits_reaches_97_percent_of_images_it_has_not_seen_with_its_default_settings() -> None:
    _, evaluation = losses("digits", jobs.ready("digits").config.num_iterations)
    assert evaluation["test_accuracy"] >= 0.97


def test_text_learns_within_30_steps() -> None:
    values, evaluation = losses("text", 30)
    assert values[0] == pytest.approx(5.5, abs=0.3)
    assert sum(values[-5:]) / 5 < 3.7
    assert evaluation["validation_loss"] < 3.8


def test_the_training_text_and_the_held_out_text_do_not_overlap() -> None:
    from remote_agent.jobs.text import CONTEXT, VALIDATION_WINDOWS, Text, corpus

    text, windows = corpus(), Text().create_data()
    assert len(windows) * CONTEXT + VALIDATION_WINDOWS * CONTEXT < len(text)
    inputs, targets = windows.batch(torch.tensor([0, 3]))
    assert inputs.shape == targets.shape == (2, CONTEXT)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(windows[3][0], inputs[1])


def test_an_unknown_job_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(JobError, match="digit") as caught:
        jobs.ready("digts")
    assert "'digits'" in caught.value.hint
