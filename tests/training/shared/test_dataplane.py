from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from remote_agent.training.shared import dataplane
from remote_agent.training.shared.dataplane import OptimizerFacts, Usage, obstacles, plan

SGD = OptimizerFacts(kind="SGD", elementwise=True, groups=(("c",), ("a", "b")))
FLOATS = dict.fromkeys("abc", "float32")


def names(*values: str) -> frozenset[str]:
    return frozenset(values)


def test_an_ordinary_model_is_streamed_in_the_order_of_the_optimizers_groups() -> None:
    assert obstacles(False, FLOATS, SGD, Usage()) == ()
    made = plan({"a": 2, "b": 3, "c": 5}, SGD, Usage(never=names("b")))
    assert made.names == ("c", "a")
    assert made.groups == (5, 2)
    assert made.watched == ("b",)


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        (Usage(buffers=names("running_mean")), "changes running_mean"),
        (Usage(sometimes=names("a")), "a had a gradient in some slices only"),
        (Usage() | Usage(terms=3), "loss has 3 terms with weights of their own, and a step sums 3 gradients"),
        (Usage(never=names("a", "b", "c")), "no parameter"),
    ],
)
def test_what_the_measurement_saw_can_stand_in_the_way(usage: Usage, reason: str) -> None:
    (found,) = obstacles(False, FLOATS, SGD, usage)
    assert reason in found


def test_sums_in_a_fixed_order_are_not_for_servers() -> None:
    assert obstacles(True, FLOATS, SGD, Usage()) == ("deterministic=true adds units up in their order",)


def test_other_dtypes_stand_in_the_way_unless_they_are_not_used() -> None:
    mixed = FLOATS | {"b": "bfloat16"}
    assert obstacles(False, mixed, SGD, Usage()) == ("parameters are bfloat16",)
    assert obstacles(False, mixed, SGD, Usage(never=names("b"))) == ()


def test_a_clipped_norm_is_that_of_parameters_without_a_step_too() -> None:
    wider = FLOATS | {"d": "float32", "e": "float32"}
    (found,) = obstacles(False, wider, SGD, Usage(never=names("e")), clips=True)
    assert found == "clip_norm counts d, which the optimizer does not have"
    assert obstacles(False, wider, SGD, Usage()) == ()
    assert obstacles(False, wider, SGD, Usage(never=names("d", "e")), clips=True) == ()


def test_a_parameter_that_one_device_used_and_another_did_not_is_used_sometimes() -> None:
    seen = functools.reduce(lambda a, b: a | b, [Usage(never=names("a", "b")), Usage(never=names("a"))])
    assert (seen.never, seen.sometimes) == (names("a"), names("b"))


def test_optimizers_that_look_at_more_than_one_number_are_not_taken_apart() -> None:
    model = nn.Linear(3, 2)

    class Own(torch.optim.SGD):
        pass

    scheduled = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(scheduled, 5)
    hooked = torch.optim.SGD(model.parameters(), lr=0.1)
    hooked.register_step_post_hook(lambda *_: None)
    for optimizer in (
        torch.optim.LBFGS(model.parameters()),
        torch.optim.Adafactor(model.parameters()),
        Own(model.parameters(), lr=0.1),
        scheduled,
        hooked,
    ):
        assert not dataplane.facts(model, optimizer).elementwise, optimizer
    assert dataplane.facts(model, torch.optim.Adam(model.parameters())).elementwise


@pytest.mark.parametrize("kind", dataplane.ELEMENTWISE)
def test_every_elementwise_optimizer_does_on_parts_what_it_does_on_the_whole(kind: type[torch.optim.Optimizer]) -> None:
    generator = torch.Generator().manual_seed(3)
    whole = nn.Parameter(torch.randn(60, generator=generator))
    optimizer = kind([{"params": [whole], "weight_decay": 0.0 if kind is torch.optim.Rprop else 0.01}], lr=0.01)  # type: ignore[call-arg]
    parts = [nn.Parameter(part.clone()) for part in whole.detach().split([7, 53])]
    own = [dataplane.part_of(optimizer, 0, part) for part in parts]
    for _ in range(5):
        gradient = torch.randn(60, generator=generator)
        whole.grad = gradient
        optimizer.step()
        for part, piece, each in zip(parts, gradient.split([7, 53]), own, strict=True):
            part.grad = piece.clone()
            each.step()
    torch.testing.assert_close(torch.cat([part.detach() for part in parts]), whole.detach(), rtol=1e-5, atol=1e-6)
