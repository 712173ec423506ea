"""What a step costs beside forward and backward, measured on tensors like the model's."""

from __future__ import annotations

import torch
from torch import nn

from remote_agent.training.worker.device import costs

CPU = torch.device("cpu")


def measured(*shapes: tuple[int, ...]) -> float:
    found = costs.costs({str(n): nn.Parameter(torch.zeros(shape)) for n, shape in enumerate(shapes)}, CPU, ())
    assert found.update_s > 0
    assert found.turn_s > 0
    assert found.touch_s > 0
    assert set(found.codec_s) == {"bf16", "int8"}
    return found.step_s


def test_the_optimizer_takes_longer_for_many_small_tensors_than_for_one_of_as_many_numbers() -> None:
    assert measured(*[(8, 8)] * 300) > 5 * measured((300 * 64,))


def test_a_large_tensor_is_measured_in_part_and_no_numbers_cost_nothing() -> None:
    assert measured((2 * costs.SAMPLE_NUMBERS, 2)) > 0
    assert measured((0, 4)) == measured() == 0
