"""Models: layers, batches and dtypes of all kinds."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import rnn
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


@case("tensor-dataset", AREA)
class TensorData(Convolutions):
    """A TensorDataset in a DataLoader with workers of its own."""

    killed = False

    def create_data(self) -> Any:
        return DataLoader(TensorDataset(*images()), batch_size=BATCH, shuffle=True, num_workers=2)
