"""The six views, driven by keys: an app start checks several things, as starting takes most of the time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC

import pytest
from rich.cells import cell_len
from textual.widgets import Input, Static

from hetero_tui import events as ev
from hetero_tui.errors import InventoryError, UsageError
from hetero_tui.events import ClusterState, HostState
from hetero_tui.faults import LOST, NEW_PLAN
from hetero_tui.fold import apply
from hetero_tui.intents import call_for
from hetero_tui.launcher import changes_of
from hetero_tui.state import FIRST_STEP, WORKERS, Behind, Fault, Phase, RunView
from hetero_tui.ui import format as fmt
from hetero_tui.ui.app import HeteroApp
from hetero_tui.ui.draw.phases import catching_up_words, phases_lines, start_title
from hetero_tui.ui.header import header_line
from hetero_tui.ui.keys import RUNS, VIEWS
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.preferences import Preferences, read_preferences
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.view import View
from hetero_tui.ui.views.logs import log_lines
from hetero_tui.ui.views.plan import _cells as plan_cells
from hetero_tui.ui.views.plan import helps, reasons_lines
from hetero_tui.ui.views.plan import title_of as title_of_plan
from hetero_tui.ui.views.run import zoomed
from hetero_tui.ui.views.runs import compared_lines
from hetero_tui.ui.widgets.lines import Lines
from remote_agent import protocol
from remote_agent.planning import verdicts
from remote_agent.protocol import PlanMade
from remote_agent.states import RunState


def text_of(app) -> str:
    """What the view shows, panel by panel."""
    return "\n".join(part.text for part in app.main.pane.query(Lines) if part.display)


def seen(app) -> str:
    """All characters of the screen as they are painted."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def title_of(app, name: str) -> str:
    return str(app.main.pane.query_one(f"#{name}").border_title)


def toasts(app) -> list[str]:
    return [notification.message for notification in app._notifications]


async def test_the_views_are_reached_by_number_and_escape_leads_back_to_the_fleet(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.training()))
    async with app.run_test(size=(120, 40)) as pilot:
        headers = set()
        for number in VIEWS:
            await pilot.press(str(number))
            assert app.main.number == number
            headers.add(app.main.query_one("#status", Lines).text)
        assert len(headers) == 1
        await pilot.press("escape")
        assert app.main.number == 1
        await pilot.press("colon", *"faults")
        await app.workers.wait_for_complete()
        await pilot.press("down", "enter", "enter")
        await pilot.pause()
        assert VIEWS[app.main.number] == "Faults"
        await pilot.click("#tabs", offset=(24, 0))
        await pilot.pause()
        assert VIEWS[app.main.number] == "Plan"


async def test_the_run_is_drawn_as_a_user_wants_it(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        assert title_of(app, "loss") == "Loss 1.400, all steps"
        await pilot.press("m", "g", "z")
        assert title_of(app, "loss") == "Loss 1.400, the last tenth, smoothed, log scale"
        await pilot.press("z")
        assert app.main.pane.query_one("#loss", Lines).lines[-2].plain.split() == ["1,105", "step", "1,204"]


async def test_before_the_first_step_the_start_is_shown_part_by_part_with_its_seconds(scenarios, open_app) -> None:
    app = open_app(scenarios.starting())
    async with app.run_test(size=(120, 40)) as pilot:
        for view in "12":
            await pilot.press(view)
            said = text_of(app)
            assert "✔ cluster                 11 s" in said
            assert "✔ coordinator            6.0 s" in said
            assert "◔ workers                 12 s" in said
            assert "first step in about 6 s" in said
        assert "starting: workers 12 s" in app.main.query_one("#status", Lines).text


async def test_while_a_history_is_read_every_view_says_how_far_and_shows_nothing_of_it(scenarios, open_app) -> None:
    state = scenarios.faulty()
    run = state.run
    behind = replace(run, step=1204, behind=Behind(seq=run.last_seq + 1, step=3000))
    app = open_app(replace(state, run=behind))
    words = "catching up: step 1,204 of 3,000"
    async with app.run_test(size=(120, 40)) as pilot:
        assert words in app.main.query_one("#status", Lines).text
        for view in "1234":
            await pilot.press(view)
            said = text_of(app)
            assert words in said
            assert "no step yet" not in said
        await pilot.press("1", "s")
        await pilot.pause()
        assert "with a checkpoint" in str(app.screen.query_one("#text", Static).render())


def test_a_history_without_a_step_is_not_counted_in_steps() -> None:
    run = RunView(run="text-1", job="text")
    assert catching_up_words(run, Behind(seq=3, step=0)) == "catching up"
    assert catching_up_words(run, Behind(seq=90, step=80)) == "catching up: step 0 of 80"


def test_the_time_to_the_first_step_never_counts_up(scenarios) -> None:
    """On a loaded computer a part takes longer than those before it let expect, and when it ends is not known."""
    said = [
        phases_lines(scenarios.starting(), scenarios.NOW + later, 80, DARK)[-1].plain.strip()
        for later in (0.0, 1.0, 5.0, 60.0)
    ]
    late = "longer than usual; then about 3 s to the first step"
    assert said == ["first step in about 6 s", "first step in about 5 s", late, late]


def test_a_first_step_takes_at_least_as_long_as_the_plan_says(scenarios) -> None:
    state = scenarios.starting()
    began = scenarios.NOW
    phases = (*(replace(each, ended=began) for each in state.run.phases), Phase(name=FIRST_STEP, began=began))
    plan = PlanMade(seq=9, time=began, strategy="sync", shares=(), predicted_step_s=40.0)
    state = replace(state, run=replace(state.run, phases=phases, plan=plan))
    said = [phases_lines(state, began + later, 80, DARK)[-1].plain.strip() for later in (0.0, 30.0, 60.0)]
    assert said == ["first step in about 40 s", "first step in about 10 s", "longer than usual"]


@pytest.mark.parametrize(
    ("changes", "word", "title"),
    [
        ({}, "starting", "Start"),
        ({"history": 90}, "resuming", "Resume"),
        ({"step": 40, "superseded": 1}, "recovering", "Recovery"),
        ({"step": 40, "superseded": 1, "faults": (NEW_PLAN, None)}, "replanning", "New plan"),
        ({"step": 40, "superseded": 1, "faults": (NEW_PLAN, 9.0)}, "recovering", "Recovery"),
        ({"step": 40, "superseded": 1, "faults": (LOST, None)}, "recovering", "Recovery"),
    ],
)
def test_a_run_that_is_started_again_is_said_to_be_resumed_or_to_recover(scenarios, changes, word, title) -> None:
    state = scenarios.starting()
    if "superseded" in changes:
        changes = changes | {"superseded": scenarios.training().run.recent[-1]}
    if "faults" in changes:
        what, back = changes["faults"]
        row = Fault(number=1, time=1.0, step=40, host="nas", worker="", word=what, what="", back=back)
        changes = changes | {"faults": (row,)}
    state = replace(state, run=replace(state.run, **changes))
    assert f"{word}: workers 12 s" in header_line(state, "", scenarios.NOW, None, 120, DARK).plain
    assert start_title(state) == title


def test_a_cluster_that_is_started_after_a_run_has_ended_promises_no_step_of_it(scenarios) -> None:
    state = replace(scenarios.torn_down(), cluster_phase=Phase(name="cluster", began=scenarios.NOW - 3))
    said = [line.plain.split()[:2] for line in phases_lines(state, scenarios.NOW, 80, DARK)]
    assert (start_title(state), said) == ("Start", [["◔", "cluster"]])


def test_a_start_that_takes_minutes_is_seen_to_go_on_every_second(scenarios) -> None:
    for later in (60, 61):
        view = scenarios.starting(), scenarios.NOW + later
        words = f"1 min {later - 48} s"
        assert words in phases_lines(*view, 80, DARK)[2].plain
        assert words in header_line(view[0], "", view[1], None, 120, DARK).plain


def test_a_run_that_is_started_again_does_not_wait_for_its_coordinator(scenarios) -> None:
    state = scenarios.starting()
    again = replace(state.run, phases=(Phase(name=WORKERS, began=scenarios.NOW - 3),))
    said = [line.plain for line in phases_lines(replace(state, run=again, cluster_phase=None), scenarios.NOW, 80, DARK)]
    assert not [line for line in said if "coordinator" in line]
    assert "· first step" in said[2]


async def test_while_the_cluster_starts_no_key_is_offered_that_would_be_refused(scenarios, open_app) -> None:
    state = apply(scenarios.probed(), ev.ClusterChanged(time=scenarios.NOW - 7, state=ClusterState.STARTING))
    app = open_app(state, session={"busy": "starting"})
    async with app.run_test(size=(80, 24)):
        said = app.main.query_one("#idle", Lines).text
        assert "cluster 7 s: Ray starts on every machine" in said
        assert "start the cluster" not in said


async def test_the_plan_says_who_does_how_much_and_why(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("3")
        assert title_of(app, "plan") == "text-7f3: sync, a step predicted 250 ms, measured 248 ms (-1%)"
        row = app.main.pane.table.rows.lines[0].plain.split()
        assert row[1:6] == ["mercer", "cuda:0", "46%", "64", "1,420/s"]
        assert "A step is link-bound: macbook" in text_of(app)


async def test_while_a_run_is_resumed_neither_its_former_plan_nor_its_former_workers_are_shown(
    scenarios, open_app
) -> None:
    state = scenarios.failed()
    seq = state.run.last_seq
    back = protocol.RunResumed(seq=seq + 1, time=scenarios.NOW, step=1000, host="mercer", checkpoint="/c")
    begun = replace(state.run, state=RunState.STARTING, ended=None)
    state = apply(replace(state, run=begun), ev.RunProgressed(run="text-7f3", event=back))
    app = open_app(state)
    async with app.run_test(size=(120, 40)) as pilot:
        assert "lost, tried again" not in text_of(app)
        await pilot.press("3")
        await pilot.pause()
        assert "text-7f3 gets a new plan; workers" in text_of(app)
        plan = replace(state.run.plan, seq=seq + 2, time=scenarios.NOW)
        app.intents.change(apply(state, ev.RunProgressed(run="text-7f3", event=plan)))
        app.redraw()
        assert title_of(app, "plan").startswith("text-7f3: sync, a step predicted")


async def test_the_plan_also_shows_who_joined_later(scenarios, open_app) -> None:
    state = scenarios.training()
    run = state.run
    first = replace(run.plan, shares=tuple(share for share in run.plan.shares if share.host != "crosby"))
    app = open_app(replace(state, run=replace(run, plan=first)))
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("3")
        await pilot.pause()
        lines = [line.plain.split() for line in app.main.pane.table.rows.lines]
        rows = {words[1] if words[0] == "›" else words[0]: words for words in lines}
        assert rows["crosby"][1:7] == ["cuda:0", "41%", "58", "-", "-", "-"]
        assert sum(int(word.rstrip("%")) for words in rows.values() for word in words if word.endswith("%")) == 100


def test_what_the_plan_says_of_shares_is_told_only_while_they_are_the_plans(scenarios) -> None:
    run = scenarios.training().run
    said = ("mercer/cuda:0: 52 of 140 samples, measured 1420 samples/s", "no device is left out")
    plan = replace(run.plan, cut=said[:1], reasons=said[1:])
    workers = tuple(
        replace(worker, samples=share.samples) for worker, share in zip(run.workers, plan.shares, strict=True)
    )
    as_planned = reasons_text(replace(run, workers=workers), plan)
    assert all(reason in as_planned for reason in said)
    rebalanced = reasons_text(run, plan)
    assert said[0] not in rebalanced
    assert said[1] in rebalanced
    assert "250 ms" not in rebalanced


def test_a_corrected_prediction_stands_beside_what_was_planned(scenarios) -> None:
    run = scenarios.training().run
    assert "a step predicted 250 ms, measured " in title_of_plan(run, run.plan, 200)
    title = title_of_plan(replace(run, predicted_s=0.9), run.plan, 200)
    assert "a step planned 250 ms, predicted 900 ms, measured " in title


def reasons_text(run, plan) -> str:
    return "\n".join(line.plain for line in reasons_lines(run, plan, 200, DARK))


def test_a_device_without_samples_has_no_predicted_time(scenarios) -> None:
    run = scenarios.training().run
    (nas,) = (share for share in run.plan.shares if share.host == "nas")
    words = [cell.plain for cell in plan_cells(run, run.plan, nas, DARK)]
    assert words[3] == "0"
    assert words[6] == "-"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"alive": False, "drained": True}, "drained"),
        ({"alive": False}, "lost"),
        ({"is_coming": True}, "starting"),
        ({}, "benched"),
    ],
)
def test_the_plan_says_of_a_device_that_takes_no_part_why(scenarios, changes, word) -> None:
    run = scenarios.training().run
    share = run.plan.shares[0]
    workers = tuple(
        replace(each, samples=0, **changes) if each.worker == share.worker else each for each in run.workers
    )
    words = [cell.plain for cell in plan_cells(replace(run, workers=workers), run.plan, share, DARK)]
    assert words[7] == word


async def test_faults_are_rows_with_what_was_done_and_a_host_can_be_brought_back(scenarios, open_app) -> None:
    app = open_app(scenarios.faulty())
    async with app.run_test(size=(200, 60)) as pilot:
        rows = app.main.hosts.rows.text
        for words in (
            "□ drained (b brings it back)",
            "○ unreachable 1 s, next try in 4 s",
            "◌ paused, next try in 11 s",
        ):
            assert words in rows
        assert "◐ training 1/3    1 paused" in app.main.query_one("#status", Lines).text
        await pilot.press("4")
        said = text_of(app)
        assert "share 22% → 13%" in said
        assert "12 samples went to mercer" in said
        assert "2 faults · 0.9 s stalled (0.3%) · 1 host paused, next try in 11 s" in said
        await pilot.press("down", "b")
        await pilot.pause()
        await pilot.press("1", "home", "down", "b", "home", "d")
        await pilot.pause()
        assert app.intents.asked == [("bring back", "nas"), ("bring back", "crosby")]
        assert toasts(app) == ["mercer is the last machine that trains. Press s to stop the run."]


async def test_what_a_narrow_terminal_has_no_column_for_is_said_of_the_marked_fault(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("4", "down")
        await pilot.pause()
        said = "1: 14:18:53 nas lost: silent for 1.1 s; 12 samples went to mercer; stall 0.9 s"
        assert said in text_of(app).replace("\n", " ")


async def test_a_run_that_failed_before_its_first_step_is_not_waited_for(scenarios, open_app) -> None:
    state = scenarios.starting()
    failed = protocol.RunFailed(seq=2, time=scenarios.NOW, step=0, host="mercer", cause="no memory")
    state = apply(state, ev.RunProgressed(run="text-7f3", event=failed))
    assert state.log[-1].text == "text-7f3 failed on mercer before its first step: no memory"
    assert call_for(scenarios.starting(), state)[1] == "text-7f3 failed before its first step: no memory"
    for size in ((80, 24), (200, 60)):
        app = open_app(state)
        async with app.run_test(size=size) as pilot:
            assert "it made no step" in text_of(app)
            assert "yet" not in text_of(app)
            await pilot.press("4")
            assert "No fault." in text_of(app)


async def test_of_a_run_that_is_over_nothing_is_said_to_go_on(scenarios, open_app) -> None:
    app = open_app(scenarios.torn_down())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        assert "slow to the end" in text_of(app)
        assert "never" in text_of(app)
        assert not [word for word in ("still", "not yet", "next try") if word in text_of(app)]
        await pilot.press("3")
        assert "A step was link-bound" in text_of(app)


async def test_a_log_line_that_is_wider_than_the_view_goes_on_below(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("6")
        assert "No run yet" not in text_of(app)
        await app.workers.wait_for_complete()
        app.redraw()
        assert "INFO plan: mercer 52, crosby 48, macbook 28, nas\n" + 28 * " " + "12\n" in text_of(app)


def test_a_log_shows_our_own_decisions_as_sentences_and_warnings_in_their_colour(scenarios) -> None:
    module = "remote_agent.training.coordinator.recovery.membership"
    lines = [
        scenarios.log_line("nas", "coordinator", 3, f"INFO {module}: step 9: nas/cpu: no memory; it leaves the run"),
        scenarios.log_line("nas", "coordinator", 2, f"WARNING {module}: slow"),
        scenarios.log_line("nas", "cpu", 1, "INFO mine: as the user wrote it"),
    ]
    view = View(state=scenarios.up(), busy="", now=scenarios.NOW, zone=UTC, palette=DARK, inventory_path="")
    said = log_lines(lines, view, 120)
    assert [line.plain.partition("  ")[0].partition("coordinator ")[2] or line.plain for line in said[:2]] == [
        "step 9: nas/cpu: no memory; it leaves the run",
        "WARNING slow",
    ]
    assert said[2].plain.endswith("INFO mine: as the user wrote it")
    assert [str(line.spans[-1].style) for line in said] == [DARK.foreground, DARK.warning, DARK.foreground]


async def test_a_host_is_drained_with_a_key(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test() as pilot:
        await pilot.press("down", "d", "end", "d")
        await pilot.pause()
        assert app.intents.asked == [("drain", "crosby"), ("drain", "nas")], (
            "one that is lost is not to come back, then"
        )
        assert toasts(app) == []


async def test_past_runs_are_listed_opened_compared_and_resumed(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.finished()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5")
        await app.workers.wait_for_complete()
        names = [line.plain.split()[0].strip("›") or line.plain.split()[1] for line in app.main.pane.table.rows.lines]
        assert names == ["text-7f3", "text-91aa", "text-e2c0", "digits-4b26"]
        await pilot.press("o", "o")
        assert title_of(app, "runs") == "Runs, by loss"
        await pilot.press("o", "o", "down", "down", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert VIEWS[app.main.number] == "Run"
        assert "■ text-e2c0 stopped at step 1,204" in text_of(app)
        await pilot.press("escape")
        assert app.main.number == RUNS
        await pilot.press("space", "down", "space", "c")
        await app.workers.wait_for_complete()
        app.redraw()
        assert title_of(app, "compared") == "text-e2c0 and digits-4b26"
        await pilot.press("up", "r")
        await app.workers.wait_for_complete()
        assert app.intents.asked[-1] == ("resume", "text-e2c0")


@pytest.mark.parametrize("size", [(60, 15), (80, 24)], ids=str)
async def test_a_long_name_of_a_run_keeps_its_ends_in_the_list(size, scenarios, open_app) -> None:
    state = scenarios.listed(scenarios.up())
    names = ("sweep-digits-6e0d", "a-job-with-a-very-long-name-77ab")
    runs = tuple(replace(run, id=name) for run, name in zip(state.runs, names, strict=False))
    app = open_app(replace(state, runs=runs))
    async with app.run_test(size=size) as pilot:
        await pilot.press("5")
        await pilot.pause()
        rows = app.main.pane.table.rows.text
        assert "sweep-digits-6e0d " in rows
        assert "a-job-wit…name-77ab " in rows
        assert "stopped" in rows


async def test_the_list_of_runs_says_whose_runs_it_may_lack(scenarios, open_app) -> None:
    app = open_app(scenarios.listed(scenarios.training()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5")
        await pilot.pause()
        assert "nas does not answer: its runs may be missing here" in text_of(app)
        app.intents.change(scenarios.listed(scenarios.up()))
        app.redraw()
        await pilot.pause()
        assert "does not answer" not in text_of(app)


async def test_the_time_in_which_a_run_was_stopped_is_no_part_of_what_it_took(scenarios, open_app) -> None:
    state = scenarios.listed(scenarios.up())
    runs = tuple(replace(run, ended=run.ended + 3000.0, away_s=3000.0) for run in state.runs)
    app = open_app(replace(state, runs=runs))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5")
        await pilot.pause()
        assert [line.plain[-11:].strip() for line in app.main.pane.table.rows.lines] == ["9.0 s", "1 min 1 s", "24 s"]


def test_compared_runs_have_the_speed_of_their_steps_whatever_their_start_took(scenarios) -> None:
    run = scenarios.training().run
    slow_start = replace(run, started=run.started - 3600)
    said = "\n".join(line.plain for line in compared_lines((run, slow_start), 120, 20, DARK))
    assert said.count(fmt.throughput(run.samples_per_second)) == 2


async def test_logs_are_searched_paused_saved_and_shown_of_one_host_and_kind(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        await app.workers.wait_for_complete()
        await pilot.press("slash", *"zzz", "enter", "w", "escape")
        assert [toast.message for toast in app._notifications] == ["There is nothing to save."]
        app.redraw()
        assert "Traceback (most recent call last):" in text_of(app)
        assert "ValueError: labels out of range [red]7[/red]" in text_of(app)
        await pilot.press("n", "n")
        assert text_of(app).count("\n") == 3
        await pilot.press("slash", *"batch", "enter")
        await pilot.pause()
        assert "epoch 1, batch 20" in text_of(app)
        assert "Traceback" not in text_of(app)
        await pilot.press("escape", "f")
        app.main.pane.add(scenarios.log_line("mercer", "cuda:0", 1, "a line that comes"))
        app.redraw()
        assert "a line that comes" not in text_of(app)
        await pilot.press("f", "w")
        await app.workers.wait_for_complete()
        assert "a line that comes" in text_of(app)
        name, text = app.intents.asked[-1][1:]
        assert name == "text-7f3.log"
        assert "a line that comes" in text
        await pilot.press("1", "down", "l")
        await app.workers.wait_for_complete()
        assert ("logs", "text-7f3", "crosby") in app.intents.asked


async def test_hostile_lines_of_a_log_change_nothing_but_their_own(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("6")
        await app.workers.wait_for_complete()
        before = app.main.query_one("#status", Lines).text
        for line in (
            "\x1b[2J\x1b]0;title\x07[b]x[/b]",
            "y" * 10_000_000,
            "\ud800\u202e\x00",
            "a\nb\tc",
            "e" + "\u0301" * 10_000,
        ):
            app.main.pane.add(scenarios.log_line("nas", "cpu", 0, line))
        app.redraw()
        await pilot.pause()
        assert app.main.query_one("#status", Lines).text == before
        shown = text_of(app)
        assert "[b]x[/b]" in shown
        assert not set(shown) & set("\x1b\x00\u202e\ud800\x07")
        assert max(map(len, shown.splitlines())) <= 80


async def test_what_a_readonly_app_would_change_is_refused_with_a_word(scenarios, open_app) -> None:
    app = open_app(scenarios.training(), preferences=Preferences(readonly=True))
    async with app.run_test() as pilot:
        for key in "sDudbk!":
            await pilot.press(key)
        await pilot.pause()
        assert app.intents.asked == []
        assert isinstance(app.screen, MainScreen)
        assert {*toasts(app)} == {"This app only shows: nothing on the machines is changed."}
        assert "teardown" not in app.main.query_one("#keys", Lines).text
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert "Teardown" not in titles


async def test_a_readonly_app_offers_nothing_that_it_would_refuse(scenarios, open_app) -> None:
    app = open_app(scenarios.probed(), preferences=Preferences(readonly=True))
    async with app.run_test(size=(120, 40)):
        assert "2 of 4 machines ready " in app.main.query_one("#idle", Lines).render_line(0).text


def test_every_mistake_in_a_settings_file_is_told_at_once() -> None:
    document = {"theme": "blue", "readony": True, "readonly": 1, "keys": {}}
    with pytest.raises(UsageError) as caught:
        read_preferences(document, "s.toml")
    for words in ("'blue' is not one of", "did you mean 'readonly'?", "true or false",
                  "keys in settings.toml was removed"):  # fmt: skip
        assert words in str(caught.value)
    assert caught.value.exit_code == 2


async def test_an_inventory_that_names_no_machine_is_a_tutorial_until_the_file_does(scenarios, open_app) -> None:
    changed: asyncio.Queue[None] = asyncio.Queue()
    found: list[object] = [
        InventoryError("/lab/inventory.yaml", (f"there is no such file; write {'a line of a few words' * 5} to it",)),
        scenarios.FixedIntents(scenarios.empty(), inventory_path="/lab/inventory.yaml"),
        InventoryError("/lab/inventory.yaml", ("line 3: hots: did you mean hosts?",)),
        scenarios.FixedIntents(scenarios.fresh()),
        InventoryError("/lab/inventory.yaml", ("line 1: gone",)),
    ]

    async def opener():
        entry = found.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry

    async def changes():
        while True:
            await changed.get()
            yield

    app = HeteroApp(opener, changes=changes, inventory_path="/lab/inventory.yaml", now=lambda: scenarios.NOW)
    async with app.run_test(size=(60, 15)) as pilot:
        await pilot.pause()
        assert "there is no such file" in text_of(app)
        assert "d  shows it all on this computer" in seen(app), "on a small terminal, too"
        for words in ("", "hots: did you mean hosts?"):
            changed.put_nowait(None)
            await pilot.pause()
            said = text_of(app)
            assert "/lab/inventory.yaml" in said
            assert "mercer: {address: mercer.local}" in said
            assert words in said
        assert "e edit" in app.main.query_one("#keys", Lines).text
        changed.put_nowait(None)
        await pilot.pause()
        assert "mercer" in app.main.hosts.rows.text
        assert app.intents.asked == [("probe",)]
        await pilot.press("down")
        await pilot.pause()
        assert app.main.hosts.rows.marked == "crosby", "the keys are about the machines from their first moment on"
        changed.put_nowait(None)
        await pilot.pause()
        assert "mercer" in app.main.hosts.rows.text
        assert "the machines stay as they were: line 1: gone" in toasts(app)[-1]
        assert [line.text.partition(",")[0] for line in app.view().notes] == [
            *["The inventory was read again."] * 2,
            "The inventory can't be used",
        ], "a user may look elsewhere meanwhile"
        await pilot.press("ctrl+c")
    assert app.return_code == 0


async def test_the_demo_is_offered_where_there_is_no_machine(scenarios, open_app) -> None:
    app = open_app(scenarios.empty())
    async with app.run_test() as pilot:
        await pilot.press("d")
    assert app.wants_demo


async def test_a_change_of_the_inventory_is_noticed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("hetero_tui.launcher.LOOK_EVERY", 0.01)
    path = tmp_path / "inventory.yaml"
    changes = changes_of(path)
    coming = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    for text in ("hosts: {}", "hosts: {a: {address: b}}"):
        path.write_text(text)
        await asyncio.wait_for(coming, 10)
        coming = asyncio.ensure_future(anext(changes))
    path.unlink()
    await asyncio.wait_for(coming, 10)
    await changes.aclose()


async def test_how_often_a_worker_failed_on_its_way_back_is_not_cut_off(scenarios, open_app) -> None:
    state = scenarios.training()
    for seq in range(1, 6):
        lost = protocol.WorkerLost(
            seq=state.run.last_seq + 1, time=scenarios.NOW + seq, worker="mercer/cuda:0", host="mercer",
            device="cuda:0", step=1204, cause="its process ended", retry_s=2.0**seq,
        )  # fmt: skip
        state = apply(state, ev.RunProgressed(run="text-7f3", event=lost))
    app = open_app(state)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        await pilot.pause()
        rows = [line.plain for line in app.main.pane.table.rows.lines]
        assert any("lost: its process ended ×5 " in row for row in rows), rows


async def test_what_is_sorted_or_filtered_by_is_seen_on_a_narrow_terminal(scenarios, open_app) -> None:
    app = open_app(scenarios.demo())
    async with app.run_test(size=(60, 15)) as pilot:
        assert title_of(app, "hosts") == "Hosts, 3 simulated on this computer"
        await pilot.press("o")
        assert title_of(app, "hosts") == "Hosts, by name"


async def test_a_filter_takes_no_line_from_the_table_and_sorting_and_copying_are_keys(scenarios, open_app) -> None:
    app = open_app(scenarios.training())
    async with app.run_test(size=(80, 24)) as pilot:
        before = app.main.hosts.rows.size.height
        await pilot.press("slash")
        await pilot.pause()
        assert app.main.hosts.rows.size.height == before
        assert app.main.query(Input)
        await pilot.press("escape", "o", "y")
        assert [line.plain.split()[0].strip("› ") or "" for line in app.main.hosts.rows.lines] != []
        assert title_of(app, "hosts") == "Hosts, by name"
        assert app.main.hosts.rows.lines[0].plain.startswith("  crosby")
        assert "mercer" in app.clipboard


def test_a_hosts_hint_is_in_the_log_and_its_details(scenarios) -> None:
    from hetero_tui.ui.details import details_lines
    from hetero_tui.ui.palette import DARK

    changed = ev.HostChanged(
        time=scenarios.NOW, host="nas", state=HostState.UNFIT, detail="Ray is missing", hint="pip install '.[node]'"
    )
    state = apply(scenarios.fresh(), changed)
    assert state.log[-1].text == "nas is unfit: Ray is missing -> pip install '.[node]'"
    said = [line.plain for line in details_lines(state.host("nas"), None, scenarios.NOW, 60, DARK)]
    assert "-> pip install '.[node]'" in said


async def test_an_error_is_told_once_where_the_session_has_told_it(scenarios, open_app) -> None:
    error = scenarios.refused()
    app = open_app(scenarios.probed(), session={"failure": error})
    app.intents.state = apply(app.intents.state, ev.Notice(time=scenarios.NOW, level=ev.Level.BAD, text=str(error)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("u")
        await pilot.pause()
        assert text_of(app).count(str(error)) == 1


async def test_of_many_machines_those_that_come_into_sight_are_shown_as_they_are_now(scenarios, open_app) -> None:
    state = scenarios.many()
    last = state.hosts[-1].name
    app = open_app(state)
    async with app.run_test(size=(120, 24)) as pilot:
        changed = ev.HostLost(time=scenarios.NOW, host=last, cause="no answer for 15 s")
        app.intents.change(apply(state, changed))
        app.redraw()
        app.main.hosts.rows.scroll_end(animate=False, immediate=True)
        await pilot.pause()
        shown = [line for line in seen(app).splitlines() if last in line]
        assert "unreachable" in shown[0]


def test_a_part_of_a_run_is_drawn_of_a_short_one_and_of_one_of_which_few_losses_are_kept(scenarios) -> None:
    short = RunView(run="text-1", job="text", step=6, losses=tuple((step, 1.0) for step in range(1, 7)))
    assert zoomed(short, 0) == short.losses
    assert zoomed(short, 1) == [(5, 1.0), (6, 1.0)]
    assert len(zoomed(short, 2)) == 6
    assert zoomed(replace(short, step=1, losses=((1, 1.0),)), 1) == [(1, 1.0)]
    long = scenarios.training().run
    thinned = replace(long, losses=tuple((step, loss) for step, loss in long.losses if step % 200 == 0))
    assert [step for step, _ in zoomed(thinned, 2)] == [*range(1155, 1205)]
    assert len(zoomed(thinned, 1)) == 50


def test_a_line_of_a_log_in_wide_characters_is_all_there_and_begins_where_others_do(scenarios) -> None:
    entries = [scenarios.log_line("mercer", "训练.out", 3.0, "梯" * 80), scenarios.log_line("nas", "cpu", 2.0, "x")]
    view = View(state=scenarios.up(), busy="", now=scenarios.NOW, zone=UTC, palette=DARK, inventory_path="")
    lines = [line.plain for line in log_lines(entries, view, 60)]
    assert max(map(cell_len, lines)) <= 60
    assert "".join(lines).count("梯") == 80
    assert len({cell_len(line[: line.index(first)]) for line, first in ((lines[0], "梯"), (lines[-1], "x"))}) == 1


@pytest.mark.parametrize("length", [4, 8, 12])
async def test_a_low_terminal_has_host_and_fault_in_a_line_and_the_marked_one_whole_at_once(
    scenarios, open_app, length
) -> None:
    state = scenarios.faulty()
    what = "its process ended, and its host has not answered for 1.1 s since"
    faults = tuple(replace(fault, host="h" * length, what=what) for fault in state.run.faults)
    app = open_app(replace(state, run=replace(state.run, faults=faults)))
    async with app.run_test(size=(60, 15)) as pilot:
        await pilot.press("4")
        await pilot.pause()
        assert "h" * length in app.main.pane.table.rows.marked_line
        foot = " ".join(" ".join(line.plain for line in app.main.pane.table.query_one("#foot", Lines).lines).split())
        assert what in foot


def test_alike_hosts_that_the_plan_names_together_all_show_what_they_help() -> None:
    hosts = [f"host{number}" for number in range(12)]
    for names in (hosts[:6], hosts):
        for said, shown in (
            ("adds 12%: use it", "adds 12%"),
            ("makes little difference (+0.4%)", "little difference (+0.4%)"),
        ):
            reasons = ("use sync on all", f"each of {verdicts.names(names)} {said}")
            plan = protocol.PlanMade(
                seq=1, time=0.0, strategy="sync", shares=(), reasons=reasons, left_out={"nas": "x"}
            )
            assert {helps(plan, name) for name in names} == {shown}
            assert helps(plan, "nas") == ""
