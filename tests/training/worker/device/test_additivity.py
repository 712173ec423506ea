"""What the measurement finds out about a loss, and what becomes of a run then."""

from __future__ import annotations

import collections
import copy
import itertools
import random
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.shared import findings, flat
from remote_agent.training.shared.findings import Findings, settle
from remote_agent.training.user_code import losses
from remote_agent.training.worker.device import held_values
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


class Remembering(nn.Module):
    """Adds what it gave for the samples of the call before, or its mean."""

    def __init__(self, *, rows: bool) -> None:
        super().__init__()
        self.net, self.rows, self.last = net(), rows, torch.zeros(1, 3)

    def forward(self, x: Tensor) -> Any:
        out = self.net(x) + (self.last if len(self.last) in (1, len(x)) else 0)
        self.last = (out if self.rows else out.mean(0, keepdim=True)).detach()
        return out


@pytest.mark.parametrize("rows", [True, False])
def test_what_a_batch_leaves_to_the_next_is_a_hidden_state_where_it_has_a_row_for_each_sample(rows: bool) -> None:
    seen = found(squared, Remembering(rows=rows))
    assert (seen.hidden, seen.carried) == ("model.last", rows)


class Iterated(nn.Module):
    """Iterates until a norm is small: over the batch, or of each sample by itself."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.net, self.dims = net(), dims

    def forward(self, x: Tensor) -> Any:
        put, out = self.net(x), torch.zeros(len(x), 3)
        for _ in range(20):
            last, out = out, put + 0.5 * out.sin()
            step = (out - last).square().mean(self.dims, keepdim=True).sqrt().detach()
            out = last + (out - last) * step / (step + 1e-3)
        return out


def test_iterations_that_go_by_a_norm_over_the_batch_are_told_of() -> None:
    seen = found(squared, Iterated((0, 1)))
    assert not seen.together
    assert 1e-6 < seen.apart < 1e-3
    assert found(squared, Iterated((1,))).apart == 0


def test_a_gradient_that_chance_changes_as_much_is_not_told_of() -> None:
    """The noise of a consistency loss is in the gradient long before it is in the loss."""

    def consistent(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0])
        return out.square().mean() + (out - out.detach() - 1e-3 * torch.rand(len(out), 1)).square().mean()

    assert found(consistent).apart == 0


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


def test_samples_that_fit_into_no_batch_together_are_trained_one_at_a_time() -> None:
    rows = [torch.randn(3 + index, 6) for index in range(SAMPLES)]
    model = net().train()

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch[0]).square().mean()

    computer = SliceComputer(model, loss, datasets.as_dataset(rows), torch.device("cpu"), seed=0, most=1)
    seen = Additivity(model, computer, None, np.arange(SAMPLES), flat.state(model)).check()
    assert (seen.together, seen.hidden) == ("", "")


def test_randomness_that_hardly_shows_is_not_taken_for_a_loss_that_depends_on_the_batch() -> None:
    def hardly_random(model: nn.Module, batch: Any) -> Tensor:
        return squared(model, batch) + 1 + (1e-4 * torch.rand(()) if model.training else 0)

    assert not found(hardly_random).together


def test_a_loss_over_pairs_of_neighbours_is_told_where_it_leaves_out_the_last_of_an_odd_number() -> None:
    def cut(model: nn.Module, batch: Any) -> Tensor:
        pairs = model(batch[0])[: len(batch[0]) // 2 * 2].view(-1, 2, 3)
        return (pairs[:, 0] - pairs[:, 1]).square().mean()

    def whole(model: nn.Module, batch: Any) -> Tensor:
        pairs = model(batch[0]).view(-1, 2, 3)
        return (pairs[:, 0] - pairs[:, 1]).square().mean()

    assert found(cut).together
    assert not found(whole).together  # with unit=2 it trains; else a slice of an odd number ends the run


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


def test_a_gradient_that_depends_on_which_samples_are_together_is_told_where_the_loss_does_not() -> None:
    class Normalised(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient / gradient.norm()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return squared(lambda x: Normalised.apply(model(x)), batch)  # type: ignore[arg-type]

    with torch.no_grad():  # as it is called
        assert "gradient" in found(loss).together
        assert "gradient" in found(loss, net(nn.Dropout(0.3))).together
        assert not found(squared, net(nn.Dropout(0.3))).together


def test_a_parameter_that_only_some_of_the_samples_use_is_no_reason_to_refuse() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.rare = net(), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            rare = x[:, 0] > 1
            out: Tensor = self.net(x)
            if bool(rare.any()):
                out = out + self.rare(x) * rare[:, None]
            return out

    assert not found(squared, Branch()).together


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


def test_a_loss_that_differs_with_the_same_random_numbers_is_told_from_one_that_is_random() -> None:
    own = torch.Generator().manual_seed(1)

    def noisy(model: nn.Module, batch: Any) -> Tensor:
        return squared(model, [batch[0] + 0.1 * torch.randn(batch[0].shape, generator=own)])

    [note] = found(noisy).notes
    assert "something outside of the model's state changes it" in note


@pytest.mark.parametrize("middle", [nn.Dropout(0.3), nn.BatchNorm1d(8)])
def test_a_model_with_another_output_in_evaluation_mode_is_looked_at_in_training_mode(middle: nn.Module) -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net(middle)

        def forward(self, x: Tensor) -> Any:
            return (self.net(x), self.net(x)) if self.training else self.net(x)

    def both(model: nn.Module, batch: Any) -> Tensor:
        out, auxiliary = model(batch[0])
        return out.square().mean() + 0.3 * auxiliary.square().mean()

    seen = found(both, Auxiliary())
    assert (seen.together, seen.summed) == ("", False)
    assert "evaluation mode" in seen.notes[0]


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


class Counting:
    """A job that counts its calls in several places, and whose loss does not show it."""

    calls = 0

    def __init__(self) -> None:
        self.meter, self.numbers = types.SimpleNamespace(total=torch.zeros(())), itertools.count()
        self.counts = {"a": 0}

    def in_class(self) -> None:
        type(self).calls += 1

    def in_file(self) -> None:
        STEPS[0] += 1

    def in_default(self, seen: list[int] = [0]) -> None:  # noqa: B006
        seen[0] += 1

    def in_container(self) -> None:
        self.counts["a"] += 1

    def by_iterator(self) -> None:
        next(self.numbers)


@pytest.mark.parametrize(
    ("count", "name"),
    [
        ("in_class", "Mine.calls"),
        ("in_file", "STEPS[0]"),
        ("in_default", "in_default.__defaults__[0][0]"),
        ("in_container", "self.counts['a']"),
    ],
)
def test_a_number_that_changes_with_every_call_is_told_wherever_the_users_code_keeps_it(count: str, name: str) -> None:
    def loss(self: Counting, model: nn.Module, batch: Any) -> Tensor:
        getattr(self, count)()
        return squared(model, batch)

    job = type("Mine", (Counting,), {"loss": loss, "calls": 0})()
    seen = found(job.loss, owner=job)
    assert seen.hidden == ""
    assert f"loss changes {name}, " in seen.notes[0]


def test_a_counter_that_is_no_number_is_named() -> None:
    class Mine(Counting):
        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            self.by_iterator()
            return squared(model, batch)

    job = Mine()
    assert found(job.loss, owner=job).hidden == "self.numbers"


def test_an_object_of_a_scripts_class_is_the_users_where_main_is_another_program() -> None:
    kind = type("Mine", (), {"__module__": "__main__"})
    with mock.patch.object(sys.modules["__main__"], "__file__", torch.__file__, create=True):
        assert held_values.is_own(kind())
        assert not held_values.is_own(nn.Linear(1, 1))


def test_a_table_that_the_loss_reads_before_it_writes_it_is_named() -> None:
    class Job:
        def __init__(self) -> None:
            self.table = torch.zeros(3)

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            loss = (model(batch[0]) - self.table).square().mean()
            self.table = model(batch[0]).detach().mean(0)
            return loss

    job = Job()
    assert found(job.loss, owner=job).hidden == "self.table"


class Steering:
    """A job whose loss changes what it keeps of training, for the steps to come."""

    def __init__(self) -> None:
        self.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        self.sampler = WeightedRandomSampler([1.0] * 8, 8)
        self.data = TensorDataset(torch.zeros(8))

    def rate(self, model: nn.Module, batch: Any) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05
        return squared(model, batch)

    def weights(self, model: nn.Module, batch: Any) -> Tensor:
        self.sampler.weights[:4] = 2.0
        return squared(model, batch)

    def labels(self, model: nn.Module, batch: Any) -> Tensor:
        self.data.tensors[0][:4] = 2.0
        return squared(model, batch)


@pytest.mark.parametrize(
    ("steered", "path"),
    [
        ("rate", "self.optimizer.param_groups[0]['lr']"),
        ("weights", "self.sampler.weights"),
        ("labels", "self.data.tensors[0]"),
    ],
)
def test_what_the_loss_sets_in_the_jobs_copies_for_later_steps_is_named(steered: str, path: str) -> None:
    job = Steering()
    hidden = found(getattr(job, steered), owner=job).hidden
    assert hidden == path + findings.COPY
    with pytest.raises(JobError, match="changes with every call") as error:
        settle(TrainingConfig(batch_size=4), Findings(hidden=hidden), (), 2)
    assert "create_scheduler" in error.value.hint


def test_an_iterator_that_the_loss_goes_on_with_is_named_and_one_that_is_left_alone_is_not() -> None:
    class Job:
        def __init__(self) -> None:
            self.others = iter(DataLoader(TensorDataset(torch.randn(600, 6))))

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            return squared(model, batch) + squared(model, next(self.others))

    job = Job()
    assert found(job.loss, owner=job).hidden == "self.others"
    assert not found(squared, owner=Job()).hidden


def test_a_set_that_the_loss_reads_before_it_adds_to_it_is_named() -> None:
    class Job:
        def __init__(self) -> None:
            self.seen = set[float]()

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            new = [float(x) not in self.seen for x in batch[0][:, 0]]
            self.seen.update(batch[0][:, 0].tolist())
            return ((1 + torch.tensor(new).float())[:, None] * model(batch[0]).square()).mean()

    job = Job()
    assert found(job.loss, owner=job).hidden == "self.seen"


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

CONFIG = TrainingConfig(batch_size=64)


def test_what_can_not_be_cut_is_refused_and_taken_undivided() -> None:
    for seen in (Findings(together="it depends"), Findings(state="kept is a queue")):
        with pytest.raises(JobError, match=r"depends|queue") as caught:
            settle(CONFIG, seen, (), 2)
        assert "unit" in caught.value.hint
        assert settle(TrainingConfig(batch_size=64, unit=64), seen, (), 2).unit == 64


def test_what_would_be_lost_is_refused_whatever_is_set() -> None:
    whole = TrainingConfig(batch_size=64, unit=64)
    with pytest.raises(JobError, match=r"head\.weight"):
        settle(whole, Findings(), ("head.weight",), 2)
    with pytest.raises(JobError, match=r"self\.steps"):
        settle(whole, Findings(hidden="self.steps"), (), 2)


def test_the_loss_and_the_unit_are_settled_as_they_were_found() -> None:
    assert settle(CONFIG, Findings(summed=True), (), 2).loss_reduction == "sum"
    assert settle(CONFIG, Findings(), (), 2).loss_reduction == "mean"
    assert settle(CONFIG, Findings(), (), 2).unit == 0
    assert settle(CONFIG, Findings(batch_statistics=True), (), 2).unit == 8
    assert settle(CONFIG, Findings(batch_statistics=True), (), 2, room=5).unit == 5
    assert settle(TrainingConfig(batch_size=64, deterministic=True), Findings(), (), 2).unit == 8
    assert settle(TrainingConfig(batch_size=64, unit=20), Findings(batch_statistics=True), (), 2).unit == 20


def test_the_plan_says_what_was_settled() -> None:
    whole = settle(TrainingConfig(batch_size=64, unit=64), Findings(together="it depends"), (), 2)
    assert "undivided" in findings.about(whole, Findings())[0]
    normed = Findings(batch_statistics=True)
    assert "batch normalisation" in findings.about(settle(CONFIG, normed, (), 2), normed)[0]


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


class Drawing(nn.Module):
    """Adds noise from a generator of its own."""

    def __init__(self, rng: Any, draw: Callable[[Any], float]) -> None:
        super().__init__()
        self.net, self.rng, self.draw = net(), rng, draw

    def forward(self, x: Tensor) -> Any:
        return self.net(x + self.draw(self.rng))


@pytest.mark.parametrize(
    ("rng", "draw"),
    [
        (torch.Generator(), lambda rng: float(torch.rand((), generator=rng))),
        (np.random.default_rng(0), lambda rng: float(rng.random())),
        (np.random.RandomState(0), lambda rng: float(rng.rand())),
        (random.Random(0), lambda rng: rng.random()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_generator_of_the_models_own_is_named_and_does_not_go_with_deterministic(rng: Any, draw: Any) -> None:
    seen = found(squared, Drawing(rng, draw))
    assert seen.hidden == "model.rng"
    assert seen.unsteady


def test_a_loss_that_differs_with_the_same_random_numbers_does_not_go_with_deterministic() -> None:
    def fresh(model: nn.Module, batch: Any) -> Tensor:
        return squared(model, batch) * float(np.random.default_rng().random())

    seen = found(fresh)
    assert seen.unsteady
    assert not seen.hidden
    assert settle(TrainingConfig(), seen, (), devices=2)
    with pytest.raises(JobError, match="deterministic=true can't hold"):
        settle(TrainingConfig(deterministic=True), seen, (), devices=2)


class Meter:
    """A moving mean, as a plain object."""

    def __init__(self) -> None:
        self.value, self.seen = 1.0, [1.0]

    def update(self, value: float) -> None:
        self.value += 0.1 * (value - self.value)


class Metered(nn.Module):
    """Has a meter."""

    def __init__(self, update: Callable[[Meter, float], Any], uses: bool) -> None:
        super().__init__()
        self.net, self.meter, self.update, self.uses = net(), Meter(), update, uses

    def forward(self, x: Tensor) -> Any:
        out = self.net(x)
        self.update(self.meter, float(out.detach().abs().mean()))
        return out / (self.meter.value + sum(self.meter.seen)) if self.uses else out


@pytest.mark.parametrize(
    ("update", "uses", "hidden"),
    [
        (Meter.update, True, "model.meter.value"),
        (lambda meter, value: meter.seen.append(value), True, "len(model.meter.seen)"),
        (lambda meter, value: meter.seen.append(value), False, ""),  # a log
    ],
)
def test_state_in_an_object_is_named_and_a_list_that_is_only_added_to_is_not(
    update: Callable[[Meter, float], Any], uses: bool, hidden: str
) -> None:
    assert found(squared, Metered(update, uses)).hidden == hidden


def halved(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return functional.cross_entropy(model(batch[0]), batch[1].clamp_min(0))


def halved_over_others(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        each = functional.cross_entropy(model(batch[0]), batch[1].clamp_min(0), reduction="none")
    counts = (batch[0][:, 0] > 0).float()
    return (each * counts).sum() / counts.sum().clamp_min(1)


def test_autocast_of_the_job_rounds_a_gradient_and_is_no_reason_to_refuse_it() -> None:
    assert [found(halved, model).together for model in map(wide, range(8))] == [""] * 8
    assert "mean over something else" in found(halved_over_others).together
    plain = losses.of_part(squared, net(), (torch.randn(4, 6), None), 4)
    rounded = losses.of_part(halved, net(), (torch.randn(4, 6), torch.zeros(4, dtype=torch.long)), 4)
    assert (plain.halved, rounded.halved) == (False, True)


def wide(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


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


def test_what_is_kept_once_for_each_sample_is_told_no_growth() -> None:
    cache: dict[int, str] = {}
    job = Phases(lambda _: cache.update({0: "a"}), cache)
    assert not found(job.loss, owner=job).notes


def test_a_term_that_grows_with_a_counter_in_a_buffer_is_no_reason_to_refuse_or_to_say_anything() -> None:
    class Annealed(nn.Module):
        steps: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Any:
            if self.training:
                self.steps += 1
            return self.net(x) * (self.steps / 1000).clamp(max=1)

    seen = found(squared, Annealed())
    assert (seen.together, seen.state, seen.hidden, seen.moved, seen.notes) == ("", "", "", {"steps"}, ())


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
