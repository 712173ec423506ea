"""The worker's part in local SGD: rounds of its own steps between two exchanges, and the step that ends a round.

In a round a worker starts from the common weights ``w``, makes ``H_i`` steps with the job's own optimizer on its own
samples, and ends at ``w_i``. It contributes ``n_i (w - w_i)``, with ``n_i`` the samples that it used. The shards divide
the sum by all samples: the mean ``w - w_i`` is the *outer gradient*, and the outer optimizer steps along it. See Stich,
"Local SGD converges fast and communicates little" (ICLR 2019); Douillard et al., "DiLoCo" (arXiv:2311.08105, 2023).

The inner optimizer's state (moments) stays on the worker from round to round, and is not exchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from remote_agent.training import job
from remote_agent.training.channels import Channel
from remote_agent.training.config import TrainingConfig
from remote_agent.training.messages import StreamedTask
from remote_agent.training.streaming import Compute, Streaming


class LocalRounds(Streaming):
    """Streamed rounds in the place of steps: what is contributed of a slice is the way that its local steps went.

    Args:
        model: the model; its parameters become views of this worker's own weights.
        names: of the parameters in the buffer, in its order.
        watched: names of those that must not get a gradient.
        channel: the way to the shards.
        compute: computes one local step's gradient.
        optimizer: the job's, over ``model``.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        watched: Sequence[str],
        channel: Channel,
        compute: Compute,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._optimizer = optimizer
        self._weights = torch.empty_like(channel.gradient)
        self._inner = torch.empty_like(channel.gradient)
        super().__init__(model, names, watched, channel, compute)
        self._inner_views = self._gradients.views(self._inner)
        for parameter, view in zip(self._parameters.values(), self._gradients.views(self._weights), strict=True):
            parameter.data = view

    def _gradient_of(self, task: StreamedTask, views: Sequence[Tensor]) -> float:
        """Make the round's local steps, leave ``n (w - w_i)`` in ``views``, and return the mean loss of all samples.

        A round that another worker has lost leaves this worker's optimizer as it was.
        """
        assert task.own is not None, "the task has a slice"
        mine = views is self._own
        before = None if mine else copy.deepcopy(self._optimizer.state_dict())
        self._weights.copy_(self._channel.weights[(task.step - 1) % 2])
        samples = task.own.indices
        total = 0.0
        for number, begin in enumerate(range(0, len(samples), task.local_batch)):
            batch = samples[begin : begin + task.local_batch]
            self._gradients.begin(self._inner_views)
            # The number of a slice that no other local step of the round has, for its randomness.
            loss = self._compute(task.step, task.own.index + number * task.slices, batch)
            self._finite(loss, len(batch))
            self._gradients.check()
            self._inner.div_(len(batch))
            for parameter, gradient in zip(self._parameters.values(), self._inner_views, strict=True):
                parameter.grad = gradient
            job.guard("the optimizer's step", self._optimizer.step)
            total += loss * len(batch)
        self._leave_difference(task.step - 1, len(samples), views)
        if before is not None:
            self._optimizer.load_state_dict(before)
        return total / len(samples)

    @torch.no_grad()
    def _leave_difference(self, step: int, samples: int, views: Sequence[Tensor]) -> None:
        for view, start, parameter in zip(views, self._sides[step % 2], self._parameters.values(), strict=True):
            parameter.grad = None
            torch.sub(start, parameter, out=view)
            view.mul_(samples)

    def _flip(self) -> None:
        """The worker's own weights are the newest common ones."""
        self._weights.copy_(self._channel.weights[self._channel.step % 2])


def outer_optimizer(config: TrainingConfig, part: nn.Parameter) -> torch.optim.Optimizer:
    """The optimizer that a shard steps along the outer gradient with, over one part of the weights.

    ``outer=none`` makes the weights the mean of the workers': SGD with learning rate 1. ``outer=nesterov`` is DiLoCo's.
    """
    if config.outer == "nesterov":
        momentum = config.outer_momentum
        return torch.optim.SGD([part], lr=config.outer_learning_rate, momentum=momentum, nesterov=momentum > 0)
    return torch.optim.SGD([part], lr=1.0)
