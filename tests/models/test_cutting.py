"""A model is cut between its blocks, and its parts compute together what the whole does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.jobs.text import GPT, Text
from remote_agent.models.blocks import CannotCut, Layers, blocks_of
from remote_agent.models.part import Part, check
from remote_agent.models.seams import trace

VOCABULARY, LENGTH = 61, 9

Loss = Callable[[nn.Module], Tensor]


def _seed(number: int) -> None:
    torch.manual_seed(100 + number)


def _language(kind: str, **more: Any) -> nn.Module:
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
    }
    if kind == "GPT2":
        sizes = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 5, "n_head": 4, "n_positions": 32}
    elif kind != "GPTNeoX":
        sizes["num_key_value_heads"] = 2
    if kind == "Gemma2":
        sizes |= {"head_dim": 4, "sliding_window": 4}
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)
    torch.manual_seed(1)
    model: nn.Module = getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)
    return model.train()


def _language_loss(model: nn.Module) -> Tensor:
    ids = torch.randint(0, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    loss: Tensor = model(input_ids=ids, attention_mask=mask, labels=ids).loss
    return loss


def _in_parts(model: nn.Module, loss: Loss, bounds: list[int], own: Layers | None = None) -> dict[str, Tensor]:
    """The gradients, each stage with a copy of the model that lacks the others' weights."""
    blocks = blocks_of(model, own)
    seams = trace(model, blocks, lambda: loss(model))
    check(model, blocks, seams, lambda: loss(model), _seed)
    outputs: list[tuple[Part, Any, tuple[Tensor, ...]]] = []
    given: tuple[Tensor, ...] = ()
    for first, last in pairwise(bounds):
        copied = copy.deepcopy(model)
        part = Part(copied, blocks_of(copied, own), seams, first, last)
        part.move("cpu")
        given = tuple(each.detach().requires_grad_() for each in given)
        result = part.run(partial(loss, copied), given, _seed)
        outputs.append((part, result, given))
        given = result if isinstance(result, tuple) else ()
    gradients: Any = None
    sums: dict[str, Tensor] = {}
    for part, result, given in reversed(outputs):
        torch.autograd.backward(result, gradients)
        gradients = [each.grad for each in given]
        for name, parameter in part.parameters().items():
            assert parameter.grad is not None
            sums[name] = sums[name] + parameter.grad if name in sums else parameter.grad
    return sums


def _whole(model: nn.Module, loss: Loss) -> dict[str, Tensor]:
    blocks = blocks_of(model)
    seams = trace(model, blocks, lambda: loss(model))
    result = Part(model, blocks, seams, 0, len(blocks)).run(lambda: loss(model), (), _seed)
    assert isinstance(result, Tensor)
    result.backward()  # type: ignore[no-untyped-call]
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Llama", {}),
        ("Mistral", {}),
        ("Qwen2", {"tie_word_embeddings": True}),
        ("Gemma2", {}),
        ("GPTNeoX", {"hidden_dropout": 0.2, "attention_dropout": 0.2}),
        ("GPT2", {}),
    ],
)
def test_hugging_face_models_in_parts_have_the_gradients_of_the_whole(kind: str, more: dict[str, Any]) -> None:
    model = _language(kind, **more)
    blocks = blocks_of(model)
    assert len(blocks) == 5
    expected = _whole(model, _language_loss)
    found = _in_parts(model, _language_loss, [0, 1, 4, 5])
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    if model.config.tie_word_embeddings:
        seams = trace(model, blocks, lambda: _language_loss(model))
        assert seams.shared([0, 1, 4, 5]) == {next(iter(expected)): (0, 2)}


def test_a_sequence_is_cut_between_any_of_its_members() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.3), nn.Linear(8, 2)
    )
    x, y = torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 0, 1, 1])
    assert len(blocks_of(model)) == 6

    def loss(model: nn.Module) -> Tensor:
        return functional.cross_entropy(model(x), y)

    expected = _whole(model, loss)
    found = _in_parts(model, loss, [0, 2, 3, 5, 6])
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


def test_a_job_names_the_blocks_of_its_own_model() -> None:
    model = GPT()
    with pytest.raises(CannotCut, match=r"how to cut a GPT; it has lists of modules in blocks") as refused:
        blocks_of(model)
    assert "layers(model)" in refused.value.hint
    ids = torch.randint(0, 256, (2, 12))
    blocks = blocks_of(model, Text().layers)
    seams = trace(model, blocks, lambda: functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))
    assert seams.shared([0, 1, len(blocks)]) == {"tokens.weight": (0, 1)}
    assert seams.uses["positions.weight"] == {0}


class _Crossed(nn.Module):
    """A block that uses what the first one computed, behind the back of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = self.blocks[0](x)
        result: Tensor = self.blocks[2](self.blocks[1](first)) + first
        return result


class _Masked(_Crossed):
    """A mask of what is given to the second block, which is False everywhere here, is used by the third one's."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        mask = x.abs() > 100
        x = self.blocks[1](x).masked_fill(mask, 0.0)
        result: Tensor = self.blocks[2](x)
        return result


class _Halting(_Crossed):
    """Its code goes by a value, which is always the same here."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        scale = 0.5 if (x.detach() > 100).any() else 1.0
        result: Tensor = self.blocks[2](self.blocks[1](x) * scale)
        return result


class _Backwards(_Crossed):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.blocks[0](self.blocks[1](self.blocks[2](x)))
        return result


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_Crossed, r"what follows block 1 depends on blocks.0.weight by another way than by what block 2 gets"),
        (_Masked, r"block 1, or what follows it, uses a mask or another value .* from weights before or at block 0,"),
        (_Halting, r"looks at a number that depends on weights \(__bool__\) outside of its blocks"),
        (_Backwards, "one after the other, each once, but 2, 1, 0"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_reason(kind: Any, message: str) -> None:
    model, x = kind(), torch.randn(2, 4)
    blocks = blocks_of(model, lambda whole: whole.blocks)

    def loss() -> Tensor:
        result: Tensor = model(x).square().mean()
        return result

    with pytest.raises(CannotCut, match=message):
        check(model, blocks, trace(model, blocks, loss), loss, _seed)
    assert float(loss().detach()) > 0  # the model is as it was


def test_weights_of_other_parts_take_no_memory() -> None:
    model = nn.Sequential(*(nn.Linear(50, 50) for _ in range(4)))
    x = torch.randn(2, 50)
    blocks = blocks_of(model)
    part = Part(model, blocks, trace(model, blocks, lambda: model(x).sum()), 1, 2)
    part.move("cpu")
    held = sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())
    assert held == 4 * (50 * 50 + 50) + 4 * 6


class _Hidden(nn.Module):
    """A block adds a number that the first one kept, and the output layer of zeros hides it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.blocks[0] = _Keeping(4, 4)
        self.head = nn.Linear(4, 2)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks[:2]:
            x = block(x)
        result: Tensor = self.head(self.blocks[2](x) + self.blocks[0].kept)
        return result


class _Keeping(nn.Linear):
    kept = 0.0

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        self.kept = float(result.detach().sum())
        return result


class _Passing(_Crossed):
    """What has no gradient goes from a block to the next one, with values that have one, through a function of its own.

    A part of the first block's shape, or of its type, is no value of it.
    """

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones_like(x)
        for block in self.blocks:
            x = _Straight.apply(block(x * ones.type_as(x)))
            x = torch.where((x > 0.1).expand_as(x), x, 0.5 * x)
        return x


class _Straight(torch.autograd.Function):
    """Rounds, and hands gradients on as they are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def test_what_has_no_gradient_may_go_to_the_next_block() -> None:
    model, x = _Passing(), torch.randn(2, 4)

    def loss(model: nn.Module) -> Tensor:
        result: Tensor = model(x).square().mean()
        return result

    found = _in_parts(model, loss, [0, 1, 2, 3], lambda whole: whole.blocks)
    loss(model).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_what_the_first_weights_hide_from_the_loss_is_found() -> None:
    model, x = _Hidden(), torch.randn(2, 4)
    blocks = blocks_of(model, lambda whole: whole.blocks)

    def loss() -> Tensor:
        result: Tensor = model(x).square().mean()
        return result

    with pytest.raises(CannotCut, match="block 2 in a part of its own gives something else"):
        check(model, blocks, trace(model, blocks, loss), loss, _seed)


def test_a_block_that_is_left_out_in_one_pass_is_seen() -> None:
    model, x = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), torch.randn(2, 4)
    blocks = blocks_of(model)
    seams = trace(model, blocks, lambda: model(x).sum())
    part = Part(model, blocks, seams, 1, 3)
    with pytest.raises(CannotCut, match="block 2 was called where block 1 was to come"):
        part.run(lambda: model[2](model[0](x)).sum(), (x,), _seed)


def test_one_module_in_two_places_is_refused() -> None:
    relu = nn.ReLU()
    with pytest.raises(CannotCut, match="blocks 1 and 3 are one ReLU") as refused:
        blocks_of(nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu))
    assert "for each place" in refused.value.hint


def test_a_job_that_has_another_model_than_its_class_leaves_it_to_what_is_known() -> None:
    assert len(blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), Text().layers)) == 2
