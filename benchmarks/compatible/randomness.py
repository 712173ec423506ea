"""Losses with random numbers, of their own state, and of two networks: VAEs, policies, masks, GANs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compatible.case import BATCH, Case, case, tokens
from benchmarks.compatible.losses import AREA


class Auto(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Any:
        mean, log = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log).exp()
        return self.decoder(z), mean, log


class Variational(Case):
    """A VAE."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def create_model(self) -> nn.Module:
        return Auto()


@case("vae-mean", AREA)
class VaeMean(Variational):
    """A VAE: means over samples of both terms, deterministic=True."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out, mean, log = model(batch[0])
        return functional.mse_loss(out, batch[0]) - 0.5 * (1 + log - mean**2 - log.exp()).sum(1).mean()


@case("vae-sum", AREA)
class VaeSum(Variational):
    """A VAE: sums of both terms, deterministic=True."""

    settings: ClassVar = {"deterministic": True, "learning_rate": 0.002}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out, mean, log = model(batch[0])
        return functional.mse_loss(out, batch[0], reduction="sum") - 0.5 * (1 + log - mean**2 - log.exp()).sum()


@case("vae-mixed", AREA)
class VaeMixed(Variational):
    """A VAE: the mean of the squares and the sum of the divergences, a common slip."""

    expect, says = "refused", "unit"
    settings: ClassVar = {}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out, mean, log = model(batch[0])
        return functional.mse_loss(out, batch[0]) - 0.05 * (1 + log - mean**2 - log.exp()).sum()


@case("vae-by-constant", AREA)
class VaeConstant(Variational):
    """A VAE: sums of both terms, by the configured batch size."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        out, mean, log = model(batch[0])
        total = functional.mse_loss(out, batch[0], reduction="sum") - 0.5 * (1 + log - mean**2 - log.exp()).sum()
        return total / BATCH


@case("policy-gradient", AREA)
class Policy(Case):
    """A policy's own actions: REINFORCE with the batch's mean reward as a baseline."""

    expect, says = "refused", "unit"

    def loss(self, model: nn.Module, batch: Any) -> Any:
        policy = torch.distributions.Categorical(logits=model(batch[0]))
        actions = policy.sample()
        reward = (actions == batch[1]).float() * 5
        return -(policy.log_prob(actions) * (reward - reward.mean())).mean()


@case("policy-gradient-plain", AREA)
class PolicyPlain(Case):
    """REINFORCE without a baseline, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        policy = torch.distributions.Categorical(logits=model(batch[0]))
        actions = policy.sample()
        return -(policy.log_prob(actions) * (actions == batch[1]).float()).mean()


class Rivals(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Any:
        return self.maker(x)


@case("gan-one-optimizer", AREA)
class Gan(Case):
    """A GAN in one loss: gradients are reversed for the generator, one optimizer with two groups."""

    def create_model(self) -> nn.Module:
        return Rivals()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Rivals)
        made = model.maker(batch[0].flip(1))
        real, fake = model.judge(batch[0]), model.judge(made.detach())
        judge = functional.softplus(-real).mean() + functional.softplus(fake).mean()
        for parameter in model.judge.parameters():
            parameter.requires_grad_(False)
        maker = functional.softplus(-model.judge(made)).mean()
        for parameter in model.judge.parameters():
            parameter.requires_grad_(True)
        return judge + maker


@case("wasserstein-penalty", AREA)
class Wasserstein(Gan):
    """WGAN-GP's critic: a penalty at random points between, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Rivals)
        made = model.maker(batch[0].flip(1))
        share = torch.rand(len(made), 1)
        between = (share * batch[0] + (1 - share) * made).detach().requires_grad_()
        (slope,) = torch.autograd.grad(model.judge(between).sum(), between, create_graph=True)
        return model.judge(made).mean() - model.judge(batch[0]).mean() + ((slope.norm(dim=1) - 1) ** 2).mean()


@case("masked-tokens", AREA)
class MaskedTokens(Case):
    """A masked language model: the mask is drawn in loss, the mean is over the masked tokens, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))

    def create_data(self) -> Any:
        x = tokens(6, 11)
        return x, x

    def loss(self, model: nn.Module, batch: Any) -> Any:
        mask = torch.rand(batch[0].shape) < 0.3
        scores = model(batch[0].masked_fill(mask, 0))
        return functional.cross_entropy(scores[mask], batch[0][mask])


@case("masked-tokens-ignored", AREA)
class MaskedTokensIgnored(MaskedTokens):
    """The same by labels of -100, deterministic=True."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        mask = torch.rand(batch[0].shape) < 0.3
        scores = model(batch[0].masked_fill(mask, 0))
        labels = batch[0].masked_fill(~mask, -100)
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


@case("evaluating-teacher", AREA)
class PseudoLabels(Case):
    """Pseudo labels: the loss switches the model to evaluation mode and back, with dropout, deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 3))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        model.eval()
        with torch.no_grad():
            target = model(batch[0]).softmax(1)
        model.train()
        return functional.cross_entropy(model(batch[0]), 0.5 * target + 0.5 * functional.one_hot(batch[1], 3))


@case("left-in-evaluation", AREA)
class LeftInEvaluation(PseudoLabels):
    """The loss switches the model to evaluation mode, and leaves it there: plain torch trains without dropout then."""

    expect, says = "equal", ""
    settings: ClassVar = {}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        model.eval()
        return functional.cross_entropy(model(batch[0]), batch[1])


@case("epoch-schedule", AREA)
class ByEpoch(Case):
    """A weight in the loss that rises with a count of calls on the job."""

    expect, says = "refused", "self.calls"

    def __init__(self) -> None:
        self.calls = 0

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.calls += 1
        out = model(batch[0])
        return functional.cross_entropy(out, batch[1]) + 0.01 * min(1.0, self.calls / 10) * out.pow(2).mean()


class Warmup:
    """A schedule object."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self) -> float:
        self.step += 1
        return min(1.0, self.step / 10)
