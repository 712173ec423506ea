"""Optimizers, once more: those with memory of the whole model, of their own, or of another kind; and schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from benchmarks.compatible.case import Case, case
from benchmarks.compatible.optimizers import AREA
from remote_agent.training.config import TrainingConfig


class Rule(torch.optim.Optimizer):
    """A base with one option, the learning rate."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})

    def all(self) -> list[nn.Parameter]:
        """With a gradient."""
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]


class Ruled(Case):
    """A case with a rule."""

    rule: Callable[..., Any]

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return type(self).rule(model.parameters(), lr=config.learning_rate)


class Lion(Rule):
    """Signs of momentum."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            momentum = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
            p.sub_((momentum * 0.9 + p.grad * 0.1).sign(), alpha=self.param_groups[0]["lr"] * 0.1)
            momentum.lerp_(p.grad, 0.01)


@case("lion", AREA)
class LionCase(Ruled):
    """Lion."""

    rule = Lion
    tolerance = 1e-4


class Lars(Rule):
    """A trust ratio for each parameter."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            ratio = p.norm() / (p.grad.norm() + 1e-3) if p.norm() > 0 else torch.ones(())
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            momentum.mul_(0.9).add_(p.grad * ratio.clamp(max=1))
            p.sub_(momentum, alpha=self.param_groups[0]["lr"])


@case("lars", AREA)
class LarsCase(Ruled):
    """LARS: a trust ratio from each parameter's norm."""

    rule = Lars


class Lamb(Rule):
    """Adam with a trust ratio."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            state = self.state[p]
            if not state:
                state["step"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
            state["step"] += 1
            state["m"].lerp_(p.grad, 0.1)
            state["v"].lerp_(p.grad**2, 0.001)
            update = state["m"] / (1 - 0.9 ** state["step"])
            update = update / ((state["v"] / (1 - 0.999 ** state["step"])).sqrt() + 1e-6)
            ratio = float(p.norm() / update.norm()) if p.norm() > 0 else 1.0
            p.sub_(update, alpha=self.param_groups[0]["lr"] * ratio)


@case("lamb", AREA)
class LambCase(Ruled):
    """LAMB."""

    rule = Lamb


class Shampoo(Rule):
    """A preconditioner for each side of a matrix."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            gradient = p.grad
            if p.dim() == 2:
                for side in (0, 1):
                    matrix = gradient if side == 0 else gradient.T
                    factor = self.state[p].setdefault(f"factor{side}", 1e-2 * torch.eye(len(matrix)))
                    factor += matrix @ matrix.T
                    values, vectors = torch.linalg.eigh(factor.double())
                    root = ((vectors * values.clamp_min(1e-12) ** -0.25) @ vectors.T).float()
                    gradient = root @ gradient if side == 0 else gradient @ root
            p.sub_(gradient, alpha=self.param_groups[0]["lr"] * 0.2)


@case("shampoo", AREA)
class ShampooCase(Ruled):
    """Shampoo-like: preconditioners of other shapes than the parameters."""

    rule = Shampoo
    tolerance = 1e-4


class Muon(Rule):
    """Orthogonalised momentum."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            momentum.mul_(0.9).add_(p.grad)
            update = momentum
            if p.dim() == 2:
                x = momentum / (momentum.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 1.5 * x - 0.5 * a @ x
                update = x
            p.sub_(update, alpha=self.param_groups[0]["lr"])


@case("muon", AREA)
class MuonCase(Ruled):
    """Muon: orthogonalised momentum."""

    rule = Muon


class Lookahead(Rule):
    """Slow weights in a list of its own, made when it is made; a step count in an attribute."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, lr)
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] * 4)
        self.count += 1
        if self.count % 2 == 0:
            every = [p for group in self.param_groups for p in group["params"]]
            for slow, p in zip(self.slow, every, strict=True):
                slow.lerp_(p, 0.5)
                p.copy_(slow)


@case("lookahead", AREA)
class LookaheadCase(Ruled):
    """Lookahead with slow weights in a list of its own."""

    rule = Lookahead


class ScheduleFree(Rule):
    """Schedule-free SGD: keeps z in its state, and counts in the group."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        torch.optim.Optimizer.__init__(self, parameters, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            k = group["k"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, 1 / (k + 1))
                p.add_(p.grad, alpha=group["lr"] * (0.9 * (1 - 1 / (k + 1)) - 1))
                z.sub_(p.grad, alpha=group["lr"])
            group["k"] = k + 1


@case("schedule-free", AREA)
class ScheduleFreeCase(Ruled):
    """Schedule-free SGD, which counts its steps in the parameter group."""

    rule = ScheduleFree


class Prodigy(Rule):
    """A step size from a sum over all parameters (D-Adaptation)."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        torch.optim.Optimizer.__init__(self, parameters, {"lr": lr, "d": 0.5})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        total = math.sqrt(sum(float((p.grad**2).sum()) for p in self.all()))
        for group in self.param_groups:
            group["d"] = max(group["d"], 0.3 / (1e-3 + total))
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] * group["d"])


@case("d-adaptation", AREA)
class ProdigyCase(Ruled):
    """A step size from a sum over all parameters, kept in the parameter group (Prodigy)."""

    rule = Prodigy


class Langevin(Rule):
    """Adds noise to each step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"]).add_(torch.randn_like(p), alpha=1e-2)


@case("langevin", AREA)
class LangevinCase(Ruled):
    """SGLD: the step adds noise, deterministic=True."""

    rule = Langevin
    expect = "itself"
    settings: ClassVar = {"deterministic": True}


class LangevinOwn(Rule):
    """The same by a generator of its own."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, lr)
        self.generator = torch.Generator().manual_seed(4)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            noise = torch.randn(p.shape, generator=self.generator)
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"]).add_(noise, alpha=1e-2)


@case("langevin-own-generator", AREA)
class LangevinOwnCase(Ruled):
    """SGLD by a generator of the optimizer's own: all workers draw the same."""

    rule = LangevinOwn


class EightBit(Rule):
    """Momentum in eight bits, with a scale."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.all():
            state = self.state[p]
            if not state:
                state["codes"], state["scale"] = torch.zeros(p.shape, dtype=torch.int8), torch.ones(())
            momentum = state["codes"].float() * state["scale"] * 0.9 + p.grad
            state["scale"] = momentum.abs().max() / 127 + 1e-12
            state["codes"] = torch.round(momentum / state["scale"]).to(torch.int8)
            p.sub_(momentum, alpha=self.param_groups[0]["lr"])


@case("eight-bit", AREA)
class EightBitCase(Ruled):
    """Momentum in eight bits."""

    rule = EightBit
    tolerance = 1e-3


@case("hessian", AREA)
class Sophia(Case):
    """Sophia-like: the step calls backward for a Hessian's diagonal."""

    expect, says = "refused", "the optimizer's step"

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return WithHessian(model.parameters(), config.learning_rate)


class WithHessian(Rule):
    """Hutchinson's estimate, from a graph of the gradients."""

    def step(self, closure: Any = None) -> None:
        parameters = self.all()
        gradients = [p.grad for p in parameters]
        noise = [torch.ones_like(p) for p in parameters]
        rows = torch.autograd.grad(gradients, parameters, noise, retain_graph=True)
        with torch.no_grad():
            for p, row in zip(parameters, rows, strict=True):
                p.sub_(p.grad / (row.abs() + 1), alpha=self.param_groups[0]["lr"])


class Counted(Rule):
    """Its step size falls with a count in an attribute."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, lr)
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for p in self.all():
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] / self.steps)


@case("step-count-attribute", AREA)
class CountedCase(Ruled):
    """An optimizer that counts its steps in an attribute, as many write it."""

    rule = Counted


class StepSub(torch.optim.SGD):
    """SGD whose step is overridden: it clips by the norm of all."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


@case("sgd-subclass", AREA)
class StepSubCase(Ruled):
    """A subclass of SGD that clips within its step."""

    rule = StepSub


@case("patched-step", AREA)
class Patched(Case):
    """torch's SGD with a step that was replaced on the object."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
        step = optimizer.step

        def clipped(closure: Any = None) -> Any:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return step(closure)

        optimizer.step = clipped
        return optimizer
