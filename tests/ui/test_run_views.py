"""The views of one run: its curve, its plan, its faults."""

from __future__ import annotations

from dataclasses import replace

from hetero_tui import events as ev
from hetero_tui.fold import apply
from hetero_tui.state import RunView
from hetero_tui.ui.views.run import zoomed
from remote_agent import protocol
from tests.ui.looking import pane_text, resize, rows_of, settle, show, title_of, toasts

CAUSE = (
    "loss, in forward of Net (/home/me/projects/segmentation/models/unet.py:412): RuntimeError: mat1 and mat2 shapes"
    " cannot be multiplied (32x64 and 128x10); the first samples of the slice are 4711, 12, 899 and 23"
)
HINT = "correct the job's code, or start it with another batch size"


def words_of(app) -> str:
    """What the view shows, its lines joined as one reads them."""
    return " ".join(pane_text(app).split())


def failed(scenarios):
    """The run's failure: it was in the middle of its next step."""
    state = scenarios.listed(scenarios.training())
    end = protocol.RunFailed(
        seq=state.run.last_seq + 1, time=scenarios.NOW, step=1205, host="mercer", cause=CAUSE, hint=HINT
    )
    return apply(state, ev.RunProgressed(run="text-7f3", event=end))


# --- Run -------------------------------------------------------------------------------------------------------------


async def test_the_run_is_drawn_as_a_user_wants_it(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        assert title_of(app, "loss") == "Loss 1.400, all steps"
        await pilot.press("m", "g", "z")
        assert title_of(app, "loss") == "Loss 1.400, the last tenth, smoothed, log scale"
        await pilot.press("z")
        assert app.main.pane.lines("loss").lines[-2].plain.split() == ["1,105", "step", "1,204"]


def test_a_part_of_a_run_is_drawn_of_a_short_one_and_of_one_of_which_few_losses_are_kept(scenarios) -> None:
    short = RunView(run="text-1", job="text", step=6, losses=tuple((step, 1.0) for step in range(1, 7)))
    assert zoomed(short, 0) == short.losses
    assert zoomed(short, 1) == [(5, 1.0), (6, 1.0)]
    assert len(zoomed(short, 2)) == 6
    long = scenarios.training().run
    thinned = replace(long, losses=tuple((step, loss) for step, loss in long.losses if step % 200 == 0))
    assert [step for step, _ in zoomed(thinned, 2)] == [*range(1155, 1205)]


async def test_a_failed_run_failed_after_the_same_step_everywhere_and_why_is_whole_in_its_view(
    scenarios, open_app
) -> None:
    state = failed(scenarios)
    assert "after step 1,204: " in state.log[-1].text
    assert next(run.step for run in state.listed_runs if run.id == "text-7f3") == 1204
    app = open_app(state)

    async def read(run: str):
        return state.run

    app.intents.read_run = read
    async with app.run_test(size=(200, 60)) as pilot:
        for size in ((200, 60), (120, 40), (80, 24)):
            await resize(app, pilot, *size)
            for number in "125":
                await settle(app, pilot, number)
                assert "1,205" not in words_of(app)
                assert number != "1" or "… (2: all of it) r resumes it" in words_of(app)
                assert number != "2" or f"{CAUSE} -> {HINT}" in words_of(app)
        show(app, replace(scenarios.listed(scenarios.up()), run=None))
        await settle(app, pilot, "5", "enter")
        assert f"{CAUSE} -> {HINT}" in words_of(app), "when it is opened later"


# --- Plan ------------------------------------------------------------------------------------------------------------


async def test_the_plan_says_of_each_device_what_it_does_and_why_it_takes_no_part(scenarios, open_app) -> None:
    state = scenarios.training()
    run = state.run
    app = open_app(state)

    def row(host: str) -> list[str]:
        (found,) = [row.split() for row in rows_of(app) if host in row]
        return found[found.index(host) :]

    async with app.run_test(size=(200, 60)) as pilot:
        await settle(app, pilot, "3")
        assert row("mercer")[:5] == ["mercer", "cuda:0", "46%", "64", "1,420/s"]
        for changes, word in (({"alive": False, "drained": True}, "drained"), ({"alive": False}, "lost"),
                              ({"is_coming": True}, "starting"), ({}, "benched")):  # fmt: skip
            workers = (replace(run.workers[0], samples=0, **changes), *run.workers[1:])
            show(app, replace(state, run=replace(run, workers=workers)))
            assert (row("mercer")[3], word in row("mercer")) == ("0", True)
        assert sum(int(word[:-1]) for line in rows_of(app) for word in line.split() if word.endswith("%")) == 100


# --- Faults ----------------------------------------------------------------------------------------------------------


async def test_until_the_cursor_is_moved_the_newest_fault_is_the_marked_one(scenarios, open_app) -> None:
    app = open_app(scenarios.faulty())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        newest = app.intents.state.run.faults[-1]
        rows = app.main.pane.table.rows
        assert rows.marked == str(newest.number)

        def add(number: int) -> None:
            state = app.intents.state
            faults = (*state.run.faults, replace(newest, number=number))
            show(app, replace(state, run=replace(state.run, faults=faults)))

        add(newest.number + 1)
        assert rows.marked == str(newest.number + 1)
        await pilot.press("down", "up")
        add(newest.number + 2)
        assert rows.marked == str(newest.number + 1), "it stays on what a user chose"


async def test_a_fault_is_whole_in_its_row_or_below_the_table(scenarios, open_app) -> None:
    state = scenarios.faulty()
    what = "its process ended, and its host has not answered for 1.1 s since"
    app = open_app(state)
    async with app.run_test(size=(60, 15)) as pilot:
        await pilot.press("4")
        for length in (4, 8, 12):
            faults = tuple(replace(fault, host="h" * length, what=what) for fault in state.run.faults)
            show(app, replace(state, run=replace(state.run, faults=faults)))
            await settle(app, pilot)
            assert "h" * length in app.main.pane.table.rows.marked_line
            assert what in " ".join(app.main.pane.lines("foot").text.split())
        done = "12 samples went to mercer, crosby"
        faults = tuple(replace(fault, done=done) for fault in state.run.faults)
        show(app, replace(state, run=replace(state.run, faults=faults)))
        await resize(app, pilot, 140, 40)
        assert any(done in row for row in rows_of(app))


async def test_no_host_is_brought_back_into_a_run_of_the_past(scenarios, open_app) -> None:
    app = open_app(scenarios.faulty())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot, "5", "down", "enter")
        await settle(app, pilot, "4", "b")
        assert toasts(app)[-1].endswith(" is over. The run under way is text-7f3.")
        assert "bring back" not in [asked[0] for asked in app.intents.asked]
