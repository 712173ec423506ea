"""What an audit of a job finds, in a single process: ordinary losses are left alone, others are told by their cause."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from remote_agent.training.errors import JobError
from remote_agent.training.shared.audit import Audit, Cause, other_machine
from remote_agent.training.user_code import losses
from remote_agent.training.worker.device.audit import Auditor, project
from remote_agent.training.worker.device.compute import SliceComputer

losses.install()

CPU = torch.device("cpu")
SAMPLES, FEATURES, CLASSES = 64, 16, 4
GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, CLASSES, (SAMPLES,), generator=GENERATOR)
ROWS = TensorDataset(torch.randn(SAMPLES, FEATURES, generator=GENERATOR), LABELS)
IMAGES = TensorDataset(torch.randn(SAMPLES, 1, 8, 16, generator=GENERATOR), LABELS)
SERIES = TensorDataset(torch.randn(SAMPLES, 8, FEATURES, generator=GENERATOR), LABELS, torch.arange(SAMPLES) % 7 + 1)
WORDS = TensorDataset(torch.randint(0, 50, (SAMPLES, 5), generator=GENERATOR), LABELS)

Loss = Callable[[nn.Module, Any], Any]


def net(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), *middle, nn.Linear(32, CLASSES))


def auditor(model: nn.Module, loss: Loss, data: Any = ROWS, unit: int = 0, dtype: torch.dtype | None = None) -> Auditor:
    computer = SliceComputer(model.train(), loss, data, CPU, 0, None, dtype)
    computer.unit = unit
    return Auditor(model, computer)


def audit(model: nn.Module, loss: Loss, *data: Any, **options: Any) -> Audit:
    return auditor(model, loss, *data, **options).alone(np.arange(SAMPLES))


def cause(found: Audit) -> Cause | None:
    return found.finding.cause if found.finding is not None else None


# --- Losses ----------------------------------------------------------------------------------------------------------


def plain(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def summed(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


class Counting:
    """Counts, logs and meters, as most scripts do; with a ``ramp`` the number of the call changes the loss."""

    def __init__(self, ramp: float = 0.0) -> None:
        self.calls, self.meter, self.ramp = 0, [0.0], ramp

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls += 1
        loss = plain(model, batch)
        self.meter.append(loss.item())
        logging.getLogger(__name__).debug("%d: %f", self.calls, sum(self.meter))
        return loss * (1 + self.ramp * self.calls)


def own_generator() -> Loss:
    generator = torch.Generator().manual_seed(1)
    return lambda model, batch: plain(model, (batch[0] + torch.randn(batch[0].shape, generator=generator), batch[1]))


def contrastive(model: nn.Module, batch: Any) -> Tensor:
    made = functional.normalize(model(batch[0]), dim=1)
    return functional.cross_entropy(made @ made.T / 0.1, torch.arange(len(made)))


def pairs(model: nn.Module, batch: Any) -> Tensor:
    made = model(batch[0])
    return (made[0::2] - made[1::2]).square().mean()


def mixed(partner: Callable[[int], Tensor]) -> Loss:
    """Mixup of each sample with its ``partner`` in the batch."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        part, other = float(np.random.beta(1.0, 1.0)), partner(len(batch[0]))
        made = model(part * batch[0] + (1 - part) * batch[0][other])
        own, others = (functional.cross_entropy(made, labels) for labels in (batch[1], batch[1][other]))
        return part * own + (1 - part) * others

    return loss


def tokens(model: nn.Module, batch: Any, *, weighted: bool) -> Any:
    """A mean over tokens that are no padding; ``weighted``: as a sum and its weight."""
    made, mask = model(batch[0]).transpose(1, 2), torch.arange(8)[None] < batch[2][:, None]
    each = functional.cross_entropy(made, batch[1][:, None].expand(-1, 8), reduction="none")[mask]
    return (each.sum(), mask.sum()) if weighted else each.mean()


def two_masks(model: nn.Module, batch: Any, *, apart: bool) -> Any:
    """Means over two kinds of labels, as two terms or as their sum."""
    scores, terms = model(batch[0]), []
    for kind in (True, False):
        labels = batch[1].masked_fill((batch[1] == 0) == kind, losses.IGNORED)
        terms.append((functional.cross_entropy(scores, labels, reduction="sum"), (labels >= 0).sum()))
    return terms if apart else sum(total / weight.clamp(min=1) for total, weight in terms)


def diffusion(model: nn.Module, batch: Any) -> Tensor:
    x = batch[0]
    part, noise = torch.randint(0, 100, (len(x),))[:, None] / 100, torch.randn_like(x)
    return functional.mse_loss(model(x * part + noise * (1 - part)), noise[:, :CLASSES])


def at_times(draw: Callable[[int], Any]) -> Loss:
    """Draws a time for each sample, by other random numbers than torch's."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        times = torch.as_tensor(draw(len(batch[0])), dtype=torch.float32)[:, None]
        return functional.mse_loss(model(batch[0] * times), batch[0][:, :CLASSES])

    return loss


def rejected(model: nn.Module, batch: Any) -> Tensor:
    """Draws by rejection, so that other rows change what a row gets."""
    rates = model(batch[0]).exp()
    return torch.distributions.Gamma(rates, rates).rsample().mean()


def own_autocast(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        made = model(batch[0])
    return functional.cross_entropy(made.float(), batch[1])


def in_bfloat16(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0].bfloat16()).float(), batch[1])


def elbo(model: nn.Module, batch: Any) -> Tensor:
    made, mean, log_variance = model(batch[0])
    divergence = 1 + log_variance - mean**2 - log_variance.exp()
    return functional.mse_loss(made, batch[0]) - 0.5 * divergence.mean()


# --- Models ----------------------------------------------------------------------------------------------------------


class Augmented(Dataset[Any]):
    """Draws for each sample from all three generators, and for some more often."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, label = ROWS[index]
        x = x + torch.randn(FEATURES) * random.random() * np.random.rand()
        return (x + torch.randn(FEATURES) if torch.rand(()) > 0.5 else x), label


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, 8), nn.Linear(4, FEATURES)

    def forward(self, x: Tensor) -> Any:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance


class Last(nn.Module):
    """The last output of a layer over a series."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        made = self.layer(x)
        return self.out((made[0] if isinstance(made, tuple) else made)[:, -1])


class SharedMask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape[1]) > 0.5) * 2


class NormedGradient(torch.autograd.Function):
    """Its backward depends on which samples are together, its forward does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:
        return given / (1e-3 + given.norm())


class Normed(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return NormedGradient.apply(x)


class Teacher(nn.Module):
    """Has a frozen copy of its net that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.ema = net(), net().requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            for own, its in zip(self.ema.parameters(), self.net.parameters(), strict=True):
                own.lerp_(its, 0.1)
        return self.net(x)


class Queue(nn.Module):
    """Keeps its newest outputs."""

    newest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.register_buffer("newest", torch.zeros(32, CLASSES))

    def forward(self, x: Tensor) -> Any:
        made = self.net(x)
        with torch.no_grad():
            self.newest.copy_(torch.cat([made, self.newest])[:32])
        return made


class Metered(nn.Module):
    """Counts its samples in a buffer, on which the output depends if there is a ``ramp``."""

    total: Tensor

    def __init__(self, ramp: float = 0.0) -> None:
        super().__init__()
        self.net, self.ramp = net(), ramp
        self.register_buffer("total", torch.tensor(100))

    def forward(self, x: Tensor) -> Any:
        self.total += len(x)
        return self.net(x) * (1 + self.ramp * self.total)


def lstm() -> nn.Module:
    return Last(nn.LSTM(FEATURES, 32, 2, dropout=0.3, batch_first=True), 32)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(FEATURES, 2, 32, dropout=0.1, batch_first=True)
    return Last(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), FEATURES)


def convolutions() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, CLASSES))


def embedding(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 8, **options), nn.Flatten(), nn.Linear(40, CLASSES))


# --- What is found ---------------------------------------------------------------------------------------------------


ORDINARY: dict[str, tuple[nn.Module, Loss, Any]] = {
    "mlp": (net(), plain, ROWS),
    "dropout": (net(nn.Dropout(0.3)), plain, ROWS),
    "counter": (net(), Counting(), ROWS),
    "augmented": (net(nn.Dropout(0.3)), plain, Augmented()),
    "mixup": (net(nn.Dropout(0.3)), mixed(torch.randperm), ROWS),
    "diffusion": (net(), diffusion, ROWS),
    "elbo": (Autoencoder(), elbo, ROWS),
    "teacher": (Teacher(), plain, ROWS),
    "metric": (Metered(), plain, ROWS),
    "lstm": (lstm(), plain, SERIES),
    "transformer": (transformer(), plain, SERIES),
    "embedding": (embedding(), plain, WORDS),
    "convolutions": (convolutions(), plain, IMAGES),
    "autocast": (convolutions(), own_autocast, IMAGES),
    "autocast-transformer": (transformer(), own_autocast, SERIES),
    "bfloat16": (net().bfloat16(), in_bfloat16, ROWS),
    "tokens": (net(), lambda model, batch: tokens(model, batch, weighted=True), SERIES),
    "terms": (net(nn.Dropout(0.3)), lambda model, batch: two_masks(model, batch, apart=True), ROWS),
}


@pytest.mark.parametrize(("model", "loss", "data"), ORDINARY.values(), ids=ORDINARY)
def test_an_ordinary_job_is_left_alone(model: nn.Module, loss: Loss, data: Any) -> None:
    found = audit(model, loss, data)
    assert (cause(found), found.summed, found.unchecked, found.by_sample) == (None, False, False, True)


INDIVISIBLE: dict[str, tuple[nn.Module, Loss, Any, Cause]] = {
    "ramp": (net(), Counting(ramp=1e-3), ROWS, Cause.CALLS_DO_NOT_REPEAT),
    "generator": (net(), own_generator(), ROWS, Cause.CALLS_DO_NOT_REPEAT),
    "contrastive": (net(), contrastive, ROWS, Cause.PARTS_DO_NOT_ADD_UP),
    "flip": (net(), mixed(lambda count: torch.arange(count).flip(0)), ROWS, Cause.PARTS_DO_NOT_ADD_UP),
    "padding": (net(), lambda model, batch: tokens(model, batch, weighted=False), SERIES, Cause.PARTS_DO_NOT_ADD_UP),
    "mask": (net(SharedMask()), plain, ROWS, Cause.PARTS_DO_NOT_ADD_UP),
    "terms": (net(), lambda model, batch: two_masks(model, batch, apart=False), ROWS, Cause.PARTS_DO_NOT_ADD_UP),
    "a shared mask in terms": (
        net(SharedMask()),
        lambda model, batch: two_masks(model, batch, apart=True),
        ROWS,
        Cause.PARTS_DO_NOT_ADD_UP,
    ),
    "backward": (net(Normed()), plain, ROWS, Cause.PARTS_DO_NOT_ADD_UP),
    "queue": (Queue(), plain, ROWS, Cause.STATE_DOES_NOT_ADD_UP),
    "seen": (Metered(ramp=1e-7), plain, ROWS, Cause.STATE_DOES_NOT_ADD_UP),
    "max_norm": (embedding(max_norm=1.0), plain, WORDS, Cause.WEIGHTS_CHANGE),
}


@pytest.mark.parametrize(("model", "loss", "data", "wrong"), INDIVISIBLE.values(), ids=INDIVISIBLE)
def test_what_cannot_be_divided_is_told_by_its_cause(model: nn.Module, loss: Loss, data: Any, wrong: Cause) -> None:
    assert cause(audit(model, loss, data)) is wrong


@pytest.mark.parametrize(
    "loss",
    [
        at_times(lambda count: np.random.rand(count)),
        at_times(lambda count: [random.random() for _ in range(count)]),
        rejected,
    ],
    ids=["numpy", "python", "rejection"],
)
def test_numbers_that_are_not_known_by_sample_are_no_finding(loss: Loss) -> None:
    found = audit(net(), loss)
    assert cause(found) is None
    other = auditor(net(), loss).whole(found.indices, evaluating=found.evaluating)
    assert other_machine(found, other, "b") is None


def test_a_loss_that_calls_backward_itself_is_refused_before_its_gradients_count_twice() -> None:
    def own_backward(model: nn.Module, batch: Any) -> Tensor:
        loss = plain(model, batch)
        loss.backward(retain_graph=True)
        return loss

    with pytest.raises(JobError, match="itself calls backward"):
        audit(net(), own_backward)


def test_the_smallest_unit_that_is_enough_is_told() -> None:
    finding = audit(net(), pairs).finding
    assert finding is not None
    assert finding.unit == 2


@pytest.mark.parametrize(("middle", "loss"), [((), contrastive), ((nn.BatchNorm1d(32),), plain)])
def test_what_needs_samples_together_is_taken_in_units(middle: tuple[nn.Module, ...], loss: Loss) -> None:
    assert cause(audit(net(*middle), loss, unit=16)) is None


def test_a_sum_is_told_from_a_mean() -> None:
    found = audit(net(), summed)
    assert (cause(found), found.summed) == (None, True)


def test_bfloat16_is_no_finding() -> None:
    assert cause(audit(net(nn.Dropout(0.3)), plain, dtype=torch.bfloat16)) is None


def test_state_that_the_loss_moves_is_named() -> None:
    assert audit(Teacher(), plain).moved == {name for name, _ in Teacher().named_parameters() if name.startswith("ema")}


@pytest.mark.parametrize("make", [lambda: net(nn.BatchNorm1d(32), nn.Dropout(0.5)), Teacher, Queue])
def test_an_audit_leaves_model_and_random_numbers_as_they_were(make: Callable[[], nn.Module]) -> None:
    model = make().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    drawn = torch.get_rng_state(), np.random.get_state()[2]
    audit(model, plain, unit=16)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(each.grad is None for each in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert np.random.get_state()[2] == drawn[1]


def other(change: Callable[[nn.Module], Any], data: Any = ROWS) -> Cause | None:
    """What is found of a machine whose model or data are a little different."""
    found = audit(net(), plain)
    model = net()
    change(model)
    finding = other_machine(found, auditor(model, plain, data).whole(found.indices), "b")
    assert finding is None or finding.places[0] == "b"
    return finding.cause if finding is not None else None


def test_a_machine_that_computes_other_numbers_is_found() -> None:
    shifted = TensorDataset(ROWS.tensors[0] + 0.01, LABELS)

    def halves(model: nn.Module) -> Any:
        return model[0].weight.register_hook(lambda given: given * 0.5)  # type: ignore[index]

    assert other(lambda model: None) is None
    assert other(halves) is Cause.MACHINES_DIFFER
    assert other(lambda model: model.__setitem__(1, nn.GELU())) is Cause.MACHINES_DIFFER  # type: ignore[operator]
    assert other(lambda model: None, shifted) is Cause.DATA_DIFFERS


def test_a_machine_that_computes_in_half_precision_is_no_other() -> None:
    found = audit(net(), plain)
    assert other_machine(found, auditor(net(), own_autocast).whole(found.indices), "b") is None


@pytest.mark.parametrize("shape", [(1,), (3,), (64,), (65, 2), (7, 64), (0,)])
def test_a_projection_is_linear_and_keeps_a_short_gradient(shape: tuple[int, ...]) -> None:
    weight, (one, two) = torch.zeros(shape), torch.randn(2, *shape)
    made = [project([weight], [each])[0] for each in (one, two, one + 2 * two)]
    assert np.allclose(made[0] + 2 * made[1], made[2], atol=1e-5)
    if one.numel() <= 64:
        assert np.linalg.norm(made[0]) == pytest.approx(float(one.norm()), rel=1e-5)
