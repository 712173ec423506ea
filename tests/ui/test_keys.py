"""Keys: which are offered where, the settings file's own, and what is left of them in an app that only shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero_tui.errors import UsageError
from hetero_tui.events import RunChanged
from hetero_tui.fold import apply
from hetero_tui.recording.replay import Recording, Replay
from hetero_tui.ui.keys import ADD, DEMO, EDIT, FAULTS, FLEET, KEYS, RUN, shown_keys
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.preferences import Preferences, read_preferences
from hetero_tui.ui.replaying import ReplayApp
from hetero_tui.ui.screens.help import HostScreen
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.sentences import keys_line, outcome_line
from remote_agent.states import RunState
from tests.ui.looking import dialog_text, seen, settle, show, text_of, toasts, view_of


def words(state, **about) -> list[str]:
    return [word for _, word, _ in shown_keys(state, "", **about)]


def test_the_keys_shown_are_those_that_make_sense_now(scenarios) -> None:
    assert words(scenarios.empty()) == ["help", "detach"]
    assert words(scenarios.probed())[1] == "accept key"
    training = words(scenarios.training())
    assert ("stop" in training, "train" in training) == (True, False)
    stopped = RunChanged(time=scenarios.NOW, run="text-7f3", job="text", state=RunState.STOPPED)
    assert {"train", "resume"} <= {*words(apply(scenarios.training(), stopped))}
    over = replace(stopped, state=RunState.FAILED)
    for state, is_offered in ((scenarios.faulty(), True), (apply(scenarios.faulty(), over), False)):
        assert ("bring back" in words(state, view=FAULTS)) is is_offered


def test_a_run_that_ended_before_its_first_checkpoint_is_not_offered_to_be_resumed(scenarios) -> None:
    state = scenarios.failed()
    none = replace(state, run=replace(state.run, checkpoint="", checkpoint_step=0))
    for known, offered in ((state, True), (none, False)):
        assert ("r resumes it" in outcome_line(known.run, 200, view_of(known)).plain) is offered
        assert ("resume" in words(known, view=FLEET)) is offered


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_key_line_fits_and_ends_with_how_to_leave(width, scenarios) -> None:
    line = keys_line(shown_keys(scenarios.probed(), ""), width, DARK).plain
    assert len(line) <= width
    assert line.endswith("q detach")


def test_every_mistake_in_a_settings_file_is_told_at_once() -> None:
    document = {"theme": "blue", "redonly": True, "readonly": 1, "keys": {"up": "t"}}
    with pytest.raises(UsageError) as caught:
        read_preferences(document, "s.toml")
    for said in ("'blue' is not one of", "did you mean 'readonly'?", "true or false", "was removed"):
        assert said in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("view", "scenario", "without"),
    [
        ("2", "training", ("filter", "sort")),
        ("2", "starting", ("smooth",)),
        ("2", "up", ("smooth",)),
        ("3", "training", ("sort",)),
        ("6", "training", ("sort",)),
    ],
)
def test_no_view_offers_a_key_that_does_nothing_in_it(view: str, scenario: str, without: tuple[str, ...], scenarios):
    state = getattr(scenarios, scenario)()
    assert not {*without} & {*words(state, view=int(view), run=state.run)}


# --- Everything that names a key -------------------------------------------------------------------------------------


async def everything_said(app, pilot) -> str:
    """The views, the help and the palette, as far as they name keys."""
    said = []
    for number in "123456":
        await pilot.press(number)
        if not isinstance(app, ReplayApp):  # which plays for as long as it is shown
            await app.workers.wait_for_complete()
        app.redraw()
        await pilot.pause()
        said.append(seen(app))
    await pilot.press("1", "question_mark")
    await pilot.pause()
    said.append(str(app.screen.query_one("#text").content))
    await pilot.press("escape")
    said += [entry.title for entry in app.get_system_commands(app.screen)]
    return "\n".join(said)


async def test_an_app_that_only_shows_names_no_key_that_it_refuses_and_changes_nothing(scenarios, open_app) -> None:
    app = open_app(scenarios.up(), preferences=Preferences(readonly=True))
    async with app.run_test(size=(200, 60)) as pilot:
        for state in ("faulty", "failed", "probed", "up", "empty"):
            show(app, getattr(scenarios, state)())
            said = await everything_said(app, pilot)
            changing = [key.help for key in (*KEYS, ADD, EDIT, DEMO) if key.changes and key.help in said]
            assert changing == [], state
            assert "demo" not in said
        show(app, scenarios.training())
        app.intents.asked.clear()
        await pilot.press("1", *"Dudia!sbk")
        assert {*toasts(app)} == {"This app only shows: nothing on the machines is changed."}
        assert isinstance(app.screen, MainScreen)
        assert app.intents.asked == []
        await settle(app, pilot, "c")
        assert not app.screen.query_one("#mend").display
        await settle(app, pilot, "right", "right", "enter")
        assert app.intents.asked == [("check", False)]


async def test_a_recording_names_no_key_that_asks_machines_and_says_why_it_refuses_them(scenarios, tmp_path) -> None:
    state = scenarios.listed(scenarios.failed())
    app = ReplayApp(Replay(Recording(tmp_path, scenarios.NOW, state, (), cut_off=False)))
    async with app.run_test(size=(120, 40)) as pilot:
        said = await everything_said(app, pilot)
        assert not [key.help for key in KEYS if (key.changes or key.asks == key.views) and key.help in said]
        assert "enter opens" not in said
        await pilot.press("1", "p", "c", "l", "5", "enter", "space", "c")
        await pilot.pause()
        assert {*toasts(app)} == {"This is a recording: its machines can't be asked for more."}
        await pilot.press("1", "enter")
        assert isinstance(app.screen, HostScreen)


async def test_a_command_of_another_view_leads_there_and_acts_on_nothing_unseen(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        entries = {entry.title: entry for entry in app.get_system_commands(app.screen)}
        assert {key.word for key in KEYS if key.action != "command_palette"} <= {title.lower() for title in entries}
        for title, view in (("Zoom", RUN), ("Drain", FLEET), ("Log scale", RUN)):
            app.call_later(entries[title].callback)
            await settle(app, pilot)
            assert app.main.number == view
        assert app.intents.asked == []
        assert not app.main.pane.is_logarithmic
        app.call_later(entries["Log scale"].callback)
        await settle(app, pilot)
        assert app.main.pane.is_logarithmic
        await pilot.press("colon", *"probe")
        await app.workers.wait_for_complete()
        await settle(app, pilot, "down", "enter", "enter")
        assert app.intents.asked == [("probe",)]


async def test_below_a_dialog_only_its_own_keys_are_offered(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        before = text_of(app, "keys")
        for key, offered in (("s", "enter choose"), ("question_mark", "up down scroll"), ("enter", "up down scroll"),
                             ("slash", "enter keep"), ("colon", "enter choose")):  # fmt: skip
            await settle(app, pilot, key)
            said = text_of(app, "keys")
            assert (offered in said, "? help" in said, "teardown" in said) == (True, False, False)
            await settle(app, pilot, "escape")
            assert text_of(app, "keys") == before
        show(app, scenarios.up())
        await settle(app, pilot, "t", "question_mark")
        assert app.screen.query_one("#job").value.endswith("?"), "a letter is for its field"
        assert "enter train" in text_of(app, "keys")


async def test_the_key_of_a_dialog_closes_it_and_escape_too(scenarios, open_app) -> None:
    app = open_app(scenarios.up())
    async with app.run_test() as pilot:
        for state, key, closing in (("training", "question_mark", "q"), ("training", "enter", "escape"),
                                    ("up", "t", "escape"), ("training", "D", "q"), ("probed", "k", "q")):  # fmt: skip
            show(app, getattr(scenarios, state)())
            await pilot.press(key)
            assert not isinstance(app.screen, MainScreen)
            if key == "t":  # it has fields
                await pilot.press("q")
                assert dialog_text(app, "mistake") is not None
            await pilot.press(closing)
            assert isinstance(app.screen, MainScreen)
