"""What happens in backward: own functions, hooks on activations, recomputing, transformations, inner steps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compatible.case import Case, case, small
from benchmarks.compatible.objectives import Uncertainty, Weighing

AREA = "backward"


class Checkpointed(nn.Module):
    """Recomputes its middle in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 16), small(16), nn.Linear(16, 3)
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.Tanh())

    def forward(self, x: Tensor) -> Any:
        from torch.utils.checkpoint import checkpoint

        return self.last(checkpoint(self.middle, torch.tanh(self.first(x)), use_reentrant=False))


@case("own-checkpointing", AREA)
class OwnCheckpointing(Case):
    """torch.utils.checkpoint in forward."""

    def create_model(self) -> nn.Module:
        return Checkpointed()


class Ensemble(nn.Module):
    """Several networks at once by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(small() for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        from torch.func import functional_call, vmap

        base = copy.deepcopy(self.members[0]).to("meta")
        names = [name for name, _ in base.named_parameters()]
        stacked = {name: torch.stack([each.get_parameter(name) for each in self.members]) for name in names}
        return vmap(lambda state: functional_call(base, state, (x,)))(stacked).mean(0)


@case("ensemble-vmap", AREA)
class EnsembleByVmap(Case):
    """An ensemble computed by torch.func.vmap."""

    def create_model(self) -> nn.Module:
        return Ensemble()


class Straight(torch.autograd.Function):
    """Rounds; the gradient passes."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        (x,) = context.saved_tensors
        return gradients[0] * (x.abs() < 1).float()


class Rounded(nn.Module):
    """Quantised activations with a straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(Straight.apply(torch.tanh(self.network(x))))


@case("straight-through", AREA)
class StraightThrough(Case):
    """A custom autograd function with saved tensors."""

    def create_model(self) -> nn.Module:
        return Rounded()


class NormalisedGradient(torch.autograd.Function):
    """Divides the gradient by its norm over the batch."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return gradients[0] / gradients[0].norm()


class Normalised(nn.Module):
    """With that between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(NormalisedGradient.apply(torch.tanh(self.network(x))))


@case("normalised-gradient", AREA)
class NormalisedGradients(Case):
    """A custom autograd function that divides the gradient by its norm over the batch."""

    expect, says = "refused", "gradient"
    quick = True

    def create_model(self) -> nn.Module:
        return Normalised()


class HookedActivation(nn.Module):
    """Clips the gradient of an activation by its norm over the batch, with a tensor hook."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.network(x))
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * (1e-3 / gradient.norm()).clamp(max=1))
        return self.last(h)


@case("activation-hook", AREA)
class ActivationHook(Case):
    """A tensor hook in forward clips the gradient of an activation by its norm over the batch."""

    expect, says = "refused", "gradient"

    def create_model(self) -> nn.Module:
        return HookedActivation()


class Autocast(nn.Module):
    """Computes in bfloat16 by its own autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small()

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            out = self.network(x)
        return out.float()


@case("own-autocast", AREA)
class OwnAutocast(Case):
    """torch.autocast in forward."""

    tolerance = 2e-2

    def create_model(self) -> nn.Module:
        return Autocast()


@case("grad-norm", AREA)
class GradNorm(Uncertainty):
    """GradNorm: the norm of each task's gradient is in the loss."""

    expect, says = "refused", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Weighing)
        left, right = model(batch[0])
        terms = [functional.cross_entropy(left, batch[1]), functional.mse_loss(right, batch[0][:, :2])]
        norms = [torch.autograd.grad(t, model.body.weight, create_graph=True)[0].norm() for t in terms]
        return terms[0] + terms[1] + 0.1 * (norms[0] - norms[1]).abs()


@case("self-normalised", AREA)
class SelfNormalised(Case):
    """The loss divided by its own detached value."""

    expect, says = "refused", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        return loss / loss.detach()


@case("maml", AREA)
class Maml(Case):
    """An inner gradient step on half of the batch (MAML)."""

    expect, says = "refused", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        from torch.func import functional_call

        x, y = batch
        half = max(1, len(x) // 2)
        weights = dict(model.named_parameters())
        inner = functional.cross_entropy(functional_call(model, weights, (x[:half],)), y[:half])
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
        return functional.cross_entropy(functional_call(model, fast, (x,)), y)


@case("per-sample-gradients", AREA)
class PerSample(Case):
    """A penalty of each sample's weight gradient by vmap of grad."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        from torch.func import functional_call, grad, vmap

        weights = dict(model.named_parameters())

        def one(state: Any, x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(functional_call(model, state, (x[None],)), y[None])

        rows = vmap(grad(one), (None, 0, 0))(weights, *batch)
        norms = sum(row.flatten(1).pow(2).sum(1) for row in rows.values())
        return functional.cross_entropy(model(batch[0]), batch[1]) + 0.01 * norms.mean()


@case("adversarial", AREA)
class Adversarial(Case):
    """Adversarial training: a step along the sign of the input's gradient."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x = batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(model(x), batch[1]), x)
        return functional.cross_entropy(model((x + 0.1 * gradient.sign()).detach()), batch[1])


@case("adversarial-by-backward", AREA)
class AdversarialBackward(Case):
    """The same with backward() within the loss."""

    expect, says = "refused", "backward"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x = batch[0].clone().requires_grad_()
        functional.cross_entropy(model(x), batch[1]).backward()
        assert x.grad is not None
        return functional.cross_entropy(model((x + 0.1 * x.grad.sign()).detach()), batch[1])


@case("virtual-adversarial", AREA)
class Virtual(Case):
    """The direction divided by its norm over the batch, not by sample."""

    expect, says = "refused", ""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x = batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(model(x), batch[1]), x)
        return functional.cross_entropy(model((x + gradient / gradient.norm()).detach()), batch[1])
