"""Models that hold more than their layers: shared memory, late parameters, caches, averages, generators, objects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compatible.case import BATCH, Case, case, small
from remote_agent.training.config import TrainingConfig

AREA = "state and hooks"


class SharedMemory(nn.Module):
    """Two parameters over one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.middle.weight = nn.Parameter(self.first.weight.data)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


@case("tied-by-memory", AREA)
class TiedByMemory(Case):
    """Two Parameter objects over the same memory (weights tied by .data)."""

    expect, says = "refused", "memory"

    def create_model(self) -> nn.Module:
        return SharedMemory()


class TransposedTie(nn.Module):
    """An autoencoder whose decoder is a parameter that views the encoder's transposed memory."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.out = nn.Linear(6, 16), nn.Linear(6, 3)
        self.decoder = nn.Parameter(self.encoder.weight.data.t())

    def forward(self, x: Tensor) -> Any:
        return self.out(torch.tanh(torch.tanh(self.encoder(x)) @ self.decoder.t()))


@case("tied-by-transposed-view", AREA)
class TiedByView(Case):
    """A parameter that is a transposed view of another one's memory."""

    expect, says = "refused", "memory"

    def create_model(self) -> nn.Module:
        return TransposedTie()


class BufferOverWeight(nn.Module):
    """A buffer that is a view of a trained weight."""

    view: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network = small()
        first = self.network[0]
        assert isinstance(first, nn.Linear)
        self.register_buffer("view", first.weight.data)

    def forward(self, x: Tensor) -> Any:
        return self.network(x) + (x @ self.view.t())[:, :3]


@case("buffer-over-weight", AREA)
class BufferView(Case):
    """A buffer over a trained weight's memory, which follows the weight in plain torch."""

    expect, says = "refused", "memory"

    def create_model(self) -> nn.Module:
        return BufferOverWeight()


class AttributeOverWeight(nn.Module):
    """A plain attribute that is a view of a trained weight."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small()
        self.view = self.network[0].weight.detach()

    def forward(self, x: Tensor) -> Any:
        return self.network(x) + (x @ self.view.t())[:, :3]


@case("attribute-over-weight", AREA)
class AttributeView(Case):
    """A plain attribute over a trained weight's memory."""

    expect, says = "refused", "memory"

    def create_model(self) -> nn.Module:
        return AttributeOverWeight()


class Late(nn.Module):
    """Makes its projection in the first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small(16)

    def forward(self, x: Tensor) -> Any:
        if not hasattr(self, "projection"):
            self.projection = nn.Linear(16, 3)
        return self.projection(self.network(x))


@case("late-layer", AREA)
class LateLayer(Case):
    """A layer that forward makes when it is first called."""

    expect, says = "refused", "projection"

    def create_model(self) -> nn.Module:
        return Late()


class Grows(nn.Module):
    """Adds a layer in the third step."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network = small()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.step += 1
        if self.step == 3 and not hasattr(self, "more"):
            self.more = nn.Linear(6, 3)
        out = self.network(x)
        return out + self.more(x) if hasattr(self, "more") else out


@case("grows-in-training", AREA)
class Growing(Case):
    """A layer that forward adds in the third step."""

    expect, says = "ended", "more"

    def create_model(self) -> nn.Module:
        return Grows()


class Replaces(nn.Module):
    """Its forward pass puts a new Parameter into a layer in the third step."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network, self.last = small(8), nn.Linear(8, 3)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.step += 1
        if self.step == 3:
            self.last.weight = nn.Parameter(self.last.weight.detach() * 0.5)
        return self.last(self.network(x))


class ClipsLater(nn.Module):
    """Clips its weights every third step (WGAN's critic)."""

    step: Tensor

    def __init__(self, by_data: bool) -> None:
        super().__init__()
        self.network, self.by_data = small(), by_data
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.step += 1
        if self.step % 3 == 0:
            for parameter in self.network.parameters():
                if self.by_data:
                    parameter.data.clamp_(-0.2, 0.2)
                else:
                    with torch.no_grad():
                        parameter.clamp_(-0.2, 0.2)
        return self.network(x)


@case("clips-weights-later", AREA)
class ClippingLater(Case):
    """Forward clips trained weights in every third step."""

    expect, says = "refused", "changes the trained parameter"

    def create_model(self) -> nn.Module:
        return ClipsLater(False)


@case("clips-data-later", AREA)
class ClippingDataLater(Case):
    """The same by parameter.data."""

    expect, says = "refused", "changes the trained parameter"

    def create_model(self) -> nn.Module:
        return ClipsLater(True)


@case("averaged-model", AREA)
class Averaged(Case):
    """torch.optim.swa_utils.AveragedModel inside the model, updated in loss."""

    expect, says = "refused", "changes the trained parameter"

    def create_model(self) -> nn.Module:
        return WithAverage(False)

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        assert isinstance(model, WithAverage)
        return torch.optim.SGD(model.network.parameters(), lr=config.learning_rate)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, WithAverage)
        model.average.update_parameters(model.network)
        return functional.cross_entropy(model(batch[0]), batch[1])


class WithAverage(nn.Module):
    """A network and its average."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

        self.network = small()
        self.average = AveragedModel(self.network, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        if frozen:
            self.average.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.network(x)


@case("averaged-model-frozen", AREA)
class AveragedFrozen(Averaged):
    """The same with requires_grad_(False)."""

    expect, says = "equal", ""

    def create_model(self) -> nn.Module:
        return WithAverage(True)


class Recurrent(nn.Module):
    """A recurrent network over two halves of the features; ``hidden`` is what it begins with."""

    def __init__(self, hidden: Tensor | None = None) -> None:
        super().__init__()
        self.layer, self.head, self.hidden = nn.RNN(3, 8, batch_first=True), nn.Linear(8, 3), hidden

    def forward(self, x: Tensor) -> Any:
        out, hidden = self.layer(x.view(-1, 2, 3), self.hidden)
        self.hidden = hidden.detach()
        return self.head(out[:, -1])


class Carrying(Recurrent):
    """The same, which begins anew where the last batch has another size."""

    def forward(self, x: Tensor) -> Any:
        if self.hidden is not None and self.hidden.shape[1] != len(x):
            self.hidden = None
        return super().forward(x)


@case("hidden-state-of-last-size", AREA)
class HiddenStateOfLastSize(Case):
    """The same in code that takes batches of one size only."""

    expect, says = "refused", "of the same samples at a time can be computed"

    def create_model(self) -> nn.Module:
        return Recurrent()


class FixedBatch(Recurrent):
    """Begins with zeros for as many samples as a batch has."""

    def forward(self, x: Tensor) -> Any:
        self.hidden = torch.zeros(1, BATCH, 8)
        return super().forward(x)


class Solved(nn.Module):
    """An ODE network, whose solver chooses its steps by the norm of an error over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        time, step = 0.0, 0.3
        while time < 1:
            step = min(step, 1 - time)
            first = self.net(x)
            second = self.net(x + step * first)
            error = float((second - first).detach().square().mean().sqrt()) * step / 2
            if error <= 1e-2:
                x, time = x + step / 2 * (first + second), time + step
            step *= min(3.0, max(0.3, 0.9 * (1e-2 / (error + 1e-9)) ** 0.5))
        return self.head(x)
