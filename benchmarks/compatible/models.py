"""Models: layers, batches and dtypes of all kinds."""

from __future__ import annotations

import random
import time
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, rnn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.compatible.case import BATCH, SAMPLES, Case, Samples, case, images, points, tokens
from remote_agent.training.config import TrainingConfig

AREA = "models"


@case("mlp", AREA)
class Perceptron(Case):
    """A perceptron with all defaults: cross entropy on (x, y)."""

    killed = True


@case("cnn-groupnorm", AREA)
class Convolutions(Case):
    """Convolutions with GroupNorm."""

    killed = True

    def create_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.GroupNorm(4, 8),
            nn.GELU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(4, 8),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(128, 4),
        )

    def create_data(self) -> Any:
        return images()


@case("cnn-batchnorm", AREA)
class BatchNormalised(Convolutions):
    """Convolutions with BatchNorm: statistics of units of the batch, whatever the cut."""

    killed = quick = True

    def create_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(512, 4),
        )


@case("channels-last", AREA)
class ChannelsLast(Convolutions):
    """The same convolutions in channels_last memory format."""

    killed = False

    def create_model(self) -> nn.Module:
        model = super().create_model()
        for convolution in (model.get_submodule("0"), model.get_submodule("3")):
            weight = convolution.get_parameter("weight")
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        return model


class Recurrent(nn.Module):
    """Tokens ``(n, t)`` to the logits of the next one ``(n, t, 20)``."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.embedding, self.cells, self.out = nn.Embedding(20, 8), kind(8, 12, batch_first=True), nn.Linear(12, 20)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.cells(self.embedding(x))[0])


@case("lstm", AREA)
class LongShortTerm(Case):
    """An LSTM language model."""

    killed = True

    def create_model(self) -> nn.Module:
        return Recurrent(nn.LSTM)

    def create_data(self) -> Any:
        text = tokens(9, 20)
        return text[:, :-1], text[:, 1:]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


class Packed(nn.Module):
    """Sequences of unequal lengths to logits of their classes."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.GRU(4, 10, batch_first=True), nn.Linear(10, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.cells(packed)[1][0])


def padded(samples: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences padded to the longest, their lengths, their classes."""
    lengths = torch.tensor([len(x) for x, _ in samples])
    return rnn.pad_sequence([x for x, _ in samples], batch_first=True), lengths, torch.stack([y for _, y in samples])


@case("gru-packed", AREA)
class PackedSequences(Case):
    """A GRU over packed sequences of unequal lengths, padded by a collate_fn."""

    killed = True

    def create_model(self) -> nn.Module:
        return Packed()

    def create_data(self) -> Any:
        generator = torch.Generator().manual_seed(8)
        ragged = [
            (torch.randn(2 + index % 5, 4, generator=generator), torch.tensor(index % 3)) for index in range(SAMPLES)
        ]
        return DataLoader(Samples(ragged), batch_size=BATCH, shuffle=True, collate_fn=padded)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[0], batch[1]), batch[2])


class Attending(nn.Module):
    """A transformer encoder with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.embedding, self.encoder = nn.Embedding(20, 16), nn.TransformerEncoder(layer, 2)
        self.positions, self.out = nn.Parameter(torch.randn(6, 16) / 4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.encoder(self.embedding(x) + self.positions).mean(1))


@case("transformer", AREA)
class Transformer(Case):
    """A transformer encoder."""

    killed = True

    def create_model(self) -> nn.Module:
        return Attending()

    def create_data(self) -> Any:
        text = tokens(6, 20)
        return text, text.sum(1) % 3


class Tied(nn.Module):
    """Embedding and output with the same weights, which the state dict has under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Any:
        return self.out(torch.tanh(self.middle(self.embedding(x))))


@case("tied-weights", AREA)
class TiedWeights(LongShortTerm):
    """Embedding and output layer share one matrix."""

    killed = True

    def create_model(self) -> nn.Module:
        return Tied()


class TwoInputs(nn.Module):
    """Two inputs, one of them by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(6, 8), nn.Linear(2, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, *, extra: Tensor) -> Any:
        return self.out(torch.tanh(self.left(x) + self.right(extra)))


@case("dict-batches", AREA)
class DictBatches(Case):
    """Samples are dicts; a model with two inputs."""

    def create_model(self) -> nn.Module:
        return TwoInputs()

    def create_data(self) -> Any:
        x, y = points()
        return Samples([{"x": x[i], "extra": x[i, :2] ** 2, "label": y[i]} for i in range(SAMPLES)])

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch["x"], extra=batch["extra"]), batch["label"])


@case("nested-batches", AREA)
class NestedBatches(DictBatches):
    """Samples are dicts of tuples of tensors."""

    def create_data(self) -> Any:
        x, y = points()
        return Samples([{"inputs": (x[i], [x[i, :2] ** 2]), "label": y[i]} for i in range(SAMPLES)])

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, (extra,) = batch["inputs"]
        return functional.cross_entropy(model(x, extra=extra), batch["label"])


@case("frozen-layers", AREA)
class Frozen(Case):
    """The first layer is frozen, and the optimizer gets only what is trained."""

    def create_model(self) -> nn.Module:
        model = super().create_model()
        model.get_submodule("0").requires_grad_(False)
        return model

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=config.learning_rate / 5)


@case("lazy", AREA)
class Lazy(Case):
    """Lazy layers, which get their shapes from the first batch."""

    quick = True

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(3))


@case("lazy-cnn", AREA)
class LazyConvolutions(Convolutions):
    """Lazy convolutions, with an optimizer over their parameters."""

    killed = False

    def create_model(self) -> nn.Module:
        return nn.Sequential(
            nn.LazyConv2d(8, 3, bias=False), nn.GroupNorm(4, 8), nn.GELU(), nn.Flatten(), nn.LazyLinear(4)
        )

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate / 10)


class Experts(nn.Module):
    """The top expert of four for each sample; an expert that no sample wants has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        weights, chosen = self.gate(x).softmax(1).max(1)
        out = x.new_zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                out = out.index_put((mine.nonzero()[:, 0],), weights[mine, None] * expert(x[mine]))
        return out


@case("mixture-of-experts", AREA)
class MixtureOfExperts(Case):
    """Top-1 experts: in some slices an expert gets no sample, and no gradient."""

    killed = quick = True

    def create_model(self) -> nn.Module:
        return Experts()

    def create_data(self) -> Any:
        x, y = points()
        return x + 0.8, y


class RareBranch(nn.Module):
    """A branch that only samples with a large first feature use."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.rare = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        large = x[:, 0] > 1.6
        out = self.usual(x)
        return out + large[:, None] * self.rare(x) if large.any() else out


@case("rare-branch", AREA)
class Rare(Case):
    """A branch that the first samples do not use: its first gradient comes after the measurement."""

    killed = quick = True

    def create_model(self) -> nn.Module:
        return RareBranch()

    def create_data(self) -> Any:
        x, y = points()
        order = x[:, 0].argsort()
        return x[order], y[order]


class LateBranch(nn.Module):
    """A second layer that takes part from the fourth step on; a buffer counts them."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.steps += 1
        x = torch.tanh(self.first(x))
        second = self.second if self.steps > 3 else self._detached
        return self.out(x + torch.tanh(second(x)))

    def _detached(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.second.weight.detach(), self.second.bias.detach())


@case("late-branch", AREA)
class Late(Case):
    """A layer whose weights are detached for three steps, and trained from then on (unfreezing)."""

    def create_model(self) -> nn.Module:
        return LateBranch()


class Unfreezing(nn.Module):
    """The first layer is frozen until the fourth step."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 16), nn.Linear(16, 3)
        self.first.requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.steps += 1
        if self.steps > 3:
            self.first.requires_grad_(True)
        return self.out(torch.tanh(self.first(x)))


@case("unfreezing", AREA)
class Unfrozen(Case):
    """requires_grad is switched on by the model in the fourth step."""

    expect, says = "refused", "requires_grad on for first.weight"

    def create_model(self) -> nn.Module:
        return Unfreezing()


@case("sparse-embedding", AREA)
class Sparse(LongShortTerm):
    """An embedding with sparse gradients, and SparseAdam for it."""

    expect, says = "refused", "sparse"
    killed = False

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 20, sparse=True))

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam(model.parameters(), lr=config.learning_rate)


@case("sparse-sgd", AREA)
class SparseDescent(Sparse):
    """An embedding with sparse gradients, and SGD."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate)


@case("embedding-dense", AREA)
class Dense(LongShortTerm):
    """An embedding with dense gradients and padding_idx."""

    killed = False

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 8, padding_idx=1), nn.Tanh(), nn.Linear(8, 20))


@case("embedding-bag", AREA)
class Bag(Case):
    """An EmbeddingBag."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(20, 8, mode="mean"), nn.Linear(8, 3))

    def create_data(self) -> Any:
        text = tokens(6, 20)
        return text, text.sum(1) % 3


@case("embedding-max-norm", AREA)
class Renormalised(LongShortTerm):
    """Embedding(max_norm=...): the forward pass itself changes the rows that it reads."""

    expect, says = "refused", "itself changes the trained parameter"
    killed = False

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 8, max_norm=1.0), nn.Tanh(), nn.Linear(8, 20))


@case("weight-norm", AREA)
class WeightNorm(Case):
    """weight_norm as a parametrization."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, 3))


@case("orthogonal", AREA)
class Orthogonal(Case):
    """An orthogonal weight, by a parametrization."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3))


@case("spectral-norm", AREA)
class SpectralNorm(Case):
    """spectral_norm: every forward pass makes a power iteration in its buffers, from the weights alone."""

    def create_model(self) -> nn.Module:
        return nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, 3))


class Waves(nn.Module):
    """A complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8, dtype=torch.complex64) / 3)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out((x.to(torch.complex64) @ self.weight).abs())


@case("complex", AREA)
class Complex(Case):
    """A complex parameter beside real ones."""

    def create_model(self) -> nn.Module:
        return Waves()


@case("float64", AREA)
class Double(Case):
    """A model in float64."""

    tolerance = 1e-12

    def create_model(self) -> nn.Module:
        return super().create_model().double()

    def create_data(self) -> Any:
        x, y = points()
        return x.double(), y


@case("bfloat16", AREA)
class Half(Double):
    """A model in bfloat16: equal up to its precision."""

    tolerance = 2e-2

    def create_model(self) -> nn.Module:
        return Case.create_model(self).bfloat16()

    def create_data(self) -> Any:
        x, y = points()
        return x.bfloat16(), y


class MixedPrecision(nn.Module):
    """A bfloat16 layer before a float32 one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 16).double(), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(torch.tanh(self.first(x.double())).float())


@case("two-dtypes", AREA)
class TwoTypes(Case):
    """float64 and float32 parameters in one model."""

    def create_model(self) -> nn.Module:
        return MixedPrecision()


@case("compiled", AREA)
class Compiled(Case):
    """torch.compile in create_model."""

    def create_model(self) -> nn.Module:
        model: nn.Module = torch.compile(super().create_model(), backend="aot_eager")  # type: ignore[assignment]
        return model


@case("activation-checkpointing", AREA)
class Recomputed(Transformer):
    """activation_checkpointing=True."""

    killed = False
    settings: ClassVar = {"activation_checkpointing": True}


@case("micro-batches", AREA)
class MicroBatches(Convolutions):
    """micro_batch=2: each slice in parts."""

    killed = False
    settings: ClassVar = {"micro_batch": 2}


@case("dropout", AREA)
class Dropout(Case):
    """Dropout, with deterministic=True."""

    expect = "itself"
    settings: ClassVar = {"deterministic": True}
    killed = quick = True

    def create_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))


@case("unused-parameters", AREA)
class Unused(Case):
    """A layer that the loss never uses; weight decay must leave it alone, as without a gradient."""

    def create_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        model.get_submodule("0").register_module("spare", nn.Linear(2, 2))
        return model

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=config.learning_rate / 10, weight_decay=0.3)


@case("random-start", AREA)
class RandomStart(Case):
    """create_model draws from numpy and from Python's random numbers."""

    def create_model(self) -> nn.Module:
        model = nn.Linear(6, 3)
        with torch.no_grad():
            model.weight.mul_(float(np.random.rand()) + random.random())  # noqa: S311 - as a user would
        return model


@case("model-on-meta", AREA)
class OnMeta(Case):
    """Parameters that were left on the meta device."""

    expect, says = "refused", "meta"

    def create_model(self) -> nn.Module:
        with torch.device("meta"):
            return nn.Linear(6, 3)


@case("shape-by-chance", AREA)
class ByChance(Case):
    """create_model gives another architecture each time that it is called."""

    expect, says = "refused", "create_model"

    def create_model(self) -> nn.Module:
        width = 8 + time.time_ns() // 1000 % 997
        return nn.Sequential(nn.Linear(6, width), nn.Linear(width, 3))


@case("tensor-dataset", AREA)
class TensorData(Convolutions):
    """A TensorDataset in a DataLoader with workers of its own."""

    killed = False

    def create_data(self) -> Any:
        return DataLoader(TensorDataset(*images()), batch_size=BATCH, shuffle=True, num_workers=2)
