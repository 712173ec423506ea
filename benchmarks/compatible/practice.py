"""Jobs of several fields: physics, graphs of functions, GANs by turns, distillation by hooks, and their optimizers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compatible.case import REFUSED, Case, case, small
from remote_agent.training.config import TrainingConfig

AREA = "several fields"


@case("trained-weights-of-samples", AREA)
class TrainedWeights(Case):
    """(sum, weight) with weights from a trained gate: the mean's divisor has a gradient."""

    expect: ClassVar[str] = REFUSED
    says: ClassVar[str] = "weight that has a gradient"
    quick: ClassVar[bool] = True

    def create_model(self) -> nn.Module:
        return nn.ModuleDict({"net": small(), "gate": nn.Linear(6, 1)})

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        weights = model["gate"](x).sigmoid()[:, 0]
        return (weights * functional.cross_entropy(model["net"](x), y, reduction="none")).sum(), weights.sum()


@case("accuracy-beside", AREA)
class AccuracyBeside(Case):
    """return loss, accuracy: it has the form of (sum, weight)."""

    expect: ClassVar[str] = REFUSED
    says: ClassVar[str] = "mean over something else"

    def loss(self, model: Any, batch: Any) -> Any:
        out = model(batch[0])
        return functional.cross_entropy(out, batch[1]), (out.argmax(1) == batch[1]).float().mean()


class Adversaries(nn.Module):
    """A generator, a discriminator, and a count of steps."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(3, 6)
        self.judge = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))


@case("gan-by-turns", AREA)
class GanByTurns(Case):
    """A GAN whose parts are trained in turn, by a count in a buffer; AdamW leaves alone what has no gradient."""

    def create_model(self) -> nn.Module:
        return Adversaries()

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

    def loss(self, model: Any, batch: Any) -> Any:
        x = batch[0]
        model.step += 1
        made = model.maker(x[:, :3].flip(1))
        if model.step % 2:
            return (functional.softplus(-model.judge(x)) + functional.softplus(model.judge(made.detach()))).mean()
        model.judge.requires_grad_(False)
        loss = functional.softplus(-model.judge(made)).mean()
        model.judge.requires_grad_(True)
        return loss


@case("features-by-hook", AREA)
class FeaturesByHook(Case):
    """A forward hook collects features with their graphs; the loss uses and removes them."""

    def create_model(self) -> nn.Module:
        model: Any = small()
        model.features = []
        model[1].register_forward_hook(lambda module, given, out: model.features.append(out))
        return model  # type: ignore[no-any-return]

    def loss(self, model: Any, batch: Any) -> Any:
        out = model(batch[0])
        features = torch.stack(model.features).sum(0)
        model.features.clear()
        return functional.cross_entropy(out, batch[1]) + 0.1 * features.square().mean()


@case("physics-informed", AREA)
class PhysicsInformed(Case):
    """A PINN: the Laplacian by two backward passes, and boundary points that the job holds."""

    def __init__(self) -> None:
        self.edge = torch.linspace(0, 1, 10)[:, None].repeat(1, 2)

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def create_data(self) -> Any:
        return torch.rand(42, 2, generator=torch.Generator().manual_seed(2))

    def batch(self, data: Any, indices: Any) -> Any:
        return data[indices]

    def loss(self, model: Any, batch: Any) -> Any:
        x = batch.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        second = [torch.autograd.grad(slope[:, axis].sum(), x, create_graph=True)[0][:, axis] for axis in range(2)]
        return (second[0] + second[1] - x.sum(1)).square().mean() + model(self.edge).square().mean()


@case("jacobians", AREA)
class Jacobians(Case):
    """Penalties by torch.func: vmap of jacrev over functional_call, and jvp."""

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        weights = dict(model.named_parameters())

        def one(row: Tensor) -> Any:
            return torch.func.functional_call(model, weights, (row[None],))[0]

        rows = torch.func.vmap(torch.func.jacrev(one))(x)
        along = torch.func.jvp(model, (x,), (torch.ones_like(x),))[1]
        return functional.cross_entropy(model(x), y) + 0.1 * rows.square().mean() + 0.1 * along.square().mean()


class Fourier(nn.Module):
    """Complex weights for each frequency, beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(9, dtype=torch.cfloat))
        self.line = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Any:
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=16) + self.line(x).tanh()


@case("fourier-operator", AREA)
class FourierOperator(Case):
    """A Fourier neural operator: complex weights with Adam and clip_norm."""

    settings: ClassVar[Any] = {"clip_norm": 0.1}

    def create_model(self) -> nn.Module:
        return Fourier()

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def create_data(self) -> Any:
        x = torch.randn(42, 16, generator=torch.Generator().manual_seed(2))
        return x, x.roll(1, 1)

    def loss(self, model: Any, batch: Any) -> Any:
        return functional.mse_loss(model(batch[0]), batch[1])


class Quantised(nn.Module):
    """A layer of frozen numbers in eight bits, of which a mask leaves some out, and a trained scale."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randint(-9, 9, (16, 6), dtype=torch.int8), requires_grad=False)
        self.mask = nn.Parameter(torch.rand(16, 6) > 0.2, requires_grad=False)
        self.scale, self.out = nn.Parameter(torch.full((16, 1), 0.05)), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out((x @ (self.codes.float() * self.mask * self.scale).t()).tanh())


@case("integer-parameters", AREA)
class IntegerParameters(Case):
    """Frozen parameters of int8 and bool."""

    def create_model(self) -> nn.Module:
        return Quantised()


class Accumulating(torch.optim.SGD):
    """Sums the gradients of two steps up, and then makes a step."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        for parameter in (each for group in self.param_groups for each in group["params"] if each.grad is not None):
            kept = self.state[parameter].setdefault("kept", torch.zeros_like(parameter))
            kept.add_(parameter.grad)
            parameter.grad.copy_(kept / 2)
            if self.calls % 2 == 0:
                kept.zero_()
        return super().step() if self.calls % 2 == 0 else None


@case("accumulating-optimizer", AREA)
class AccumulatingCase(Case):
    """An optimizer that makes a step with the gradients of two batches."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return Accumulating(model.parameters(), lr=0.05, momentum=0.9)


class Repeated(nn.Module):
    """One layer under three names, and one buffer in two modules."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.block, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        self.layers = nn.ModuleList([self.block, self.block])
        self.register_buffer("mean", torch.zeros(6))
        self.out.register_buffer("mean", self.mean)

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = x + layer(x).tanh()
        out = self.out(x - self.out.get_buffer("mean"))
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
        return out


@case("repeated-layers", AREA)
class RepeatedLayers(Case):
    """ALBERT's shared layers, and a moving mean that two modules share."""

    def create_model(self) -> nn.Module:
        return Repeated()


@case("anchored-weights", AREA)
class BoundBuffers(Case):
    """L2-SP: a penalty of the distance from the first weights, which the first call of loss keeps on the job."""

    killed: ClassVar[bool] = True
    anchor: Any = None

    def loss(self, model: Any, batch: Any) -> Any:
        if self.anchor is None:
            self.anchor = [parameter.detach().clone() for parameter in model.parameters()]
        pairs = zip(model.parameters(), self.anchor, strict=True)
        far = sum((parameter - first).square().sum() for parameter, first in pairs)
        return functional.cross_entropy(model(batch[0]), batch[1]) + 0.5 * far


@case("numpy-weight", AREA)
class NumpyWeight(Case):
    """(sum, weight) with a weight that is a numpy number."""

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        return functional.cross_entropy(model(x), y, reduction="sum"), (y.numpy() >= 0).sum()
