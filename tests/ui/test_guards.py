"""Why a key does nothing now: the first reason that holds, as a sentence. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero_tui.events import HostKeyOffered
from hetero_tui.fold import apply
from hetero_tui.intents import BUSY
from hetero_tui.state import State
from hetero_tui.ui.guards import DOWN, KEY, RESUME, STOP, TRAIN, UP, back_refusal, drain_refusal, offering, refusal
from hetero_tui.ui.keys import KEYS
from remote_agent.states import RunState
from tests.ui import scenarios
from tests.ui.looking import view_of


@pytest.mark.parametrize(
    ("action", "state", "busy", "said"),
    [
        (STOP, scenarios.training(), BUSY, "The inventory is still being read."),
        (STOP, scenarios.training(), "stopping", None),
        (STOP, scenarios.empty(), "", "No run is going on. Press t to train."),
        (UP, scenarios.empty(), "", "The inventory has no machines yet."),
        (KEY, scenarios.probed(), "probing", None),
        (KEY, scenarios.training(), "", "No machine offers a new host key."),
        (DOWN, scenarios.training(), "stopping", "The teardown is under way."),
        (DOWN, scenarios.training(), "probing", None),
        (UP, scenarios.fresh(), "probing", "Still probing. Wait until that is done."),
        (UP, scenarios.up(), "", "The cluster is up on every machine already."),
        (TRAIN, scenarios.up(), "", None),
        (TRAIN, scenarios.training(), "", "text-7f3a is still training. Press s to stop it first."),
        (RESUME, scenarios.training(), "", "text-7f3a is still training."),
        (RESUME, scenarios.torn_down(), "", None),
        (TRAIN, scenarios.empty(), "", "The inventory has no machines yet."),
        ("probe", scenarios.probed(), "probing", "Still probing. Wait until that is done."),
    ],
)
def test_the_first_reason_that_holds_is_said(action: str, state: State, busy: str, said: str | None) -> None:
    run = state.run.run if state.run is not None else ""
    assert refusal(action, view_of(state, busy)) == (said and said.replace("text-7f3a", run))


@pytest.mark.parametrize("word", [RunState.RUNNING, RunState.STOPPING, RunState.STARTING])
def test_a_run_that_does_not_train_is_not_said_to_train(word: RunState) -> None:
    state = scenarios.starting() if word is RunState.STARTING else scenarios.training()
    state = replace(state, run=replace(state.run, state=word))
    doing = {RunState.RUNNING: "still training"}.get(word, word.value)
    for action in (TRAIN, RESUME):
        assert str(refusal(action, view_of(state))).startswith(f"text-7f3 is {doing}.")


def test_a_refusal_names_only_keys_that_there_are() -> None:
    view = view_of(scenarios.training())
    some = replace(view, keys=tuple(key for key in KEYS if key.action != "stop"))
    assert refusal("train", some) == "text-7f3 is still training."


def test_a_paused_host_can_be_drained_and_a_drained_one_and_the_last_one_can_not() -> None:
    view = view_of(scenarios.faulty())
    assert drain_refusal(view, "nas") is None
    assert drain_refusal(view, "pi") == "pi does not take part in text-7f3."
    assert drain_refusal(view, "crosby") == "crosby is drained already."
    assert drain_refusal(view, "mercer") == "mercer is the last machine that trains. Press s to stop the run."


@pytest.mark.parametrize(
    ("run", "said"),
    [("digits-4b26", "digits-4b26 is finished. Press t to train anew."), ("text-e2c0", None), ("text-none", None)],
)
def test_only_a_run_that_is_known_to_be_finished_is_not_resumed(run: str, said: str | None) -> None:
    assert refusal(RESUME, view_of(scenarios.torn_down()), run) == said
    assert refusal(RESUME, view_of(scenarios.finished()), "text-7f3") == "text-7f3 is finished. Press t to train anew."


def test_what_has_no_run_can_neither_leave_nor_come_back() -> None:
    for state in (scenarios.up(), scenarios.finished()):
        assert drain_refusal(view_of(state), "nas") == "No run is going on, so there is nothing to leave."
        assert back_refusal(view_of(state), "nas") == "No run is going on. Press t to train."


def test_a_host_that_takes_part_needs_not_be_brought_back() -> None:
    state = scenarios.training()
    assert back_refusal(view_of(state), "mercer") == "mercer takes part already."
    assert back_refusal(view_of(state), "unheard-of") == "There is no machine to bring back."
    assert back_refusal(view_of(state), None) == "There is no machine to bring back."
    assert drain_refusal(view_of(state), None) == "There is no machine to drain."


def test_of_several_offered_keys_the_marked_hosts_is_asked_about_else_the_first() -> None:
    state = scenarios.probed()
    for name in ("macbook", "nas"):
        state = apply(state, HostKeyOffered(host=name, fingerprint=scenarios.FINGERPRINT))
    asked = [offering(state, marked) for marked in ("macbook", "nas", "mercer", None)]
    assert [host.name for host in asked if host is not None] == ["macbook", "nas", "macbook", "macbook"]
    assert offering(scenarios.fresh(), "macbook") is None
