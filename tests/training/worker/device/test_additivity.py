"""What the measurement finds out about a loss, and what becomes of a run then."""

from __future__ import annotations

import collections
import copy
import itertools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.shared import findings, flat
from remote_agent.training.shared.findings import Findings, settle
from remote_agent.training.user_code import losses
from remote_agent.training.worker.device.additivity import Additivity
from remote_agent.training.worker.device.compute import SliceComputer

losses.install()

SAMPLES = 40


def data() -> Any:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return datasets.as_dataset((x, (x[:, :3] + 0.2 * x[:, 3:]).argmax(1).masked_fill(x[:, 5] > 0.4, -100)))


def net(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 3))


def found(
    loss: Callable[..., Any],
    model: nn.Module | None = None,
    owner: object = None,
    large: int = 0,
    samples: int = SAMPLES,
    most: int | None = None,
) -> Findings:
    model = (model or net()).train()
    before = copy.deepcopy(model.state_dict())
    computer = SliceComputer(model, loss, data(), torch.device("cpu"), seed=0, most=most)
    result = Additivity(model, computer, owner, np.arange(samples), flat.state(model), large).check()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    return result


def squared(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0]).square().mean()


def contrastive(model: nn.Module, batch: Any) -> Tensor:
    rows = functional.normalize(model(batch[0]), dim=1)
    return functional.cross_entropy(rows @ rows.T / 0.1, torch.arange(len(rows)))


def test_it_is_told_where_no_two_samples_could_be_compared() -> None:
    def full(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[0]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return squared(model, batch)

    assert not found(squared).unchecked
    assert not found(squared, most=1).unchecked
    assert found(squared, samples=1).unchecked
    assert found(full, most=1).unchecked


class Seeing(nn.Module):
    """A model with state of its own, which `see` changes."""

    def __init__(self, see: Callable[[Seeing, Tensor], None], kept: Tensor) -> None:
        super().__init__()
        self.net, self.see = net(), see
        self.register_buffer("kept", kept)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.see(self, x)
        return self.net(x)


class Reading(Seeing):
    """One that uses the state that it changes."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + self.kept


def assigned(model: Seeing, x: Tensor) -> None:
    model.kept = 0.9 * model.kept + 0.1 * x.mean()


def in_place(model: Seeing, x: Tensor) -> None:
    model.kept.mul_(0.9).add_(0.1 * x.mean())


@pytest.mark.parametrize("see", [assigned, in_place])
def test_a_buffer_that_is_assigned_is_the_model_s_state_as_one_that_is_changed_in_place(see: Any) -> None:
    """Else each worker would have its own, and nobody would say so."""
    seen = found(squared, Seeing(see, torch.zeros(())))
    assert (seen.together, seen.state, seen.hidden, seen.moved) == ("", "", "", {"kept"})


@pytest.mark.parametrize("see", [assigned, in_place])
def test_where_the_loss_uses_a_buffer_that_the_batch_changes_the_buffer_is_named(see: Any) -> None:
    assert "changes kept, which is not trained" in found(squared, Reading(see, torch.zeros(()))).together


# --- What is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("middle", [[], [nn.Dropout(0.3)], [nn.BatchNorm1d(8)], [nn.BatchNorm1d(8), nn.Dropout(0.3)]])
def test_a_mean_over_samples_is_one_with_dropout_and_batch_normalisation_too(middle: list[nn.Module]) -> None:
    seen = found(squared, net(*middle))
    assert (seen.together, seen.state, seen.hidden, seen.summed) == ("", "", "", False)
    assert seen.batch_statistics is any(isinstance(each, nn.BatchNorm1d) for each in middle)


def test_a_loss_is_looked_at_also_where_training_computes_one_sample_at_a_time() -> None:
    def of_tokens(model: nn.Module, batch: Any) -> Tensor:
        counts = batch[1] + 1
        return (model(batch[0]).square().mean(1) * counts).sum() / counts.sum()

    def seen(loss: Callable[..., Any]) -> Findings:
        model = net().train()
        computer = SliceComputer(model, loss, data(), torch.device("cpu"), seed=0, most=1)
        return Additivity(model, computer, None, np.arange(SAMPLES), flat.state(model)).check()

    assert seen(of_tokens).together
    assert not seen(squared).together
    assert seen(lambda model, batch: model(batch[0]).square().sum()).summed


def test_randomness_that_hardly_shows_is_not_taken_for_a_loss_that_depends_on_the_batch() -> None:
    def hardly_random(model: nn.Module, batch: Any) -> Tensor:
        return squared(model, batch) + 1 + (1e-4 * torch.rand(()) if model.training else 0)

    assert not found(hardly_random).together


@pytest.mark.parametrize("middle", [[], [nn.Dropout(0.3)]])
def test_a_sum_is_told_from_a_mean(middle: list[nn.Module]) -> None:
    assert found(lambda model, batch: model(batch[0]).square().sum(), net(*middle)).summed


def test_labels_that_do_not_count_are_known_where_the_loss_is_the_cross_entropy_and_told_where_it_is_more() -> None:
    assert not found(lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1])).together
    more = found(lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]) + squared(model, batch))
    assert "is not known" in more.together


@pytest.mark.parametrize(
    "loss",
    [
        contrastive,
        lambda model, batch: model(batch[0]).square().mean().sqrt(),
        lambda model, batch: model(batch[0]).var(0).mean(),
        lambda model, batch: squared(model, batch) + 0.1 * model(batch[0]).square().sum(),
        lambda model, batch: functional.mse_loss(model(batch[0])[batch[1] >= 0], torch.ones(())),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_depends_on_which_samples_are_together_is_told(loss: Callable[..., Any]) -> None:
    assert found(loss).together
    assert found(loss, net(nn.Dropout(0.3))).together


def test_a_term_that_is_there_for_large_batches_only_is_told() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return squared(model, batch) + (model(batch[0]).var() if len(batch[0]) > 16 else 0)

    assert not found(loss).together
    assert found(loss, large=32).together


def test_a_loss_that_calls_backward_itself_is_refused() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = squared(model, batch)
        value.backward(retain_graph=True)
        return value

    with pytest.raises(JobError, match="itself calls backward"):
        found(loss)


def test_a_loss_that_is_random_in_evaluation_mode_too_is_compared_on_average() -> None:
    def noisy(model: nn.Module, batch: Any) -> Tensor:
        noise = torch.from_numpy(np.random.randn(len(batch[0]), 3)).float()  # torch's own is known by samples
        return (model(batch[0]) + 0.1 * noise).square().mean()

    seen = found(noisy)
    assert not seen.together
    assert "on average" in seen.notes[0]
    assert found(lambda model, batch: len(batch[0]) * noisy(model, batch)).summed


def test_a_teacher_that_follows_is_state_that_can_be_put_together_and_a_queue_is_not() -> None:
    def follow(model: Seeing, _: Tensor) -> None:
        model.get_buffer("kept").lerp_(model.get_parameter("net.0.weight"), 0.1)

    def push(model: Seeing, x: Tensor) -> None:
        kept = model.get_buffer("kept")
        kept.copy_(torch.cat([x, kept])[: len(kept)])

    def count(model: Seeing, x: Tensor) -> None:
        model.get_buffer("kept").add_(len(x))

    assert not found(squared, Seeing(follow, torch.zeros(8, 6))).state
    assert "kept" in found(squared, Seeing(push, torch.zeros(20, 6))).state
    assert "kept" in found(squared, Seeing(count, torch.zeros((), dtype=torch.int64))).state
    assert not found(squared, Seeing(lambda model, x: model.get_buffer("kept").add_(1), torch.zeros(()))).state


IN_A_MODULE = """
class State:
    seen = 0.0
    def __init__(self):
        self.seen = 0.0

STATE = State()

def normalised(value):
    STATE.seen = 0.9 * STATE.seen + 0.1 * float(value.detach())
    return value / (STATE.seen + 1e-3)

class Job:
    def loss(self, model, batch):
        return normalised(model(batch[0]).square().mean())
"""


def test_what_changes_with_every_call_outside_of_the_models_state_is_named() -> None:
    class Job:
        steps = 0

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            self.steps += 1
            return squared(model, batch) * min(1.0, self.steps / 100)

    job = Job()
    job.steps = 5
    assert found(job.loss, owner=job).hidden == "self.steps"
    module = types.ModuleType("job")
    exec(IN_A_MODULE, vars(module))
    assert found(module.Job().loss, owner=module.Job()).hidden == "STATE.seen"
    assert not found(squared, owner=job).hidden


STEPS = [0]


class Keeping:
    """A job that keeps something in many places, and whose loss does not show it."""

    calls = 0

    def __init__(self) -> None:
        self.count, self.rng, self.own = itertools.count(), np.random.default_rng(0), torch.Generator()
        self.counts, self.table = {"a": 0}, torch.zeros(3)
        self.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        self.data = TensorDataset(torch.zeros(8))

    def in_default(self, seen: list[int] = [0]) -> None:  # noqa: B006
        seen[0] += 1

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        type(self).change(self)  # type: ignore[attr-defined]
        return squared(model, batch)


@pytest.mark.parametrize(
    ("change", "name", "told"),
    [
        (lambda job: setattr(type(job), "calls", type(job).calls + 1), "Keeping.calls", "noted"),
        (lambda job: STEPS.__setitem__(0, STEPS[0] + 1), "STEPS[0]", "noted"),
        (lambda job: job.in_default(), "in_default.__defaults__[0][0]", "noted"),
        (lambda job: job.counts.update(a=job.counts["a"] + 1), "self.counts['a']", "noted"),
        (lambda job: next(job.count), "self.count", "refused"),
        (lambda job: job.rng.random(), "self.rng", "refused"),
        (lambda job: torch.rand((), generator=job.own), "self.own", "refused"),
        (lambda job: job.table.add_(1), "self.table", "refused"),
        (
            lambda job: job.optimizer.param_groups[0].update(lr=0.05),
            "self.optimizer.param_groups[0]['lr']" + findings.COPY,
            "refused",
        ),
        (lambda job: job.data.tensors[0].fill_(2), "self.data.tensors[0]" + findings.COPY, "refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_loss_changes_is_told_if_it_is_a_number_and_else_refused(change: Any, name: str, told: str) -> None:
    Keeping.change = staticmethod(change)  # type: ignore[attr-defined]
    job = Keeping()
    seen = found(job.loss, owner=job)
    assert seen.hidden == (name if told == "refused" else "")
    assert any(f"loss changes {name}, " in note for note in seen.notes) is (told == "noted")


class Keeps(nn.Module):
    """Keeps what it computed last; ``uses`` it in the next call, too."""

    def __init__(self, uses: bool) -> None:
        super().__init__()
        self.layer, self.drop, self.uses = nn.Linear(6, 6), nn.Dropout(0.5), uses
        self._kept: tuple[Tensor, list[Tensor]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.layer(x))
        if self.uses and self._kept is not None and len(self._kept[0]) == len(x):
            out = out + self._kept[1][0]
        self._kept = (out.detach(), [out.detach() / 2])
        return out


@pytest.mark.parametrize(("uses", "hidden"), [(True, "model._kept[0]"), (False, "")])
def test_a_state_between_calls_is_named_and_features_that_are_only_kept_are_not(uses: bool, hidden: str) -> None:
    torch.manual_seed(0)
    assert found(squared, Keeps(uses)).hidden == hidden


# --- What becomes of it ----------------------------------------------------------------------------------------------


class Clipped(nn.Module):
    """Clips the gradient of a hidden layer by its norm over the batch; the layers before it have small gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        h.register_hook(lambda gradient: gradient * (1e-3 / gradient.norm()).clamp(max=1))
        return self.last(h)


def test_a_small_gradient_that_depends_on_the_batch_is_told_beside_large_ones() -> None:
    assert "the gradient of a batch" in found(squared, Clipped()).together


def test_a_loss_that_differs_with_the_same_random_numbers_does_not_go_with_deterministic() -> None:
    def fresh(model: nn.Module, batch: Any) -> Tensor:
        return squared(model, batch) * float(np.random.default_rng().random())

    seen = found(fresh)
    assert seen.unsteady
    assert not seen.hidden
    assert settle(TrainingConfig(), seen, (), devices=2)
    with pytest.raises(JobError, match="deterministic=true can't hold"):
        settle(TrainingConfig(deterministic=True), seen, (), devices=2)


# --- What each worker has a copy of ----------------------------------------------------------------------------------


class Phases:
    """A job whose loss changes with what it has counted in some way of its own."""

    def __init__(self, count: Callable[[Phases], None], held: Any) -> None:
        self.count, self.held, self.dropped = count, held, 0.0

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.count(self)
        return squared(model, batch) * (1 if len(self.held) < 1000 else 2)


@pytest.mark.parametrize("held", [[], collections.deque(), {}])
def test_a_phase_that_goes_by_how_long_something_is_that_loss_adds_to_is_told(held: Any) -> None:
    def add(job: Phases) -> None:
        if isinstance(held, dict):
            held[f"call {len(held)}"] = "a"
        else:
            held.append("a")

    job = Phases(add, held)
    assert any("len(self.held) grows with every call" in note for note in found(job.loss, owner=job).notes)


def test_a_batch_that_loss_changes_in_place_is_refused_where_the_data_keeps_that() -> None:
    class Views(Dataset[Any]):
        def __init__(self) -> None:
            self.x = torch.rand(SAMPLES, 6) + 1

        def __len__(self) -> int:
            return SAMPLES

        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self.x[index] for index in indices]

        def __getitem__(self, index: int) -> Tensor:
            return self.x[index]

    def in_place(model: nn.Module, batch: Any) -> Tensor:
        for row in batch:
            row /= 2
        return model(torch.stack(list(batch))).square().mean()

    def seen(collate: Any) -> Findings:
        own = datasets.as_dataset(DataLoader(Views(), batch_size=4, collate_fn=collate))
        model = net().train()
        computer = SliceComputer(model, in_place, own, torch.device("cpu"), seed=0)
        return Additivity(model, computer, None, np.arange(SAMPLES), flat.state(model)).check()

    assert "changes batch[0] in place" in seen(list).data
    assert not seen(None).data  # torch's own collation copies


def test_a_loss_that_has_no_room_for_many_samples_without_autocast_is_compared_with_fewer() -> None:
    def loss(of: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def full(model: nn.Module, batch: Any) -> Tensor:
            if len(batch[0]) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return of(model, batch)

        return full

    seen = found(loss(squared))
    assert (seen.together, seen.unchecked) == ("", False)
    assert found(loss(contrastive)).together


class Gated(nn.Module):
    """Two experts, whose balance over the batch counts in training alone; normalised, or with noise by numpy."""

    def __init__(self, *, normalised: bool, noisy: bool, balanced: bool, forms: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4) if normalised else nn.Identity()
        self.gate, self.experts = nn.Linear(4, 2), nn.Linear(4, 2)
        self.noisy, self.balanced, self.forms = noisy, balanced, forms

    def forward(self, x: torch.Tensor) -> Any:
        x = self.norm(x)
        if self.noisy and self.training:
            x = x + 0.01 * torch.from_numpy(np.random.randn(*x.shape)).float()
        chosen = self.gate(x).softmax(1)
        out = (chosen * self.experts(x)).square().sum(1)
        if not self.training:
            return [out] if self.forms else out.mean()
        return out.mean() + 4 * chosen.mean(0).square().sum() * self.balanced


@pytest.mark.parametrize("forms", [False, True], ids=["a loss", "another form in evaluation"])
@pytest.mark.parametrize(("normalised", "noisy"), [(True, False), (False, True), (True, True)])
def test_a_term_of_training_alone_is_looked_at(normalised: bool, noisy: bool, forms: bool) -> None:
    torch.manual_seed(0)
    data = datasets.as_dataset(torch.randn(12, 4) + torch.linspace(-2, 2, 12)[:, None])
    found = []
    for balanced in (True, False):
        model = Gated(normalised=normalised, noisy=noisy, balanced=balanced, forms=forms).train()
        computer = SliceComputer(model, lambda network, batch: network(batch), data, torch.device("cpu"), seed=0)
        state = dict(model.named_buffers())
        found.append(Additivity(model, computer, None, np.arange(12), state).check().together)
    assert found[0]
    assert not found[1]
