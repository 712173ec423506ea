"""The form in which a run is ordered: what it takes, what it says of an order, and when it is in the way of nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import Button, Input

from hetero_tui import events
from hetero_tui.errors import ClusterError
from hetero_tui.runs import description
from hetero_tui.state import RunView, State
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.screens.train import TrainScreen, settings_lines, under_way
from hetero_tui.ui.train_form import foot
from hetero_tui.ui.widgets.lines import EventLog
from remote_agent.protocol import RunSummary
from remote_agent.states import RunState
from tests.ui.looking import dialog_text, settle


def fields(app) -> list[str]:
    return [app.screen.query_one(name, Input).value for name in ("#job", "#settings")]


def buttons(app) -> list[str]:
    return [str(button.label) for button in app.screen.query(Button) if button.display]


async def test_enter_trains_the_first_job_and_arrows_and_settings_another(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        await settle(app, pilot, "t", "enter")
        await pilot.press("t", "down")
        app.screen.query_one("#settings", Input).value = "steps=9 --with 'my data'"
        await settle(app, pilot, "enter")
        assert app.intents.asked == [("train", "digits", {}), ("train", "text", {"steps": "9"}, "my data")]


async def test_what_can_not_be_trained_is_said_in_the_form_until_something_is_typed(scenarios, open_app) -> None:
    app = open_app(scenarios.up(), session={"failure": scenarios.refused()})
    async with app.run_test() as pilot:
        await pilot.press("t")
        app.screen.query_one("#settings", Input).value = "steps"
        await pilot.press("enter")
        assert "“steps” is not key=value" in dialog_text(app, "mistake")
        app.screen.query_one("#settings", Input).value = ""
        app.screen.query_one("#job", Input).value = "digit"
        await settle(app, pilot, "enter")
        assert "did you mean 'digits'?" in dialog_text(app, "mistake")
        assert app.intents.asked == []
        await settle(app, pilot, "end", "s", "enter")
        assert app.intents.asked == [("train", "digits", {})]
        assert str(scenarios.refused()).split()[0] in dialog_text(app, "mistake"), "the session refused it"
        await settle(app, pilot, "x")
        assert dialog_text(app, "mistake") == ""
        await pilot.press("escape")
        assert isinstance(app.screen, MainScreen)
        app.intents.mistakes_in = lambda *_: ("--set xx: no such setting",)
        await settle(app, pilot, "t", "enter")
        assert dialog_text(app, "mistake") == "xx: no such setting"


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40)], ids=str)
async def test_a_long_refusal_is_whole_in_the_form_or_it_says_where_it_is(scenarios, open_app, size) -> None:
    cause = "the model does not fit: " + "its layers need more memory than any of the machines has, " * 8
    app = open_app(scenarios.up(), session={"failure": scenarios.refused(cause)})
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot, "t", "enter")
        shown = app.screen.query_one("#mistake")
        said = str(shown.content)
        assert said.endswith("the events have all of it" if size == (60, 15) else "check its cable")
        assert shown.size.height == said.count("\n") + 1
        assert app.screen.query_one("#train").region.bottom <= size[1] - 1, "the buttons are on the screen"
        await settle(app, pilot, "escape")
        assert "check its cable" in " ".join(app.main.query_one("#events", EventLog).text.split())


async def test_an_order_can_be_hidden_and_the_form_takes_no_key_until_it_is_answered(scenarios, open_app) -> None:
    gate = asyncio.Event()
    app = open_app(scenarios.up(), session={"gate": gate, "failure": scenarios.refused()})
    async with app.run_test() as pilot:
        await pilot.press("t", "tab")
        app.screen.query_one("#settings", Input).value = "seed=1"
        assert buttons(app) == ["[ Cancel ]", "[ Train ]"]
        await pilot.press("enter", "2", "backspace", "down", "enter")
        await pilot.pause()
        assert (fields(app), app.intents.asked) == (["digits", "seed=1"], [("train", "digits", {"seed": "1"})])
        assert buttons(app) == ["[ Hide ]"]
        assert "it goes on when this is hidden" in dialog_text(app, "order-foot")
        gate.set()
        await settle(app, pilot)
        assert buttons(app) == ["[ Cancel ]", "[ Train ]"], "it was refused, and can be given again"
        await pilot.press("end", "4")
        assert fields(app) == ["digits", "seed=14"], "it can be changed where it was left"


@pytest.mark.parametrize("hides", [False, True])
async def test_an_order_while_machines_are_looked_at_begins_after_that_hidden_too(hides, scenarios, open_app) -> None:
    looked = asyncio.Event()
    error = ClusterError("the ledger is locked", step="train")
    app = open_app(scenarios.up(), session={"busy": "probing", "gate": looked, "failure": error if hides else None})
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t", "enter")
        await pilot.pause()
        assert app.intents.asked == [("train", "digits", {})]
        assert "the machines are looked at" in dialog_text(app, "order-foot")
        if hides:
            await pilot.press("escape")
            assert isinstance(app.screen, MainScreen)
        looked.set()
        await settle(app, pilot)
        assert not isinstance(app.screen, TrainScreen)
        assert not hides or "the ledger is locked" in app.view().notes[-1].text


@pytest.mark.parametrize("width", [60, 72, 110])
def test_how_far_an_order_is_fits_its_line(width: int, scenarios, open_app) -> None:
    started = events.ClusterChanged(time=scenarios.NOW - 26, state=events.ClusterState.STARTING)
    said = under_way(open_app(scenarios.fold(scenarios.fresh(), [started])).view(), width)
    assert len(said) <= width
    assert said.startswith("◔ cluster 26 s")
    assert said.endswith("; it goes on when this is hidden")


def test_the_time_that_a_run_would_take_is_that_of_its_own_number_of_steps(scenarios, monkeypatch) -> None:
    run = RunSummary(
        id="digits-1", job="digits", state=RunState.STOPPED, step=50, loss=1.0, started=0.0, ended=100.0,
        iterations=20_000, parameters=10,
    )  # fmt: skip
    state = replace(scenarios.up(), runs=(run,))
    monkeypatch.setattr(description, "chosen_by", lambda job: {"epochs": "3", "num_iterations": "100"})
    assert "about" not in foot(state, "digits", {}), "the job counts epochs"
    assert "about 33 min" in foot(state, "digits", {"num_iterations": "1000"}), "which that replaces"
    monkeypatch.undo()
    assert "about 5 min of steps" in foot(state, "digits", {})  # the job's own number: 150 steps of 2 s
    assert "about" not in foot(state, "digits", {"epochs": "3"})
    listed = replace(scenarios.up(), runs=(replace(run, step_s=0.1),))
    assert "about 15 s of steps, 10 parameters" in foot(listed, "digits", {}), "as its steps were measured"


@pytest.mark.parametrize("given", [{"depth": "48"}, {"quantize": "nf4"}, {"batch_size": "9"}, {"bs": "8"}])
def test_the_form_says_neither_size_nor_time_of_another_model_or_of_other_steps(given, scenarios) -> None:
    state = scenarios.training()
    run = state.run
    known = foot(state, run.job, {})
    assert f"{run.parameters:,} parameters" in known
    assert "about " in known
    assert "about" not in foot(state, run.job, given)
    assert foot(state, run.job, {"lr": "0.1", "seed": "3", "checkpoint_every": "9"}) == known


def test_of_a_settings_help_only_whole_clauses_are_shown() -> None:
    for width, shown in ((60, False), (140, True)):
        lines = [line.plain for line in settings_lines(SimpleNamespace(palette=DARK), "digits", "", width)]
        assert not [line for line in lines if "…" in line]
        row = next(line for line in lines if line.startswith("batch_size"))
        assert row.rstrip().endswith("samples of one step, over all devices together") is shown


@given(st.integers(20, 120))
def test_the_foot_of_the_train_form_is_cut_at_no_word(width) -> None:
    run = RunView(run="text-1", job="text", step=10, parameters=40_602)
    whole = foot(State(cluster="lab", run=run), "text", {"num_iterations": "9"})
    said = foot(State(cluster="lab", run=run), "text", {"num_iterations": "9"}, width)
    assert whole.startswith(said)
    assert whole[len(said) :] == "" or whole[len(said) :].startswith(", ")
    assert len(said) <= max(width, len("0 of 0 hosts ready"))
