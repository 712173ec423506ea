"""A figure is the same everywhere, a reason is whole somewhere, an order is not dropped, a word is explained."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hetero_tui import events
from hetero_tui.fold import apply
from hetero_tui.intents import call_for
from hetero_tui.ui.draw.step_time import recent_times, step_time_lines
from hetero_tui.ui.header import header_line
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.screens.help import HelpScreen
from hetero_tui.ui.screens.train import TrainScreen, under_way
from hetero_tui.ui.widgets.lines import Lines
from remote_agent import protocol
from remote_agent.states import RunState

SIZES = [(80, 24), (120, 40), (200, 60)]
CAUSE = (
    "loss, in forward of Net (/home/me/projects/segmentation/models/unet.py:412): RuntimeError: mat1 and mat2 shapes"
    " cannot be multiplied (32x64 and 128x10); the first samples of the slice are 4711, 12, 899 and 23"
)
HINT = "correct the job's code, or start it with another batch size"


def failed(scenarios, step: int = 1205, cause: str = CAUSE, hint: str = HINT):
    """The run's failure: it was in the middle of its next step."""
    state = scenarios.listed(scenarios.training())
    end = protocol.RunFailed(
        seq=state.run.last_seq + 1, time=scenarios.NOW, step=step, host="mercer", cause=cause, hint=hint
    )
    return state, apply(state, events.RunProgressed(run="text-7f3", event=end))


def words_of(app) -> str:
    """What the view shows, its lines joined as one reads them."""
    return " ".join(" ".join(part.text for part in app.main.pane.query(Lines) if part.display).split())


async def test_a_failed_run_is_failed_after_the_same_step_everywhere(scenarios, open_app) -> None:
    before, state = failed(scenarios)
    assert "failed after step 1,204 " in header_line(state, "", scenarios.NOW, None, 200, DARK).plain
    assert state.log[-1].text.startswith("text-7f3 failed on mercer after step 1,204: ")
    assert "after step 1,204: " in call_for(before, state)[1]
    assert next(run.step for run in state.listed_runs if run.id == "text-7f3") == 1204
    app = open_app(state)
    async with app.run_test(size=(200, 60)) as pilot:
        for number in "125":
            await pilot.press(number)
            await app.workers.wait_for_complete()
            app.redraw()
            assert "1,205" not in words_of(app)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_why_a_run_failed_is_whole_in_its_view_now_and_when_it_is_opened_later(size, scenarios, open_app) -> None:
    _, state = failed(scenarios)
    app = open_app(state)
    async with app.run_test(size=size) as pilot:
        assert "… (2: all of it) r resumes it" in words_of(app)
        await pilot.press("2")
        app.redraw()
        assert f"{CAUSE} -> {HINT}" in words_of(app)
        opened = state.run

        async def read(run: str):
            return opened

        app.intents.read_run = read
        app.intents.change(replace(scenarios.listed(scenarios.up()), run=None))
        await pilot.press("5", "enter")
        await app.workers.wait_for_complete()
        app.redraw()
        assert f"{CAUSE} -> {HINT}" in words_of(app)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_jobs_name_is_whole_in_its_line_or_below_the_list(size, scenarios, open_app) -> None:
    job = "experiments/vision/segmentation/unet_small.py:UNetSmall"
    state = scenarios.listed(scenarios.up())
    state = replace(state, runs=tuple(replace(run, job=job) for run in state.runs))
    app = open_app(state)
    async with app.run_test(size=size) as pilot:
        await pilot.press("5")
        await app.workers.wait_for_complete()
        app.redraw()
        said = words_of(app)
        assert said.count(job) == (len(state.runs) if size[0] == 200 else 1)
        assert "HOST" in said or size[0] < 200, "it takes no other column's room"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_plan_says_what_its_times_are(size, scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        await pilot.pause()
        app.redraw()
        said = words_of(app)
        assert "planned before the run, predicted as corrected by its steps, measured lately" in said
        helped = "\n".join(line.plain for line in HelpScreen(app.view).text(app.view(), size[0] - 10))
        for word in ("planned", "predicted", "measured", "fixed", "helps"):
            assert f"\n  {word} " in helped


@pytest.mark.parametrize("busy", ["asking hosts", "probing"])
async def test_a_run_that_is_ordered_while_the_machines_are_looked_at_begins_after_that(
    busy: str, scenarios, open_app
) -> None:
    looked = asyncio.Event()
    app = open_app(scenarios.up(), session={"busy": busy, "gate": looked})
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t")
        assert isinstance(app.screen, TrainScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert ("train", "digits", {}) in app.intents.asked
        assert "the machines are looked at; it goes on when this is hidden" in str(
            app.screen.query_one("#order-foot").render()
        )
        looked.set()
        await app.workers.wait_for_complete()
        assert not isinstance(app.screen, TrainScreen)


@pytest.mark.parametrize("width", [60, 72, 110])
def test_how_far_an_order_is_fits_its_line(width: int, scenarios, open_app) -> None:
    started = events.ClusterChanged(time=scenarios.NOW - 26, state=events.ClusterState.STARTING)
    app = open_app(scenarios.fold(scenarios.fresh(), [started]))
    said = under_way(app.view(), width)
    assert len(said) <= width
    assert said.startswith("◔ cluster 26 s")
    assert said.endswith("; it goes on when this is hidden")
    assert ("Ray starts" in said) is (width > 72)


def test_a_part_of_a_steps_time_that_is_there_is_not_said_to_be_nothing(scenarios) -> None:
    run = scenarios.training().run
    parts = run.recent[-1].workers
    tiny = tuple(replace(part, push_s=1e-5, pull_s=0.0) for part in parts)
    run = replace(run, recent=tuple(replace(step, workers=tiny) for step in run.recent))
    legend = step_time_lines(recent_times(run), 100, 8, DARK)[-1].plain
    assert "push <1%" in legend
    assert "pull 0%" in legend


def test_a_run_that_was_lost_stands_where_its_last_step_was(scenarios) -> None:
    state = apply(scenarios.training(), events.RunChanged(run="text-7f3", job="text", state=RunState.LOST))
    assert "lost after step 1,204" in header_line(state, "", scenarios.NOW, None, 200, DARK).plain


async def test_a_run_that_recovers_has_the_loss_of_the_step_that_it_is_back_at_and_gets_a_new_plan(
    scenarios, open_app
) -> None:
    state = scenarios.listed(scenarios.training())
    before = state.run
    back = protocol.RunResumed(
        seq=before.last_seq + 1, time=scenarios.NOW, step=1200, host="mercer", checkpoint="c", cause="the last worker"
    )
    state = apply(state, events.RunProgressed(run="text-7f3", event=back))
    assert (state.run.step, state.run.loss) == (1200, dict(before.losses)[1200])
    assert [(run.step, run.loss) for run in state.listed_runs if run.id == "text-7f3"] == [(1200, state.run.loss)]
    app = open_app(state)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await pilot.pause()
        app.redraw()
        assert "text-7f3 gets a new plan; workers" in words_of(app)
        await pilot.press("2")
        app.redraw()
        assert "log scale" not in app.main.query_one("#keys", Lines).text, "there is no curve to see"
