"""The list of runs: what it says of each, and opening, comparing and resuming them."""

from __future__ import annotations

from dataclasses import replace

from hetero_tui.ui import format as fmt
from hetero_tui.ui.keys import RUNS, VIEWS
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.views.runs import compared_lines
from remote_agent.states import RunState
from tests.ui.looking import pane_text, resize, rows_of, settle, show, text_of, title_of, toasts


def took(app) -> dict[str, str]:
    """The last column, by run."""
    return {line[2:].split()[0]: line[-11:].strip() for line in rows_of(app)}


async def test_past_runs_are_listed_opened_compared_and_resumed(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.finished()))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot, "5")
        assert [*took(app)] == ["text-7f3", "text-91aa", "text-e2c0", "digits-4b26"]
        await pilot.press("o", "o")
        assert title_of(app, "runs") == "Runs, by loss"
        await settle(app, pilot, "o", "o", "down", "down", "enter")
        assert VIEWS[app.main.number] == "Run"
        assert "■ text-e2c0 stopped at step 1,204" in pane_text(app)
        assert "r resume" in text_of(app, "keys"), "for the run that is shown"
        await pilot.press("escape")
        assert app.main.number == RUNS
        await settle(app, pilot, "space", "down", "space", "c")
        assert title_of(app, "compared") == "text-e2c0 and digits-4b26"
        await settle(app, pilot, "up", "r")
        assert app.intents.asked[-1] == ("resume", "text-e2c0")


async def test_resume_is_about_the_run_that_is_shown_or_marked_or_the_fleets(scenarios, open_app) -> None:
    """The session's own run is another one, which failed."""
    app = open_app(scenarios.listed(scenarios.failed()))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot, "5", "down", "enter")
        opened = app.view().run.run
        assert opened != app.intents.state.run.run
        await settle(app, pilot, "r")
        assert app.intents.asked[-1] == ("resume", opened)
        await settle(app, pilot, "1", "r")
        assert app.intents.asked[-1] == ("resume", "text-7f3")
        asked = len(app.intents.asked)
        await settle(app, pilot, "5", "end", "r")
        assert toasts(app)[-1] == "digits-4b26 is finished. Press t to train anew."
        await settle(app, pilot, "slash", *"zzz", "enter", "r")
        assert toasts(app)[-1] == "No run is marked."
        assert ("resume",) not in [each[:1] for each in app.intents.asked[asked:]]


async def test_the_list_says_how_long_runs_took_and_which_it_may_lack(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.up()))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot, "5")
        assert "does not answer" not in pane_text(app)
        state = app.intents.state
        runs = tuple(replace(run, ended=run.ended + 3000.0, away_s=3000.0) for run in state.runs)
        show(app, replace(state, runs=runs))
        assert [*took(app).values()] == ["9.0 s", "1 min 1 s", "24 s"], (
            "the time in which one was stopped is none of it"
        )
        sweeping = scenarios.sweeping(state, RunState.LOST)
        ended = tuple(replace(run, ended=run.started) if run.script else run for run in sweeping.runs)
        show(app, replace(sweeping, runs=ended))
        assert took(app)["sweep-12ab"] == "n/a", "it ended without a word"
        show(app, scenarios.sweeping(scenarios.training(), host="nas"))
        assert took(app)["sweep-12ab"] == "n/a", "its machine does not answer"
        assert "nas does not answer: its runs may be missing here" in pane_text(app)


async def test_a_long_name_of_a_job_is_whole_somewhere(scenarios, open_app) -> None:
    job = "experiments/vision/segmentation/unet_small.py:UNetSmall"
    state = scenarios.listed(scenarios.up())
    app = open_app(replace(state, runs=tuple(replace(run, job=job) for run in state.runs)))
    async with app.run_test(size=(200, 60)) as pilot:
        for size in ((200, 60), (120, 40), (80, 24)):
            await resize(app, pilot, *size)
            await settle(app, pilot, "5")
            said = " ".join(pane_text(app).split())
            assert said.count(job) == (len(state.runs) if size[0] == 200 else 1)
            assert "HOST" in said or size[0] < 200, "it takes no other column's room"


def test_compared_runs_have_the_speed_of_their_steps_whatever_their_start_took(scenarios) -> None:
    run = scenarios.training().run
    slow_start = replace(run, started=run.started - 3600)
    said = "\n".join(line.plain for line in compared_lines((run, slow_start), 120, 20, DARK))
    assert said.count(fmt.throughput(run.samples_per_second)) == 2
