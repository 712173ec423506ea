"""What a run that goes on from a checkpoint says of itself."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from remote_agent.goals import Watched
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.checkpoint.checkpoint import Checkpoint
from remote_agent.training.checkpoint.optimizer_state import Resumption, TrainingState, kind_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import resuming, snapshots
from remote_agent.training.shared import flat, rpc


def checkpoint_of(config: TrainingConfig, watched: Watched = ()) -> Checkpoint:
    return Checkpoint(path=Path("step-5"), step=5, position=40, seed=0, config=asdict(config), watched=watched)


def test_the_schedulers_state_is_for_a_run_with_the_same_settings() -> None:
    config = TrainingConfig(num_iterations=50)
    found = replace(checkpoint_of(config), schedule={"last_epoch": 5})
    assert resuming.scheduler_state(found, config) == {"last_epoch": 5}
    assert resuming.scheduler_state(found, replace(config, num_iterations=80)) is None, "its shape is another one"
    assert resuming.scheduler_state(None, config) is None


def test_settings_that_changed_are_said() -> None:
    found = checkpoint_of(TrainingConfig(learning_rate=1e-3))
    same = resuming.notes(found, TrainingConfig(learning_rate=1e-3), TrainingState(), 2)
    assert same == ()
    changed = TrainingConfig(learning_rate=5e-4, num_iterations=900)
    assert resuming.notes(found, changed, TrainingState(), 2) == (
        "num_iterations is 900, it was 100",
        "learning_rate is 0.0005, it was 0.001",
    )


def test_steps_that_follow_from_the_epochs_are_no_setting_that_changed() -> None:
    """The rounds of ``local_sgd`` are estimated from the devices' speeds, which are measured anew."""
    found = checkpoint_of(TrainingConfig(epochs=4, num_iterations=13))
    assert resuming.notes(found, TrainingConfig(epochs=4, num_iterations=12), TrainingState(), 2) == ()
    longer = resuming.notes(found, TrainingConfig(epochs=6, num_iterations=19), TrainingState(), 2)
    assert longer == ("epochs is 6, it was 4",)


def test_figures_of_another_metric_are_left_out_and_that_is_said() -> None:
    losses = checkpoint_of(TrainingConfig(), ((3, 2.3), (5, 1.9)))
    same, other = TrainingConfig(keep_best="min:val_loss"), TrainingConfig(keep_best="max:accuracy")
    assert resuming.watched(losses, same) == losses.watched
    assert not any("evaluations" in note for note in resuming.notes(losses, same, TrainingState(), 2))
    assert resuming.watched(losses, other) == ()
    assert resuming.watched(None, other) == ()
    assert "the evaluations before are left out: they were compared by val_loss" in resuming.notes(
        losses, other, TrainingState(), 2
    )


def test_the_same_metric_in_the_other_direction_is_another_one() -> None:
    found = checkpoint_of(TrainingConfig(keep_best="min:score"), ((5, 1.9),))
    assert resuming.watched(found, TrainingConfig(keep_best="max:score")) == ()


@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd"])
def test_the_state_of_another_kind_of_optimizer_is_left_out_and_that_is_said(tmp_path: Path, strategy: str) -> None:
    model = nn.Linear(2, 1)
    plain, centered = (torch.optim.RMSprop(model.parameters(), centered=each) for each in (False, True))
    first, second, third = ({"weight": {"square_avg": torch.ones(1, 2), "ema": torch.ones(1, 2)}} for _ in range(3))
    config = TrainingConfig(strategy=strategy)
    about = {"position": 1, "config": asdict(config), "optimizer_kind": kind_of(plain)}
    checkpoint.save(tmp_path, 3, model, about, TrainingState(optimizer=first, inner=(second, third)))
    found = checkpoint.find(tmp_path)
    assert resuming.usable(config, found, kind_of(plain)).optimizer
    assert resuming.usable(config, found).optimizer
    for other in (centered, torch.optim.Adam(model.parameters())):
        state = resuming.usable(config, found, kind_of(other))
        assert ([*state.optimizer["weight"]], state.inner) == (["ema"], ())  # the weights' average stays
        said = f"the checkpoint is of RMSprop, and the job's optimizer is {kind_of(other)} now"
        assert f"the optimizer starts afresh: {said}" in resuming.notes(found, config, state, 2)
    assert kind_of(centered) == "RMSprop with centered"


@pytest.mark.parametrize("freezes", [True, False])
def test_an_optimizer_starts_afresh_where_other_parameters_are_trained_than_in_the_checkpoint(
    tmp_path: Path, freezes: bool
) -> None:
    all_, some = nn.Linear(2, 1), nn.Linear(2, 1)
    some.bias.requires_grad_(requires_grad=False)
    before, now = (all_, some) if freezes else (some, all_)
    config = TrainingConfig(ema_decay=0.9)
    about = {"position": 1, "config": asdict(config), "trained": flat.trained_as(before)}
    remembered = {name: {"exp_avg": torch.ones_like(each)} for name, each in flat.trained(before).items()}
    checkpoint.save(tmp_path, 3, before, about, TrainingState(optimizer=remembered))
    found = checkpoint.find(tmp_path)
    assert resuming.usable(config, found, "", flat.trained_as(before)).optimizer
    state = resuming.usable(config, found, "", flat.trained_as(now))
    assert not state.optimizer
    said = "other parameters were trained before (requires_grad); so does the weights' average"
    assert f"the optimizer starts afresh: {said}" in resuming.notes(found, config, state, 2)


@pytest.mark.parametrize("inner", [False, True])
def test_workers_with_optimizers_of_their_own_do_not_get_the_servers_state(
    inner: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Resumption] = []
    monkeypatch.setattr(rpc, "put", lambda value: value)
    monkeypatch.setattr(rpc, "get_all", lambda calls, seconds: calls)
    worker: Any = SimpleNamespace(call=lambda method, value: given.append(value))
    servers: Any = SimpleNamespace(restore=lambda resumed: resumed)
    states = {"weight": {"momentum_buffer": torch.ones(2)}}
    resumed = Resumption(step=3, state=TrainingState(optimizer=states))
    snapshots.restore(servers, [worker, worker], resumed, inner=inner)
    assert [each.state.optimizer for each in given] == [{} if inner else states] * 2
