"""Local SGD's outer optimizer, which a server applies once a round."""

from __future__ import annotations

import torch
from torch import nn

from remote_agent.training.config import TrainingConfig


def outer_optimizer(config: TrainingConfig, part: nn.Parameter) -> torch.optim.Optimizer:
    """The optimizer that a shard steps along the outer gradient with, over one part of the weights.

    ``outer=none`` makes the weights the mean of the workers': SGD with learning rate 1. ``outer=nesterov`` is DiLoCo's.
    """
    if config.outer == "nesterov":
        momentum = config.outer_momentum
        return torch.optim.SGD([part], lr=config.outer_learning_rate, momentum=momentum, nesterov=momentum > 0)
    return torch.optim.SGD([part], lr=1.0)
