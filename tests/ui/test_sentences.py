"""Status, keys, outcome, log lines, details: what they say, and that they keep to their width."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hetero_tui.events import HostLost, HostSampled, HostState, Level, RunChanged, RunProgressed
from hetero_tui.fold import apply
from hetero_tui.intents import TeardownPreview
from hetero_tui.reports import run_rows
from hetero_tui.run_fold import fold_run
from hetero_tui.runs import order
from hetero_tui.state import WORKERS, LogLine, Phase, RunView, State
from hetero_tui.ui.cells import host_line, state_words
from hetero_tui.ui.columns import choose
from hetero_tui.ui.details import details_lines, wrapped
from hetero_tui.ui.draw.tables import table_line
from hetero_tui.ui.guards import drain_refusal
from hetero_tui.ui.header import ending, header_line
from hetero_tui.ui.keys import FAULTS, FLEET, QUIT, shown_keys
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.screens.teardown import question_lines
from hetero_tui.ui.screens.train import settings_lines
from hetero_tui.ui.sentences import evaluation_words, farewell, idle_lines, keys_line, log_lines, outcome_line
from hetero_tui.ui.train_form import foot
from hetero_tui.ui.view import View
from hetero_tui.ui.views.faults import _cells as fault_cells
from hetero_tui.ui.views.faults import _columns
from hetero_tui.ui.views.faults import foot as faults_foot
from hetero_tui.ui.views.runs import _cells as run_cells
from remote_agent import protocol
from remote_agent.protocol import RunSummary
from remote_agent.states import RunState


def view_of(state, scenarios, **options) -> View:
    return View(state=state, busy="", now=scenarios.NOW, zone=UTC, palette=DARK, inventory_path="i.yaml", **options)


def status(scenarios, state: str, width: int, busy: str = "") -> str:
    return header_line(getattr(scenarios, state)(), busy, scenarios.NOW, UTC, width, DARK).plain


def test_the_status_says_cluster_run_step_time_left_and_speed(scenarios) -> None:
    said = status(scenarios, "training", 200)
    for words in (
        "rc-lab", "◐ training 3/4", "1 away", "● text-7f3", "step 1,204/5,000", " 24%", "17 min left",
        "518 samples/s", "last step 1.0 s ago", "14:21",
    ):  # fmt: skip
        assert words in said


def test_what_is_under_way_replaces_the_verdict_and_moves_nothing(scenarios) -> None:
    usual, busy = (status(scenarios, "training", 120, busy=word) for word in ("", "probing"))
    assert "◌ probing" in busy
    assert usual.index("● text-7f3") == busy.index("● text-7f3")
    assert usual.partition("● text-7f3")[2] == busy.partition("● text-7f3")[2]


def test_each_group_of_hosts_that_do_not_train_is_named_where_there_is_room(scenarios) -> None:
    assert "◐ training 1/3    1 paused, 1 away, 1 drained  " in status(scenarios, "faulty", 200)
    assert "◐ training 1/3    1 paused, 1 away  " in status(scenarios, "faulty", 100)
    assert "◐ training 1/3    1 paused  " in status(scenarios, "faulty", 90)
    assert "◐ training 1/3    1 paused  ● text-7f3" in status(scenarios, "faulty", 80)
    state = scenarios.training()
    for word in (HostState.RESTARTING, HostState.BENCHED, HostState.RETURNING):
        hosts = tuple(replace(host, state=word) if host.name == "nas" else host for host in state.hosts)
        said = header_line(replace(state, hosts=hosts), "", scenarios.NOW, UTC, 200, DARK).plain
        assert f"1 {word.words}" in said


def test_a_long_name_of_a_run_is_whole_where_the_age_of_its_last_step_can_be_said_in_fewer_words(scenarios) -> None:
    state = scenarios.faulty()
    named = replace(state, run=replace(state.run, run="language-model-7f3"))
    said = header_line(named, "", scenarios.NOW, UTC, 120, DARK).plain
    assert "1 paused  ● language-model-7f3  step 1,204/5,000" in said
    assert "  step 1.0 s ago" in said
    wide = header_line(named, "", scenarios.NOW, UTC, 130, DARK).plain  # a bar goes before a name is cut
    assert "● language-model-7f3" in wide
    assert "24%" not in wide


def test_what_was_done_about_a_fault_gets_the_room_that_what_happened_does_not_need(scenarios) -> None:
    state = scenarios.faulty()
    done = "12 samples went to mercer, crosby"
    faults = [replace(fault, done=done) for fault in state.run.faults]
    cells = fault_cells(faults[0], view_of(state, scenarios))
    assert done in table_line(_columns(faults), cells, 116).plain


@pytest.mark.parametrize(
    ("word", "said"), [(HostState.RESTARTING, "1 host restarting"), (HostState.RETURNING, "1 host coming back")]
)
def test_the_foot_of_the_faults_has_the_hosts_words_of_the_fleet(scenarios, word, said) -> None:
    state = scenarios.faulty()
    hosts = tuple(replace(host, state=word) if host.name == "nas" else host for host in state.hosts)
    view = View(
        state=replace(state, hosts=hosts), busy="", now=scenarios.NOW, zone=UTC, palette=DARK, inventory_path=""
    )
    text = "\n".join(line.plain for line in faults_foot(state.run, view, 120, DARK))
    assert text.endswith(f" · {said}")
    nas = next(host for host in hosts if host.name == "nas")
    assert "(b" not in state_words(nas, scenarios.NOW)


def test_while_a_run_recovers_its_fault_has_a_stall_that_grows_and_no_host_is_said_to_be_paused(scenarios) -> None:
    state = scenarios.faulty()
    last = replace(state.run.recent[-1], time=scenarios.NOW - 9.0)
    fault = replace(state.run.faults[0], time=scenarios.NOW - 8.0, stall_s=None, stall_with=None, back=None)
    run = replace(
        state.run,
        faults=(fault,),
        recent=(),
        superseded=last,
        phases=(Phase(name=WORKERS, began=scenarios.NOW - 7.0),),
    )
    hosts = tuple(replace(host, sample=None) for host in state.hosts)
    state = replace(state, run=run, hosts=hosts)
    view = View(state=state, busy="", now=scenarios.NOW, zone=UTC, palette=DARK, inventory_path="")
    assert fault_cells(fault, view)[5].plain == "9.0 s…"
    text = "\n".join(line.plain for line in faults_foot(run, view, 120, DARK))
    assert "paused" not in text
    assert text.endswith("the run is recovering")


def test_the_foot_of_the_faults_says_that_they_cost_nothing(scenarios) -> None:
    run = scenarios.faulty().run
    run = replace(run, faults=tuple(replace(fault, stall_s=None) for fault in run.faults))
    view = View(state=scenarios.faulty(), busy="", now=scenarios.NOW, zone=UTC, palette=DARK, inventory_path="")
    assert " faults · no stall" in faults_foot(run, view, 120, DARK)[0].plain


def test_a_fault_after_which_the_run_ended_is_said_to_have_stalled_it_to_the_end(scenarios) -> None:
    state = scenarios.training()
    lost = protocol.WorkerLost(
        seq=state.run.last_seq + 1, time=scenarios.NOW + 1, worker="mercer/cuda:0", host="mercer", device="cuda:0",
        step=1204, cause="its process was killed",
    )  # fmt: skip
    failed = protocol.RunFailed(
        seq=lost.seq + 1, time=scenarios.NOW + 9, step=1204, host="mercer", cause="no worker is left"
    )
    run = scenarios.fold(state, [RunProgressed(run="text-7f3", event=event) for event in (lost, failed)]).run

    def said(run: RunView) -> tuple[list[str], str]:
        known = replace(state, run=run)
        view = View(state=known, busy="", now=scenarios.NOW + 60, zone=UTC, palette=DARK, inventory_path="")
        stalls = [fault_cells(fault, view)[5].plain for fault in run.faults]
        return stalls, faults_foot(run, view, 120, DARK)[0].plain

    assert said(run) == (["0.9 s", "none", "to end"], "3 faults · 0.9 s stalled (0.3%), then to the end")
    only = replace(run, faults=tuple(replace(fault, stall_s=None) for fault in run.faults))
    assert said(only)[1] == "3 faults · stalled to the end"
    finished = replace(run, state=RunState.FINISHED)
    assert said(finished) == (["0.9 s", "none", "none"], "3 faults · 0.9 s stalled (0.3%)")


@pytest.mark.parametrize("question", ["asking hosts", "reading events", "looking for the run"])
def test_a_question_does_not_hide_that_a_run_trains(question, scenarios) -> None:
    assert status(scenarios, "training", 120, busy=question) == status(scenarios, "training", 120)
    assert f"◌ {question}"[:15] in status(scenarios, "up", 120, busy=question)


def heard_of(scenarios, later: float) -> State:
    """The scenario ``training`` so many seconds later: no step was made since, and the head has said so."""
    now = scenarios.NOW + later
    sample = replace(scenarios.sample("mercer", 0.84, 9.1, 12.0), time=now + 1)  # its clock is ahead, as it was
    return apply(scenarios.training(), HostSampled(time=now, host="mercer", sample=sample))


def test_the_age_of_the_last_step_becomes_grey_and_then_orange(scenarios) -> None:
    colours = []
    for later in (0.0, 5.0, 60.0):
        line = header_line(heard_of(scenarios, later), "", scenarios.NOW + later, UTC, 200, DARK)
        at = line.plain.index("last step")
        colours.append(next(str(span.style) for span in line.spans if span.start <= at < span.end))
    assert colours == [DARK.foreground, DARK.muted, DARK.warning]
    for minutes in (14, 61, 600):
        line = header_line(heard_of(scenarios, 60 * minutes), "", scenarios.NOW + 60 * minutes, UTC, 200, DARK).plain
        assert " step " in line
        assert " ago " in line


def test_a_run_that_ended_has_neither_speed_nor_time_left(scenarios) -> None:
    stopped = apply(
        scenarios.training(),
        RunChanged(time=scenarios.NOW, run="text-7f3", job="text", state=RunState.STOPPED, detail="taken down"),
    )
    said = header_line(stopped, "", scenarios.NOW, UTC, 200, DARK).plain
    assert "■ text-7f3 stopped at step 1,204" in said
    assert not any(words in said for words in ("left", "samples/s", "last step", "training"))
    words = [word for _, word, _ in shown_keys(stopped, "")]
    assert {"train", "resume"} <= {*words}


@pytest.mark.parametrize(("later", "left"), [(0.0, "17 min left"), (30.0, "no step 30 s"), (600.0, "no step 10 min")])
def test_no_time_is_left_that_a_run_which_makes_no_steps_would_take(scenarios, later, left) -> None:
    said = header_line(heard_of(scenarios, later), "", scenarios.NOW + later, UTC, 80, DARK).plain
    assert left in said
    assert ("left" in said) == (later == 0.0)
    said = header_line(heard_of(scenarios, later), "", scenarios.NOW + later, UTC, 200, DARK).plain
    assert ("518 samples/s" in said) == (later == 0.0), "that is how fast it was"


@pytest.mark.parametrize(("why", "later"), [("asleep", 28_800.0), ("cable", 30.0)])
def test_a_run_that_this_computer_hears_nothing_of_is_not_said_to_make_no_steps(scenarios, why, later) -> None:
    """It slept for a night, and wakes up; or the head does not answer it, and goes on."""
    now = scenarios.NOW + later
    state = scenarios.training() if why == "asleep" else heard_of(scenarios, later)
    if why == "cable":
        state = apply(state, HostLost(time=now, host="mercer", cause="no answer for 15 s"))
    for width, words in ((80, "not seen"), (200, "seen")):
        said = header_line(state, "", now, UTC, width, DARK).plain
        assert words in said, said
        assert "no step" not in said, said
        assert "last step" not in said, said


@pytest.mark.parametrize(
    ("state", "width", "words"),
    [
        ("faulty", 80, "● langu…l-e2c0  step 1,204/5,000"),
        ("faulty", 200, "● language-model-e2c0  step"),
        ("torn_down", 60, "■ langu…-e2c0 stopped at step 1,204"),
        ("starting", 60, "◔ langua…el-e2c0 starting"),
    ],
)
def test_a_long_name_of_a_run_is_shortened_in_its_middle_and_never_left_out(scenarios, state, width, words) -> None:
    known = getattr(scenarios, state)()
    known = replace(known, run=replace(known.run, run="language-model-e2c0"))
    said = header_line(known, "", scenarios.NOW, UTC, width, DARK).plain
    assert words in said, said
    assert len(said) == width


def test_a_large_number_of_steps_takes_no_run_and_no_time_out_of_a_narrow_header(scenarios) -> None:
    state = scenarios.faulty()
    state = replace(state, run=replace(state.run, iterations=1_000_000))
    for width, words in ((80, "● text-7f3  step 1,204/1,000,000"), (60, "step 1,204/1,000,000")):
        said = header_line(state, "", scenarios.NOW, UTC, width, DARK).plain
        assert words in said, said
        assert " left" in said, said


def test_a_host_that_only_this_computer_does_not_reach_is_counted_as_training(scenarios) -> None:
    """The run's own events come from the head: crosby still makes its part of each step."""
    now = scenarios.NOW
    state = apply(scenarios.training(), HostLost(time=now, host="crosby", cause="no answer for 15 s"))
    said = header_line(state, "", now, UTC, 200, DARK).plain
    assert "◐ training 3/4    1 away, 1 not seen" in said
    columns = choose(150, ("mercer",))
    lines = {host.name: host_line(host, state.run, columns, now, DARK).plain for host in state.hosts}
    assert ("unreachable" in lines["crosby"], "41%" in lines["crosby"]) == (True, True)
    lost = protocol.WorkerLost(
        seq=state.run.last_seq + 1,
        time=now,
        worker="crosby/cuda:0",
        host="crosby",
        device="cuda:0",
        step=1204,
        cause="x",
    )
    state = apply(state, RunProgressed(run="text-7f3", event=lost))
    assert "◐ training 2/4    2 away" in header_line(state, "", now, UTC, 120, DARK).plain


def test_a_run_that_stops_is_said_to_and_has_no_time_left(scenarios) -> None:
    state = scenarios.faulty()
    state = replace(state, run=replace(state.run, state=RunState.STOPPING))
    said = header_line(state, "", scenarios.NOW, UTC, 80, DARK).plain
    assert "text-7f3 stopping" in said
    assert "left" not in said


def test_a_fleet_of_which_no_host_answers_is_not_said_to_train(scenarios) -> None:
    state = scenarios.training()
    hosts = tuple(replace(host, state=HostState.UNREACHABLE) for host in state.hosts)
    assert "✕ none answers" in header_line(replace(state, hosts=hosts), "", scenarios.NOW, UTC, 80, DARK).plain


def test_on_a_narrow_screen_a_run_that_starts_is_said_to(scenarios) -> None:
    state = scenarios.starting()
    assert f"{state.run.run} starting" in header_line(state, "", scenarios.NOW, UTC, 60, DARK).plain


def test_a_run_that_is_stopped_while_it_starts_is_not_said_to_start(scenarios) -> None:
    stopping = apply(
        scenarios.starting(), RunChanged(time=scenarios.NOW, run="text-7f3", job="text", state=RunState.STOPPING)
    )
    said = header_line(stopping, "ending the run", scenarios.NOW, UTC, 120, DARK).plain
    assert "◌ ending the run " in said, "the operation has room"
    assert "text-7f3 stopping: workers" in said


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("state", ["empty", "probed", "training", "finished"])
def test_the_status_line_is_never_wider_than_the_screen_and_keeps_the_clock(width, state, scenarios) -> None:
    said = status(scenarios, state, width, busy="stopping")
    assert len(said) == width
    assert said.endswith("14:21 ")


def test_in_a_narrow_status_the_clusters_state_stays_longest(scenarios) -> None:
    assert status(scenarios, "training", 40).strip().startswith("◐ training 3/4")


def test_no_machine_is_brought_back_into_a_run_that_is_over(scenarios) -> None:
    over = RunChanged(time=scenarios.NOW, run="text-7f3", job="text", state=RunState.FAILED)
    offered = [
        [word for _, word, _ in shown_keys(state, "", view=FAULTS)]
        for state in (scenarios.faulty(), apply(scenarios.faulty(), over))
    ]
    assert ["bring back" in words for words in offered] == [True, False]


def test_the_keys_shown_are_those_that_make_sense_now(scenarios) -> None:
    words = {
        name: [word for _, word, _ in shown_keys(getattr(scenarios, name)(), "")]
        for name in ("empty", "probed", "training")
    }
    assert words["empty"] == ["help", "detach"]
    assert words["probed"][1] == "accept key"
    assert "stop" in words["training"]
    assert "train" not in words["training"]


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_key_line_fits_and_ends_with_how_to_leave(width, scenarios) -> None:
    line = keys_line(shown_keys(scenarios.probed(), ""), width, DARK).plain
    assert len(line) <= width
    assert line.endswith("q detach")


def test_the_outcome_gives_the_jobs_own_figures(scenarios) -> None:
    said = outcome_line(scenarios.finished().run, 120, view_of(scenarios.finished(), scenarios)).plain
    for words in ("✔ text-7f3 finished", "test accuracy 97.3%", "final loss 1.374", "1,204 steps", "in 5 min"):
        assert words in said


def test_nothing_is_counted_as_not_ready_that_was_not_looked_at_yet(scenarios) -> None:
    fresh = scenarios.fresh()
    assert {host.state for host in fresh.hosts} == {HostState.UNKNOWN}
    said = idle_lines(view_of(fresh, scenarios), 100, 3)[0].plain
    assert said == "looking at 4 machines …"
    assert "ready" not in foot(fresh, "digits", {})
    ready = replace(fresh.hosts[0], state=HostState.READY)
    some = replace(fresh, hosts=(ready, *fresh.hosts[1:]))
    assert idle_lines(view_of(some, scenarios), 100, 3)[0].plain.startswith(
        "1 of 4 machines ready, 3 still looked at: u"
    )


def test_a_failed_run_says_why_in_its_outcome(scenarios) -> None:
    said = outcome_line(scenarios.failed().run, 120, view_of(scenarios.failed(), scenarios)).plain
    assert said == " ✕ text-7f3 failed after step 1,204   the loss is not a number   r resumes it"


@given(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=300), st.integers(20, 200))
def test_wrapping_loses_nothing_and_keeps_to_the_width(text, width) -> None:
    parts = wrapped(text, width)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")
    assert max(map(cell_len, parts)) <= width


def test_a_character_that_needs_two_cells_goes_on_below_too() -> None:
    assert wrapped("梯度累积 ok", 6) == ["梯度累", "积 ok"]
    assert wrapped("梯度", 1) == ["梯", "度"], "there is no room for it"
    assert wrapped("x 梯度累积", 6) == ["x 梯度", "累积"]


def test_a_long_event_goes_on_below_itself(scenarios) -> None:
    entry = LogLine(time=scenarios.NOW, level=Level.BAD, text="word " * 30)
    lines = [line.plain for line in log_lines(entry, UTC, 60, DARK)]
    assert lines[0].startswith("14:21:00  ✕ word")
    assert len(lines) > 2
    assert all(line.startswith(" " * 12 + "word") and len(line) <= 60 for line in lines[1:] if line.strip())


def test_the_count_of_an_event_that_came_again_is_no_figure_of_its_own(scenarios) -> None:
    text = "laptop/cpu runs at 2.5 times its predicted speed"
    entry = LogLine(time=scenarios.NOW, level=Level.INFO, text=text, count=3)
    assert log_lines(entry, UTC, 100, DARK)[0].plain.endswith(f"{text} (came 3 times)")


def test_details_name_everything_that_was_found_out(scenarios) -> None:
    state = scenarios.training()
    said = "\n".join(line.plain for line in details_lines(state.host("mercer"), state.run, scenarios.NOW, 70, DARK))
    for words in ("mercer.local", "driver 550.90", "64 of 140 samples", "71 °C", "ray 2.60.0", "211.0 GB free"):
        assert words in said


def test_details_of_an_unfit_host_say_what_is_missing(scenarios) -> None:
    state = scenarios.probed()
    said = "\n".join(line.plain for line in details_lines(state.host("nas"), None, scenarios.NOW, 70, DARK))
    assert "ray missing, torch missing" in said
    assert "problem     Ray and torch are missing" in said


def test_farewells(scenarios) -> None:
    assert farewell(scenarios.finished(), "") == "The cluster stays up. End it with: hetero-tui down"
    assert farewell(scenarios.probed(), "probing") == ""
    for state in (scenarios.training(), scenarios.finished()):
        away = tuple(replace(host, state=HostState.UNREACHABLE) for host in state.hosts)
        assert "is not known" in farewell(replace(state, hosts=away), "")
    assert farewell(scenarios.training(), "stopping") == "Interrupted while stopping: `hetero-tui down` finishes it"


def test_the_modules_that_decide_what_is_shown_know_nothing_of_textual() -> None:
    pure = ["format", "palette", "look", "columns", "cells", "arrangement", "keys", "guards", "details", "sentences"]
    pure += [
        "draw.bars",
        "draw.curve",
        "draw.step_time",
        "header",
        "preferences",
        "train_form",
        "draw.tables",
        "draw.phases",
    ]
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module('hetero_tui.ui.' + name)\n"
    program += "print([name for name in sys.modules if name.split('.')[0] == 'textual'])"
    answer = subprocess.run(
        [sys.executable, "-c", program, *pure], check=True, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.strip() == "[]"


def test_the_newest_evaluation_is_said_in_a_line_with_the_best(scenarios) -> None:
    run = scenarios.training().run
    assert evaluation_words(run) == ""
    newest = protocol.Evaluated(
        seq=1,
        time=1.0,
        step=1200,
        epoch=1.0,
        metrics={"val_loss": 0.25, "accuracy": 0.931, "f1": None},
        samples=9,
        seconds=1.0,
        best=True,
    )
    run = replace(run, evaluated=newest, best=newest)
    assert evaluation_words(run) == "val loss 0.25, accuracy 93.1% at step 1,200, the best"
    run = replace(run, best=replace(newest, step=1000))
    assert evaluation_words(run) == "val loss 0.25, accuracy 93.1% at step 1,200, best at 1,000"


def test_the_time_that_a_run_would_take_is_that_of_its_own_number_of_steps(scenarios, monkeypatch) -> None:
    run = RunSummary(
        id="digits-1", job="digits", state=RunState.STOPPED, step=50, loss=1.0, started=0.0, ended=100.0,
        iterations=20_000, parameters=10,
    )  # fmt: skip
    state = replace(scenarios.up(), runs=(run,))
    monkeypatch.setattr(order, "chosen_by", lambda job: {"epochs": 3, "num_iterations": 100})
    assert "about" not in foot(state, "digits", {}), "the job counts epochs"
    assert "about 33 min" in foot(state, "digits", {"num_iterations": "1000"}), "which that replaces"
    monkeypatch.undo()
    assert "about 5 min of steps" in foot(state, "digits", {})  # the job's own number: 150 steps of 2 s
    assert "about 33 min" in foot(state, "digits", {"num_iterations": "1000"})
    assert "about" not in foot(state, "digits", {"epochs": "3"})
    listed = replace(scenarios.up(), runs=(replace(run, step_s=0.1),))
    assert "about 15 s of steps, 10 parameters" in foot(listed, "digits", {}), "as its steps were measured"


def test_the_form_knows_the_size_and_the_pace_of_the_job_on_the_screen(scenarios) -> None:
    state = scenarios.training()
    run = state.run
    assert run.step_seconds is not None
    assert f"{run.parameters:,} parameters" in foot(state, run.job, {})
    assert "about " in foot(state, run.job, {})


@pytest.mark.parametrize("given", [{"depth": "48"}, {"quantize": "nf4"}, {"micro_batch": "4"}, {"batch_size": "9"}])
def test_the_form_says_neither_size_nor_time_of_another_model_or_of_other_steps(given, scenarios) -> None:
    state = scenarios.training()
    assert foot(state, state.run.job, given) == foot(scenarios.up(), "", {}).replace("4 of", "3 of")
    same = {"learning_rate": "0.1", "seed": "3", "checkpoint_every": "9"}
    assert foot(state, state.run.job, same) == foot(state, state.run.job, {})


def test_a_run_that_ended_before_its_first_checkpoint_is_not_said_to_be_resumable(scenarios) -> None:
    state = scenarios.failed()
    none = replace(state, run=replace(state.run, checkpoint="", checkpoint_step=0))
    for known, offered in ((state, True), (none, False)):
        assert ("r resumes it" in outcome_line(known.run, 200, view_of(known, scenarios)).plain) is offered
        assert ("resume" in [action for _, _, action in shown_keys(known, "", QUIT, (), view=FLEET)]) is offered


def test_of_a_settings_help_only_whole_clauses_are_shown(scenarios) -> None:
    view = SimpleNamespace(palette=DARK)
    for width, shown in ((60, False), (140, True)):
        lines = [line.plain for line in settings_lines(view, "digits", "", width)]
        assert not [line for line in lines if "…" in line]
        row = next(line for line in lines if line.startswith("batch_size"))
        assert row.rstrip().endswith("samples of one step, over all devices together") is shown


def test_a_host_that_is_paused_can_be_drained_and_one_that_is_drained_can_not(scenarios) -> None:
    state = scenarios.faulty()
    assert state.host("nas").state is HostState.PAUSED
    view = View(state=state, busy="", now=scenarios.NOW, zone=UTC, palette=DARK, inventory_path="")
    assert drain_refusal(view, "nas") is None
    assert drain_refusal(view, "pi") == f"pi does not take part in {state.run.run}."
    assert drain_refusal(view, "crosby") == "crosby is drained already."
    assert drain_refusal(view, "mercer") == "mercer is the last machine that trains. Press s to stop the run."


def test_a_teardown_of_the_demo_does_not_promise_what_the_end_of_the_demo_takes() -> None:
    preview = TeardownPreview(cluster="demo", running="", stops=(), unreachable=())

    def stays(demo: bool) -> str:
        return " ".join(line.plain for line in question_lines(preview, 70, DARK, demo=demo))

    assert "environment" in stays(False)
    assert "checkpoints, until the demo ends" in stays(True)
    assert "environment" not in stays(True)


@given(st.integers(20, 120))
def test_the_foot_of_the_train_form_is_cut_at_no_word(width) -> None:
    run = RunView(run="text-1", job="text", step=10, parameters=40_602)
    whole = foot(State(cluster="lab", run=run), "text", {"num_iterations": "9"})
    said = foot(State(cluster="lab", run=run), "text", {"num_iterations": "9"}, width)
    assert whole.startswith(said)
    assert whole[len(said) :] == "" or whole[len(said) :].startswith(", ")
    assert len(said) <= max(width, len("0 of 0 hosts ready"))


def test_of_a_run_that_makes_no_steps_of_its_own_none_are_counted(scenarios) -> None:
    known = {"job": "digits", "step": 0, "loss": None, "started": scenarios.NOW - 90, "host": "mercer"}
    runs = (
        RunSummary(id="sweep-1", state=RunState.RUNNING, script=True, **known),
        RunSummary(id="digits-1", state=RunState.FAILED, **known),
    )
    state = replace(scenarios.up(), runs=runs)
    said = [line.plain for line in idle_lines(view_of(state, scenarios), 80, 4)]
    assert [line.rpartition("  ")[0] for line in said[1:]] == ["✕ digits-1  failed, no step", "● sweep-1  running"]
    assert [cell.plain for cell in run_cells(runs[0], (), view_of(state, scenarios))[3:5]] == ["-", "-"]
    assert run_rows((("mercer", runs[0]),))[0][3:6] == ["-", "-", "-"]
    assert run_rows((("mercer", runs[1]),))[0][3:6] == ["0", "n/a", "n/a"]
    swept = replace(runs[0], state=RunState.FINISHED, step=20, loss=0.25)  # of 20 trials the best
    assert run_rows((("mercer", swept),))[0][3:6] == ["-", "0.2500", "-"]
    said = [line.plain for line in idle_lines(view_of(replace(state, runs=(swept,)), scenarios), 80, 4)]
    assert said[1].startswith("✔ sweep-1  finished, loss 0.2500  ")


def test_a_sweep_that_is_opened_is_not_said_to_have_made_as_many_steps_as_trials(scenarios) -> None:
    about = {"run": "sweep-1", "job": "digits", "host": "mercer", "iterations": 0, "batch_size": 0, "parameters": 0}
    begun = protocol.RunStarted(seq=1, time=scenarios.NOW - 60, **about)
    ended = protocol.RunFinished(
        seq=2, time=scenarios.NOW, steps=20, samples=0, final_loss=0.25, samples_per_second=0.0, checkpoint=""
    )
    state = scenarios.fold(State(cluster="lab"), [RunProgressed(run="sweep-1", event=begun)])
    assert state.run is not None
    assert state.run.detail == ""
    state = apply(state, RunProgressed(run="sweep-1", event=ended))
    said = outcome_line(state.run, 100, view_of(state, scenarios)).plain.split("   ")
    assert said == [" ✔ sweep-1 finished", "best loss 0.2500", "in 1 min"]


def test_a_training_that_failed_before_it_began_is_not_taken_for_a_script(scenarios) -> None:
    failed = protocol.RunFailed(seq=1, time=scenarios.NOW, step=0, host="mercer", cause="no such file", hint="")
    run, _, _ = fold_run(RunView(run="digits-1", job="digits", last_seq=1), failed)
    assert ending(run) == "failed before its first step"


def test_a_run_on_a_machine_that_does_not_answer_is_not_timed_as_if_it_went_on(scenarios) -> None:
    run = RunSummary(
        id="sweep-1", job="digits", state=RunState.RUNNING, step=0, loss=None, started=scenarios.NOW - 90, host="nas"
    )
    took = []
    for state in (scenarios.up(), scenarios.training()):  # nas answers, and is away
        *_, cell, _ = run_cells(run, (), view_of(replace(state, runs=(run,)), scenarios))
        took.append(cell.plain)
    assert took == ["1 min 30 s", "n/a"]
