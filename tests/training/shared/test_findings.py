"""What follows from how a job's loss adds up: what is refused, and how the batch is cut for the rest. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from remote_agent.planning import units
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared.findings import Findings, about, differs, is_watched, kinds_apart, settle


def config(**settings: Any) -> TrainingConfig:
    return TrainingConfig(batch_size=64, **settings)


@pytest.mark.parametrize("name", ["summed", "together", "state", "hidden", "data", "unsteady", "batch_statistics"])
def test_what_one_device_finds_holds_for_all(name: str) -> None:
    found = Findings(**{name: True if name in ("summed", "unsteady", "batch_statistics") else "why"})
    assert found | Findings() == Findings() | found == found
    assert Findings() | Findings() == Findings()


@pytest.mark.parametrize(
    ("settings", "found", "refused"),
    [
        ({}, Findings(hidden="a counter"), "a counter changes with every call of loss"),
        ({"unit": 64}, Findings(hidden="a counter"), "a counter changes with every call of loss"),
        ({"unit": 64}, Findings(data="the same samples are others"), "the same samples are others"),
        ({"deterministic": True}, Findings(unsteady=True), "deterministic=true can't hold"),
        ({}, Findings(unsteady=True), ""),
        ({}, Findings(state="state"), "state"),
        ({"unit": 63}, Findings(state="state"), "state"),
        ({"unit": 64}, Findings(state="state"), ""),
        ({}, Findings(together="together"), "together"),
        ({"unit": 16}, Findings(together="together"), ""),
        ({"loss_reduction": "mean"}, Findings(together="together"), ""),
        ({}, Findings(), ""),
    ],
)
def test_a_batch_that_can_not_be_cut_is_refused_unless_the_user_said_how(
    settings: dict[str, Any], found: Findings, refused: str
) -> None:
    if not refused:
        assert settle(config(**settings), found, (), devices=3)
        return
    with pytest.raises(JobError, match=refused):
        settle(config(**settings), found, (), devices=3)


@pytest.mark.parametrize(("carried", "hint"), [(True, "begin each batch anew"), (False, "make it a buffer")])
def test_a_hidden_state_of_the_batch_before_is_no_buffer(carried: bool, hint: str) -> None:
    with pytest.raises(JobError) as error:
        settle(config(), Findings() | Findings(hidden="model.hidden", carried=carried), (), devices=2)
    assert error.value.hint.startswith(hint)


def test_a_parameter_that_the_code_changes_itself_is_named_the_first_of_them() -> None:
    with pytest.raises(JobError, match="the trained parameter a, and such a change would be lost"):
        settle(config(), Findings(), ("b", "a"), devices=1)


@pytest.mark.parametrize(
    ("wanted", "summed", "settled"),
    [("auto", True, "sum"), ("auto", False, "mean"), ("mean", True, "mean"), ("sum", False, "sum")],
)
def test_a_loss_is_what_was_found_unless_it_was_set(wanted: str, summed: bool, settled: str) -> None:
    assert settle(config(loss_reduction=wanted), Findings(summed=summed), (), devices=2).loss_reduction == settled


def test_samples_that_have_to_be_together_are_in_units_that_fit_into_each_device() -> None:
    usual = units.default_unit(64, 3)
    normalised = Findings(batch_statistics=True)
    assert settle(config(), Findings(), (), devices=3).unit == 0
    assert settle(config(), normalised, (), devices=3).unit == usual
    assert settle(config(deterministic=True), Findings(), (), devices=3).unit == usual
    assert settle(config(), normalised, (), devices=3, room=2).unit == 2
    assert settle(config(), normalised, (), devices=3, room=1000).unit == usual
    assert settle(config(unit=5), normalised, (), devices=3, room=2).unit == 5, "as it was set"


@pytest.mark.parametrize(
    ("settings", "watched"),
    [({}, True), ({"unit": 4}, False), ({"loss_reduction": "mean"}, False), ({"deterministic": True}, False)],
)
def test_a_loss_is_watched_where_the_user_did_not_say_what_it_is(settings: dict[str, Any], watched: bool) -> None:
    assert is_watched(config(**settings)) is watched


def test_the_plan_says_how_the_batch_is_cut_and_why() -> None:
    assert about(config(), Findings(notes=("a note",))) == ("a note",)
    assert about(config(loss_reduction="sum"), Findings()) == (
        "the loss adds its samples up: gradients are added up, not averaged",
    )
    (whole,) = about(config(unit=64), Findings())
    assert whole.startswith("unit=batch_size: each step's batch is undivided")
    (normalised,) = about(config(unit=63), Findings(batch_statistics=True))
    assert normalised.startswith("unit=63: batch normalisation sees groups of 63 samples")
    (together,) = about(config(unit=8), Findings())
    assert together.startswith("unit=8: all that depends on which samples are together sees groups of 8 samples")
    assert about(config(deterministic=True), Findings())[-1].startswith("deterministic: each unit's gradient")


def test_groups_that_batch_normalisation_sees_are_told_where_the_user_did_not_ask_for_them() -> None:
    found = Findings(batch_statistics=True)
    settled = settle(config(), found, (), devices=2)
    assert differs(config(), settled, found).startswith(
        f"batch normalisation sees groups of {settled.unit} samples, not"
    )
    assert not differs(config(unit=8), settled, found)
    assert not differs(config(), config(unit=64), found)
    assert not differs(config(), settle(config(deterministic=True), Findings(), (), devices=2), Findings())


def test_a_gradient_that_differs_a_little_is_told_of_where_the_batch_is_divided() -> None:
    found = Findings() | Findings(apart=3e-5)
    assert "by 3e-05 of it" in differs(config(), settle(config(), found, (), devices=2), found)
    assert not differs(config(unit=64), settle(config(unit=64), found, (), devices=2), found)
    assert not differs(config(), config(), Findings())


def test_a_loss_that_no_device_could_check_is_told_of_where_batches_have_several_samples() -> None:
    unchecked = Findings(unchecked=True)
    assert (unchecked | unchecked).unchecked
    assert not (unchecked | Findings()).unchecked, "another device had the memory"
    (said,) = about(config(), unchecked)
    assert "loss_reduction" in said
    assert about(TrainingConfig(batch_size=1), unchecked) == about(config(), Findings()) == ()


def test_deterministic_on_devices_of_two_kinds_is_told() -> None:
    exact = config(deterministic=True)
    assert "cpu and cuda" in kinds_apart(exact, ["cuda:0", "cpu", "cuda:1"])
    assert not kinds_apart(exact, ["cuda:0", "cuda:1"])
    assert not kinds_apart(config(), ["cuda:0", "cpu"])
