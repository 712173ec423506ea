"""What a part of a batch weighs in the mean: the parts' sums over their weights are the whole batch's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.training.errors import JobError
from remote_agent.training.user_code import losses

losses.install()

X = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, -100, -100, -100, 1, -100, 0, 2])
CLASSES = torch.tensor([0.2, 1.0, 5.0])
MODEL = nn.Linear(4, 3)


def ignoring(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def weighing(model: nn.Module, batch: Any) -> Tensor:
    return nn.CrossEntropyLoss(weight=CLASSES)(model(batch[0]), batch[1])


def smoothed(model: nn.Module, batch: Any) -> Tensor:
    scores = model(batch[0])
    return functional.cross_entropy(scores, batch[1], CLASSES, label_smoothing=0.2)


def log_likelihood(model: nn.Module, batch: Any) -> Tensor:
    return functional.nll_loss(model(batch[0]).log_softmax(1), batch[1], weight=CLASSES)


def own_weight(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"), (batch[1] != -100).sum()


def tokens(model: nn.Module, batch: Any) -> Tensor:
    """Two labels a sample, of which the second counts less often."""
    scores = torch.stack([model(batch[0]), model(batch[0].flip(1))], dim=2)
    labels = torch.stack([batch[1], batch[1].masked_fill(batch[0][:, 0] > 0, -100)], dim=1)
    return functional.cross_entropy(scores, labels)


def probabilities(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[0][:, :3].softmax(1), weight=CLASSES)


def plain_mean(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0]).square().mean()


LOSSES = [ignoring, weighing, smoothed, log_likelihood, own_weight, tokens, probabilities, plain_mean]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("end", [1, 4, 7])
def test_the_parts_of_a_batch_give_the_loss_of_the_whole(loss: Callable[..., Any], end: int) -> None:
    whole = loss(MODEL, (X, Y))
    expected = whole[0] / whole[1] if isinstance(whole, tuple) else whole
    parts = [losses.of_part(loss, MODEL, (X[a:b], Y[a:b]), b - a) for a, b in ((0, end), (end, 10))]
    total = sum(float(part.value.detach()) * part.factor for part in parts)
    assert not any(part.unknown for part in parts)
    assert total / sum(part.weight for part in parts) == pytest.approx(float(expected.detach()), rel=1e-5)


def several(model: nn.Module, batch: Any) -> list[Any]:
    """Two cross entropies, a masked mean and a mean: each with a weight of its own."""
    scores, counts = model(batch[0]), batch[0][:, 0] > 0
    terms = [weighing(model, batch), ignoring(model, batch), (2 * scores.square().sum(1)[counts].sum(), counts.sum())]
    return [*terms, scores.abs().mean()]


@pytest.mark.parametrize("end", [1, 4, 7])
def test_each_term_of_a_list_has_a_weight_of_its_own(end: int) -> None:
    means = [each[0] / each[1] if isinstance(each, tuple) else each for each in several(MODEL, (X, Y))]
    parts = [losses.of_part(several, MODEL, (X[a:b], Y[a:b]), b - a) for a, b in ((0, end), (end, 10))]
    assert not any(part.unknown for part in parts)
    for expected, terms in zip(means, zip(*(part.terms for part in parts), strict=True), strict=True):
        total = sum(float(term.value.detach()) * term.factor for term in terms)
        assert total / sum(term.weight for term in terms) == pytest.approx(float(expected.detach()), rel=1e-5)
    whole = losses.of_part(several, MODEL, (X, Y), 10)
    assert float(whole.value.detach()) == pytest.approx(float(sum(means).detach()), rel=1e-5)
    assert (whole.factor, whole.weight) == (10, 10)


def test_a_list_of_one_is_what_is_in_it_and_a_scaled_cross_entropy_is_told_the_list() -> None:
    alone = losses.of_part(lambda model, batch: [own_weight(model, batch)], MODEL, (X, Y), 10)
    assert (alone.factor, alone.weight, alone.terms) == (1.0, 6.0, ())
    for unseen in (
        lambda model, batch: 0.5 * ignoring(model, batch) + model(batch[0]).mean(),
        lambda model, batch: [0.5 * ignoring(model, batch), own_weight(model, batch)],
    ):
        assert losses.of_part(unseen, MODEL, (X, Y), 10).unknown, "what the scaled mean is divided by is not seen"


def test_a_part_of_which_no_label_counts_weighs_nothing_and_has_gradients_of_zero() -> None:
    part = losses.of_part(ignoring, MODEL, (X[3:6], Y[3:6]), 3)
    assert part.weight == 0
    MODEL.zero_grad()
    part.value.backward()  # type: ignore[no-untyped-call]
    assert MODEL.weight.grad is not None
    assert not MODEL.weight.grad.any()


def test_a_constant_weighs_nothing_where_nothing_counts_and_is_no_loss_elsewhere() -> None:
    for nothing in (torch.tensor(0), torch.zeros(0), 0.0, 0):
        part = losses.of_part(lambda model, batch, nothing=nothing: (nothing, 0), MODEL, (X, Y), 4)
        assert part.weight == 0
        part.value.backward()  # type: ignore[no-untyped-call]
    with pytest.raises(JobError, match="does not depend on a trained parameter"):
        losses.of_part(lambda model, batch: (torch.tensor(0.0), 3), MODEL, (X, Y), 4)


def test_a_part_without_a_gradient_may_be_a_constant_of_its_samples() -> None:
    part = losses.of_part(lambda model, batch: torch.tensor(2), MODEL, (X, Y), 4, constant=True)
    assert (part.value.item(), part.factor, part.weight) == (2.0, 4.0, 4.0)
    part.value.backward()  # type: ignore[no-untyped-call]


def test_a_weight_is_any_kind_of_number() -> None:
    for weight in (4, 4.0, np.int64(4), np.float32(4), torch.tensor([4], dtype=torch.int32)):
        part = losses.of_part(lambda model, batch, weight=weight: (model(batch[0]).sum(), weight), MODEL, (X, Y), 10)
        assert part.weight == 4.0


def test_a_sum_is_told_by_how_many_samples_it_is_over() -> None:
    parts = [
        losses.of_part(lambda model, batch: model(batch[0]).square().sum(), MODEL, (X[a:b], Y[a:b]), b - a, 10)
        for a, b in ((0, 3), (3, 10))
    ]
    mean = sum(float(part.value.detach()) * part.factor for part in parts) / sum(part.weight for part in parts)
    assert mean == pytest.approx(float(MODEL(X).square().sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda model, batch: 1.5, "a float"),
        (lambda model, batch: None, "a NoneType"),
        (lambda model, batch: [], "a list"),
        (lambda model, batch: [model(batch[0]).mean(), [model(batch[0]).mean()]], "a list"),
        (lambda model, batch: [model(batch[0]).mean(), (model(batch[0]).sum(), -1)], "weight -1"),
        (lambda model, batch: model(batch[0]), r"shape \(10, 3\)"),
        (lambda model, batch: model(batch[0]).sum().detach(), "does not depend on a trained parameter"),
        (lambda model, batch: (model(batch[0]).sum(), "many"), "weight 'many'"),
        (lambda model, batch: (model(batch[0]).sum(), -1), "weight -1"),
        (lambda model, batch: (model(batch[0]).sum(), model(batch[0]).exp().sum()), "weight that has a gradient"),
    ],
)
def test_what_is_no_loss_is_named(given: Callable[..., Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        losses.of_part(given, MODEL, (X, Y), 10)


def test_without_a_loss_a_batch_is_inputs_and_targets_or_brings_labels() -> None:
    class Labelled(nn.Module):
        def forward(self, inputs: Tensor, labels: Tensor) -> Any:
            return {"loss": functional.cross_entropy(MODEL(inputs), labels), "logits": MODEL(inputs)}

    default = losses.function_of(None)
    expected = functional.cross_entropy(MODEL(X), Y)
    assert torch.equal(default(MODEL, (X, Y)), expected)
    assert torch.equal(default(MODEL, {"x": X, "y": Y}), expected)
    assert torch.equal(default(Labelled(), {"inputs": X, "labels": Y}), expected)
    criterion = losses.function_of(nn.CrossEntropyLoss(weight=CLASSES))
    assert torch.equal(criterion(MODEL, (X, Y)), weighing(MODEL, (X, Y)))
    with pytest.raises(JobError, match="3 parts"):
        default(MODEL, (X, Y, Y))


@pytest.mark.parametrize(
    ("outputs", "targets", "said"),
    [
        ((6, 1), torch.randn(6, 1), "no two classes"),
        ((6, 1), torch.zeros(6, dtype=torch.int64), "no two classes"),
        ((6,), torch.randn(6), "no two classes"),
        ((6, 3), torch.randn(6, 3), "no probabilities"),
        ((6, 3), torch.ones(6, 3), "no probabilities"),
        ((6, 3), torch.randn(6), "no whole numbers"),
        ((6, 3), torch.tensor([1, 2, 3, 1, 2, 3]), "none of the classes 0 to 2"),
        ((6, 3), torch.tensor([0, 1, 2, 0, 1, -1]), "none of the classes 0 to 2"),
        ((6, 4, 9), torch.zeros(6, 4, dtype=torch.int64), "not one target for each output"),
    ],
)
def test_the_default_loss_is_refused_where_it_is_no_classification(
    outputs: tuple[int, ...], targets: Tensor, said: str
) -> None:
    """Torch gives a number for six of these: of one class it is 0, and nothing is trained."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.expand(outputs)

    with pytest.raises(JobError, match=said):
        losses.function_of(None)(Model(), (torch.randn(1), targets))


@pytest.mark.parametrize(
    "targets",
    [
        torch.tensor([0, 1, 2, 2, -100, 0]),
        torch.randn(6, 3).softmax(1),
        torch.randn(6, 3).softmax(1).bfloat16(),
        torch.eye(3).repeat(2, 1).double(),
    ],
)
def test_the_default_loss_takes_classes_and_their_probabilities(targets: Tensor) -> None:
    model, x = nn.Linear(4, 3), torch.randn(6, 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=targets.dtype == torch.bfloat16):
        value = losses.function_of(None)(model, (x, targets.to(model(x).dtype) if targets.dim() == 2 else targets))
    assert torch.isfinite(value)
    own = nn.CrossEntropyLoss()  # what a job names itself is not looked at
    assert losses.function_of(own)(model, (x, 2 * torch.rand(6, 3))) > 0


def test_a_loss_that_a_grad_scaler_scales_is_refused() -> None:
    """The engine has no such scaler that would divide the gradient again."""

    def scaled_by(scaler: torch.amp.GradScaler) -> Any:
        return losses.of_part(
            lambda model, batch: scaler.scale(model(batch).mean()), nn.Linear(3, 1), torch.ones(4, 3), 4
        )

    losses.install()
    with pytest.raises(JobError, match="GradScaler") as refused:
        scaled_by(torch.amp.GradScaler("cpu"))
    assert "precision=fp16" in refused.value.hint
    assert scaled_by(torch.amp.GradScaler("cpu", enabled=False)).value.isfinite()
