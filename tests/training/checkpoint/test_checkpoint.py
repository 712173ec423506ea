"""Checkpoints are whole or not there; what an optimizer remembers survives any change of layout."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from remote_agent.training.checkpoint import checkpoint, optimizer_state
from remote_agent.training.checkpoint.optimizer_state import Fragment, NotPortable, TrainingState
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import resuming
from remote_agent.training.errors import JobError, StorageError
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.user_code import checks
from remote_agent.training.wire.layout import plan_layout

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parts: torch.optim.SGD(parts, lr=0.1),
    "momentum": lambda parts: torch.optim.SGD(parts, lr=0.1, momentum=0.9),
    "adamw": lambda parts: torch.optim.AdamW(parts, lr=0.01),
    "amsgrad": lambda parts: torch.optim.Adam(parts, lr=0.01, amsgrad=True),
    "nadam": lambda parts: torch.optim.NAdam(parts, lr=0.01),
    "rprop": lambda parts: torch.optim.Rprop(parts, lr=0.01),
    "adagrad": lambda parts: torch.optim.Adagrad(parts, lr=0.01),
}
ABOUT: dict[str, Any] = {"position": 30, "dataset_size": 100, "config": {"seed": 4, "batch_size": 10}}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.last = nn.Linear(4, 3)


def stepped(optimizer: str, steps: int = 3) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = Model()
    made = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        made.step()
    return model, made


def same(one: optimizer_state.States, other: optimizer_state.States) -> bool:
    return one.keys() == other.keys() and all(
        one[name].keys() == other[name].keys()
        and all(torch.equal(torch.as_tensor(one[name][key]), torch.as_tensor(other[name][key])) for key in one[name])
        for name in one
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@given(chunk=st.integers(1, 12), shards=st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_a_state_is_the_same_after_it_was_cut_into_any_chunks(optimizer: str, chunk: int, shards: int) -> None:
    model, made = stepped(optimizer)
    states = optimizer_state.of_optimizer(model, made)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    layout = plan_layout([sum(shape.numel() for shape in shapes.values())], [1.0] * shards, chunk)
    update = OptimizerUpdate(layout, lambda _, part: OPTIMIZERS[optimizer]([part]))
    fragments = []
    for number, part in enumerate(layout.chunks):
        update.bind(number, torch.zeros(part.numel))
        update.load_state(number, optimizer_state.cut(states, shapes, part.begin, part.end))
        entries = update.state(number)
        fragments.append(Fragment(begin=part.begin, end=part.end, entries=entries))
    assert same(optimizer_state.assemble(reversed(fragments), shapes), states)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_goes_on_as_if_it_had_never_been_saved(optimizer: str, tmp_path: Path) -> None:
    model, made = stepped(optimizer)
    state = TrainingState(optimizer=optimizer_state.of_optimizer(model, made))
    checkpoint.save(tmp_path, 3, model, ABOUT, state)
    found = checkpoint.find(tmp_path)
    other = Model()
    resuming.into_model(found, other)
    theirs = OPTIMIZERS[optimizer](other.parameters())
    optimizer_state.into_optimizer(other, theirs, found.training_state().optimizer)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        one.grad = torch.randn_like(one)
        two.grad = one.grad.clone()
    made.step()
    theirs.step()
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


def test_parameters_that_were_not_stepped_alike_are_not_put_into_one_piece() -> None:
    model, made = stepped("adamw")
    states = dict(optimizer_state.of_optimizer(model, made))
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    states["last.bias"] = {**states["last.bias"], "step": torch.tensor(1.0)}
    with pytest.raises(NotPortable, match="step differs"):
        optimizer_state.cut(states, shapes, 0, sum(shape.numel() for shape in shapes.values()))
    del states["last.bias"]
    with pytest.raises(NotPortable, match="not every parameter"):
        optimizer_state.cut(states, shapes, 0, sum(shape.numel() for shape in shapes.values()))


def test_another_number_of_workers_starts_with_the_mean_of_the_moments() -> None:
    model, made = stepped("adamw")
    one = optimizer_state.of_optimizer(model, made)
    two = {name: {key: 3 * torch.as_tensor(value) for key, value in entries.items()} for name, entries in one.items()}
    assert optimizer_state.for_workers((one, two), 2) == (one, two)
    third = optimizer_state.for_workers((one, two), 3)[2]
    expected = 2 * torch.as_tensor(one["first.weight"]["exp_avg"])
    assert torch.allclose(torch.as_tensor(third["first.weight"]["exp_avg"]), expected)
    assert float(third["first.weight"]["step"]) == 9


class Unsaved(nn.Module):
    """Has state that its state dict leaves out: a buffer, and a frozen teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.teacher = nn.Linear(2, 2), nn.Linear(2, 1).requires_grad_(False)
        self.register_buffer("scale", torch.ones(3), persistent=False)
        self.register_buffer("mask", torch.ones(3), persistent=False)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        whole = super().state_dict(*args, **options)
        return {name: value for name, value in whole.items() if not name.startswith(("teacher", "net.bias"))}


def test_state_that_the_state_dict_leaves_out_is_kept_beside_it_where_training_changes_it(tmp_path: Path) -> None:
    model = Unsaved()
    with torch.no_grad():
        model.scale.mul_(3)
        model.mask.mul_(5)
        model.teacher.weight.add_(1)
        model.net.bias.add_(1)
    about = {"position": 1, "config": {"seed": 1}}
    checkpoint.save(tmp_path, 3, model, about, changing=("scale", "teacher.weight", "teacher.bias"))
    found = checkpoint.find(tmp_path)
    assert sorted(found.weights()) == ["net.weight"]
    other = Unsaved()
    resuming.into_model(found, other)
    for name in ("scale", "teacher.weight", "teacher.bias", "net.weight", "net.bias"):
        assert torch.equal(other.get_parameter(name) if "." in name else other.scale, dict(plain_state(model))[name])
    assert torch.equal(other.mask, torch.ones(3))
    assert sorted(resuming.moving(found, other)) == ["scale", "teacher.bias", "teacher.weight"]
    with pytest.raises(JobError, match="of another model"):
        resuming.into_model(found, nn.Linear(2, 2))
    checkpoint.save(tmp_path, 4, nn.Linear(2, 2), about)
    checkpoint.prune(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004.json", "step-00000004.safetensors"]
    onwards = Unsaved()
    first = {**checkpoint.portable_state(other), **checkpoint.unsaved(other)}
    checks.load_first(onwards, safetensors.torch.save(first))
    assert torch.equal(onwards.net.bias, model.net.bias)


def plain_state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def test_the_newest_are_kept_and_nothing_half_written(tmp_path: Path) -> None:
    model, made = stepped("adamw")
    (tmp_path / "step-00000009.safetensors.part").touch()
    for step in (1, 2, 3, 10):
        state = TrainingState(optimizer=optimizer_state.of_optimizer(model, made))
        checkpoint.save(tmp_path, step, model, ABOUT, state)
        checkpoint.prune(tmp_path, 2)
    ends = (".json", ".optimizer.safetensors", ".safetensors")
    expected = sorted(f"step-{step:08d}{end}" for step in (3, 10) for end in ends)
    assert sorted(path.name for path in tmp_path.iterdir()) == expected
    found = checkpoint.find(tmp_path)
    assert (found.step, found.position, found.seed, found.dataset_size) == (10, 30, 4, 100)
    assert checkpoint.find(tmp_path / "step-00000003.optimizer.safetensors").step == 3
    assert not found.survey
    checkpoint.save(tmp_path, 11, model, {**ABOUT, "survey": "{}"})
    assert checkpoint.find(tmp_path).survey == "{}"


WRITER = """
import sys
from pathlib import Path
import torch
from torch import nn
from remote_agent.training.checkpoint import checkpoint

model = nn.Linear(300, 300)
step = 0
while True:
    step += 1
    with torch.no_grad():
        model.weight.fill_(step)
    state = checkpoint.TrainingState(optimizer={"weight": {"exp_avg": torch.full((300, 300), float(step))}})
    about = {"position": step, "config": {"seed": 0, "batch_size": 1}}
    checkpoint.save(Path(sys.argv[1]), 1 + step % 2, model, about, state)
    print(step, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_checkpoints_only(tmp_path: Path) -> None:
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(4):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate(timeout=20)
        for document in tmp_path.glob("step-*.json"):
            found = checkpoint.find(document)
            assert torch.all(found.weights()["weight"] == found.position)
            assert torch.all(torch.as_tensor(found.training_state().optimizer["weight"]["exp_avg"]) == found.position)


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="can't save the checkpoint of step 3"):
        checkpoint.save(tmp_path / "file" / "checkpoints", 3, Model(), ABOUT)


def test_a_run_whose_folder_was_deleted_says_so_and_makes_no_new_one_without_its_record(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(StorageError, match=re.escape(f"can't save the checkpoint of step 3: {run} was deleted")):
        checkpoint.save(run / "checkpoints", 3, Model(), ABOUT)
    assert not run.exists()


@pytest.mark.parametrize(
    "text", [None, "", "{}", '{"step": 1}', '{"step": 1, "weights": "w", "position": 0, "config": {"seed": "x"}}']
)
def test_what_is_no_checkpoint_is_an_error_with_what_to_do(tmp_path: Path, text: str | None) -> None:
    place = tmp_path / "step-00000001.json"
    if text is not None:
        place.write_text(text)
    with pytest.raises(JobError) as error:
        checkpoint.find(place)
    assert error.value.hint


def test_the_checkpoint_of_another_model_or_dataset_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 3, Model(), ABOUT)
    found = checkpoint.find(tmp_path)
    with pytest.raises(JobError, match="another model"):
        resuming.into_model(found, nn.Linear(2, 2))
    with pytest.raises(JobError, match=r"99 samples.*had 100"):
        resuming.settings(TrainingConfig(), found, 99)
    assert resuming.settings(TrainingConfig(seed=1), found, 100).seed == 4


def test_an_older_checkpoint_is_not_continued_beside_newer_ones(tmp_path: Path) -> None:
    folder = tmp_path / checkpoint.FOLDER
    for step in (3, 6):
        checkpoint.save(folder, step, Model(), ABOUT)
    older = folder / "step-00000003.safetensors"
    with pytest.raises(JobError, match="after step 3"):
        resuming.find(older, tmp_path)
    found = resuming.find(older, tmp_path / "new")
    assert found is not None
    assert found.step == 3
    assert json.loads((folder / "step-00000003.json").read_text())["optimizer"] is None


class Masters(torch.optim.SGD):
    """Keeps float32 weights beside bfloat16 ones, and a table of bytes."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["master"] = torch.full_like(parameter, 1 + 2**-20, dtype=torch.float32)
                state["table"] = torch.full_like(parameter, 201, dtype=torch.uint8)


def test_a_shard_keeps_the_dtype_of_an_entry() -> None:
    layout = plan_layout([4], [1.0], 4)

    def shard() -> OptimizerUpdate:
        update = OptimizerUpdate(layout, lambda group, weights: Masters([weights], lr=0.1))
        update.bind(0, torch.zeros(4))
        return update

    first, second = shard(), shard()
    first.apply(0, torch.ones(4))
    second.load_state(0, first.state(0))
    kept = second.state(0)
    assert {value.dtype for value in kept.values()} == {torch.float32, torch.uint8}
    assert all(torch.equal(value, first.state(0)[name]) for name, value in kept.items())
