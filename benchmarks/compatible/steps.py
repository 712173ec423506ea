"""Optimizers and losses whose steps depend on more than this step's gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info

from benchmarks.compatible.case import BATCH, Case, Samples, case, points, small
from benchmarks.compatible.recipes import AREA
from remote_agent.training.config import TrainingConfig


class Curvature(torch.optim.Optimizer):
    """KFAC's left half: a layer's gradient by the covariance of its inputs, which a forward hook keeps."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__(model.parameters(), {"lr": lr})
        self.layers = [each for each in model.modules() if isinstance(each, nn.Linear)]
        self.inputs: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers):
            layer.register_forward_pre_hook(lambda _, given, n=number: self.inputs.update({n: given[0].detach()}))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for number, layer in enumerate(self.layers):
            given = self.inputs[number]
            spread = given.t() @ given / len(given) + 0.1 * torch.eye(given.shape[1])
            assert layer.weight.grad is not None
            layer.weight.grad = layer.weight.grad @ torch.linalg.inv(spread)
            for each in layer.parameters():
                assert each.grad is not None
                each.add_(each.grad, alpha=-self.param_groups[0]["lr"])


@case("kfac", AREA)
class Kfac(Case):
    """An optimizer that keeps the layers' inputs by forward hooks: each worker has those of its slice."""

    expect, says = "ended", "the optimizer's step made other weights on each worker"

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return Curvature(model, config.learning_rate)


@case("step-by-last-loss", AREA)
class StepByLastLoss(Case):
    """Polyak's step size, by the loss that loss leaves in an attribute of the model."""

    expect, says = "ended", "the optimizer's step made other weights on each worker"

    def create_model(self) -> nn.Module:
        model = small()
        model.last = torch.ones(())
        return model

    def create_optimizer(self, model: Any, config: TrainingConfig) -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=config.learning_rate)

        def scale(*unused: object) -> None:
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            size = (model.last / sum(each.square().sum() for each in gradients)).clamp(max=5)
            for each in gradients:
                each.mul_(size)

        made.register_step_pre_hook(scale)
        return made

    def loss(self, model: Any, batch: Any) -> Any:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        model.last = loss.detach()
        return loss


class LowRank(torch.optim.Optimizer):
    """GaLore: momentum of a matrix in the space of the gradient's first singular vectors, found anew now and then."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"]:
            state, gradient = self.state[each], each.grad
            state["step"] = state.get("step", 0) + 1
            if each.dim() == 2:
                if state["step"] % 3 == 1:
                    state["space"] = torch.linalg.svd(gradient, full_matrices=False)[0][:, :2]
                state["momentum"] = 0.9 * state.get("momentum", 0) + state["space"].t() @ gradient
                gradient = state["space"] @ state["momentum"]
            each.add_(gradient, alpha=-self.param_groups[0]["lr"])


@case("galore", AREA)
class Galore(Case):
    """GaLore, with singular vectors that are found anew every third step."""

    tolerance = 1e-4

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return LowRank(model.parameters(), config.learning_rate)


class Pruned(nn.Module):
    """A layer with a mask over its weights."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.register_buffer("mask", torch.ones(16, 6))

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(functional.linear(x, self.first.weight * self.mask, self.first.bias)))


@case("pruned-in-hook", AREA)
class PrunedInHook(Case):
    """Gradual pruning: from the third step on a hook of the optimizer's step masks the smallest weights."""

    def create_model(self) -> nn.Module:
        return Pruned()

    def create_optimizer(self, model: Any, config: TrainingConfig) -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9)
        count = {"steps": 0}

        @torch.no_grad()
        def prune(*unused: object) -> None:
            count["steps"] += 1
            if count["steps"] >= 3:
                sizes = (model.first.weight * model.mask).abs()
                model.mask.copy_(sizes > sizes.flatten().kthvalue(10 * (count["steps"] - 2)).values)

        made.register_step_post_hook(prune)
        return made


@case("flooding", AREA)
class Flooding(Case):
    """Flooding, abs(loss - b) + b: the loss is a mean until some part of a batch is below b."""

    expect, says = "ended", "depends on which samples are together"
    steps = 14

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return (functional.cross_entropy(model(batch[0]), batch[1]) - 0.85).abs() + 0.85


class TaskBatches(Sampler[list[int]]):
    """Batches of one task each: the samples with even or with odd numbers."""

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(6):
            yield [2 * place + number % 2 for place in torch.randperm(21)[:BATCH].tolist()]

    def __len__(self) -> int:
        return 6


class Heads(nn.Module):
    """A head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = small(8), nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])


@case("task-by-batch", AREA)
class TaskByBatch(Case):
    """Each batch is of one task, whose head alone has a gradient, and weight decay."""

    settings: ClassVar = {"batch_size": None}

    def create_model(self) -> nn.Module:
        return Heads()

    def create_data(self) -> Any:
        x, y = points()
        data = [(x[number], y[number], number % 2) for number in range(len(x))]
        return DataLoader(Samples(data), batch_sampler=TaskBatches())

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.1)

    def loss(self, model: Any, batch: Any) -> Any:
        x, y, tasks = batch
        return functional.cross_entropy(model.heads[int(tasks[0])](model.body(x)), y)

    def mistake_in_order(self, steps: Any) -> str:
        return ""


LONG = 200
"""Samples of a stream."""


class Sharded(IterableDataset[Any]):
    """Points, of which each worker of a loader gives its own."""

    def __iter__(self) -> Iterator[Any]:
        about = get_worker_info()
        first, each = (0, 1) if about is None else (about.id, about.num_workers)
        yield from list(zip(*points(samples=LONG), strict=True))[first::each]


@case("stream-of-loader-workers", AREA)
class StreamOfWorkers(Case):
    """An IterableDataset that the loader's two workers share by get_worker_info."""

    stream = True

    def create_data(self) -> Any:
        return DataLoader(Sharded(), batch_size=BATCH, num_workers=2)

    def batch(self, data: Any, indices: Any) -> Any:
        x, y = points(samples=LONG)
        number = int(indices[0]) // BATCH
        own = torch.arange(number % 2, LONG, 2)[number // 2 * BATCH :][:BATCH]
        return x[own], y[own]


class Balanced(nn.Module):
    """Experts that a bias balances: it rises for those that got few samples."""

    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4), nn.ModuleList(nn.Linear(6, 3) for _ in range(4))
        self.register_buffer("bias", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        scores = self.gate(x).sigmoid()
        chosen = (scores + self.bias).topk(2).indices
        weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
        load = functional.one_hot(chosen, 4).sum((0, 1)).float()
        self.bias += 0.01 * torch.sign(load.mean() - load)
        return torch.stack([each(x) for each in self.experts], 1).mul(weights[..., None]).sum(1)


@case("experts-by-bias-undivided", AREA)
class ExpertsByBias(Case):
    """Experts balanced by a bias that moves with the batch's load (DeepSeek), with unit=batch_size."""

    settings: ClassVar = {"unit": BATCH}

    def create_model(self) -> nn.Module:
        return Balanced()


class Gated(nn.Module):
    """Two experts after batch normalisation; their balance over the batch counts in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.one, self.other = nn.BatchNorm1d(6), nn.Linear(6, 2), small(), small()
        self.balance: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Any:
        x = self.norm(x)
        share = self.gate(x).softmax(1)
        self.balance = share.mean(0).square().sum() if self.training else 0.0
        return share[:, :1] * self.one(x) + share[:, 1:] * self.other(x)


class Scaling:
    """Puts samples together, scaled by mean and deviation of the first batch."""

    def __init__(self) -> None:
        self.mean: Tensor | None = None
        self.deviation = torch.ones(6)

    def __call__(self, samples: list[Any]) -> Any:
        x, y = (torch.stack([each[part] for each in samples]) for part in (0, 1))
        if self.mean is None:
            self.mean, self.deviation = x.mean(0), x.std(0)
        return (x - self.mean) / self.deviation, y
