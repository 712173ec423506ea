"""What the parity check trains: four unlike models, three optimizers, and the plain torch loop that says what is right.

All activations are smooth and no layer has a bias that the next one cancels: a kink, or a gradient that is zero but for
rounding, would make the weights depend on the last bit, in a plain loop as well.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.training.config import TrainingConfig

SAMPLES = 30
"""Of each data set. A step takes all of them: full-batch training."""

STEPS, SEED = 20, 3

CLIP_NORM = 0.36
"""Each model's gradient is above it in some steps and below it in others (PartlyTrained's: 0.35 to 0.41)."""

MEASURED_WITH = 6
"""Times that the measurement changes the weights: to others than the first ones, and back."""

KILL_AT = 7


class TiedPerceptron(nn.Module):
    """Two hidden layers with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 32)
        self.tied, self.again = nn.Linear(32, 32), nn.Linear(32, 32)
        self.again.weight = self.tied.weight
        self.last = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.tied(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.again(x)))  # type: ignore[no-any-return]


class Convolutions(nn.Module):
    """A small CNN with GroupNorm: images ``(n, 1, 8, 8)`` to logits ``(n, 4)``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.GroupNorm(4, 8),
            nn.GELU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(4, 16),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(256, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Causal attention and a two-layer perceptron, pre-norm, without dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))  # type: ignore[no-any-return]


class TinyGPT(nn.Module):
    """Two blocks, output layer tied to the embedding: tokens ``(n, t)`` to logits ``(n, t, 31)``."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(31, 32), nn.Embedding(12, 32)
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.blocks = nn.Sequential(Block(32, 4), Block(32, 4))
        self.norm = nn.LayerNorm(32)

    def forward(self, text: Tensor) -> Tensor:
        x = self.blocks(self.tokens(text) + self.positions.weight[: text.shape[1]])
        return functional.linear(self.norm(x), self.tokens.weight)


class PartlyTrained(nn.Module):
    """A frozen layer in the middle, and a layer that the forward pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 32)
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(7, 7)
        self.last = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.frozen(torch.tanh(self.first(x)))))  # type: ignore[no-any-return]


MODELS: dict[str, type[nn.Module]] = {
    "mlp-tied": TiedPerceptron,
    "cnn-groupnorm": Convolutions,
    "gpt": TinyGPT,
    "frozen-unused": PartlyTrained,
}

OPTIMIZERS = ("sgd-momentum", "adamw", "adamw-clip-schedule")


class ParityJob:
    """One model with one optimizer.

    Args:
        model: a name in :data:`MODELS`.
        optimizer: a name in :data:`OPTIMIZERS`.
        kill_marker: a file that does not exist: the worker that makes it in step :data:`KILL_AT` is killed, in the
            middle of backward. "": none is.
    """

    def __init__(self, model: str, optimizer: str, kill_marker: str = "") -> None:
        self.model, self.optimizer, self.kill_marker = model, optimizer, kill_marker
        self._seen: Tensor | None = None
        self._step = 1

    def create_model(self) -> nn.Module:
        """The network."""
        return MODELS[self.model]()

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        """As its name says."""
        del config
        if self.optimizer == "sgd-momentum":
            return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        return torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)

    def create_data(self) -> tuple[Tensor, Tensor]:
        """:data:`SAMPLES` fixed samples that can be learned."""
        generator = torch.Generator().manual_seed(5)
        if self.model == "gpt":
            text = torch.randint(31, (SAMPLES, 13), generator=generator)
            return text[:, :-1], text[:, 1:]
        if self.model == "cnn-groupnorm":
            x = torch.randn(SAMPLES, 1, 8, 8, generator=generator)
            return x, functional.avg_pool2d(x, 4).flatten(1).argmax(1)
        x = torch.randn(SAMPLES, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean cross entropy."""
        if self.kill_marker:
            self._perhaps_die(model)
        return functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())

    def _perhaps_die(self, model: nn.Module) -> None:
        """Step t is computed with the weights of step t - 1, so that the step is known from how often they changed."""
        first = next(parameter for parameter in model.parameters() if parameter.requires_grad)
        if self._seen is not None and not torch.equal(self._seen, first):
            self._step += 1
        self._seen = first.detach().clone()
        if self._step != MEASURED_WITH + KILL_AT:
            return
        try:
            os.close(os.open(self.kill_marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return  # one is enough
        # The first layer's gradient is the last: what is sent while backward goes on has been sent by then.
        first.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[no-untyped-call]


class ScheduledJob(ParityJob):
    """The same with a schedule that changes the learning rate and Adam's momentum at every step."""

    def create_scheduler(
        self, optimizer: torch.optim.Optimizer, config: TrainingConfig
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """One cycle up and down."""
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.006, total_steps=config.num_iterations + 1)


def job_of(model: str, optimizer: str, kill_marker: str = "") -> ParityJob:
    """The job for a model and an optimizer of these names; see :class:`ParityJob`."""
    kind = ScheduledJob if optimizer == "adamw-clip-schedule" else ParityJob
    return kind(model, optimizer, kill_marker)


def config_of(optimizer: str, **settings: Any) -> TrainingConfig:
    """How that optimizer trains, with further ``settings``."""
    clip = CLIP_NORM if optimizer == "adamw-clip-schedule" else 0.0
    common = {"num_iterations": STEPS, "batch_size": SAMPLES, "seed": SEED, "clip_norm": clip, "measure_seconds": 0.05}
    return TrainingConfig(**(common | settings))


def plain_loop(model: str, optimizer: str) -> dict[str, Tensor]:
    """The weights by the textbook: one process, the whole batch, torch's own clipping and schedule; nothing of ours."""
    job, config = job_of(model, optimizer), config_of(optimizer)
    torch.manual_seed(config.seed)
    network = job.create_model()
    stepper = job.create_optimizer(network, config)
    scheduler = job.create_scheduler(stepper, config) if isinstance(job, ScheduledJob) else None
    batch = job.create_data()
    for _ in range(config.num_iterations):
        stepper.zero_grad()
        job.loss(network, batch).backward()  # type: ignore[no-untyped-call]
        if config.clip_norm:
            nn.utils.clip_grad_norm_(network.parameters(), config.clip_norm)
        stepper.step()
        if scheduler is not None:
            scheduler.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def relative_error(trained: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest over all tensors of ``norm(trained - expected) / norm(expected)``; the names are the same.

    Raises:
        ValueError: the names differ.
    """
    if trained.keys() != expected.keys():
        raise ValueError(f"other tensors: {sorted(trained.keys() ^ expected.keys())}")
    return max(
        float((trained[name].double() - value.double()).norm() / value.double().norm().clamp_min(1e-12))
        for name, value in expected.items()
    )
