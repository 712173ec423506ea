"""The wording, once: each row is a situation and what is said of it. Other tests assert codes and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hetero_tui import events as ev
from hetero_tui.events import HostState
from hetero_tui.faults import LOST
from hetero_tui.fold import apply
from hetero_tui.intents import HostItem, TeardownPreview, TeardownReport, call_for
from hetero_tui.reports import run_rows
from hetero_tui.state import FIRST_STEP, WORKERS, Behind, Fault, LogLine, Phase, RunView, State
from hetero_tui.ui import train_form
from hetero_tui.ui.details import details_lines, wrapped
from hetero_tui.ui.draw.phases import catching_up_words, phases_lines, start_title
from hetero_tui.ui.draw.step_time import recent_times, step_time_lines
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.screens.teardown import outcome, question_lines
from hetero_tui.ui.sentences import evaluation_words, farewell, idle_lines, log_lines, outcome_line
from hetero_tui.ui.views import faults, logs, plan
from remote_agent import protocol
from remote_agent.states import RunState
from tests.ui import scenarios
from tests.ui.looking import header, view_of

TRAINING, FAULTY, UP, STARTING = scenarios.training(), scenarios.faulty(), scenarios.up(), scenarios.starting()
RUN = TRAINING.run
assert RUN is not None


def text(lines: Iterable[object]) -> str:
    return "\n".join(str(line) for line in lines)


def with_host(state: State, name: str, /, **changes: object) -> State:
    return replace(state, hosts=tuple(replace(host, **changes) if host.name == name else host for host in state.hosts))


def with_run(state: State, /, **changes: object) -> State:
    assert state.run is not None
    return replace(state, run=replace(state.run, **changes))


def away(state: State) -> State:
    return replace(state, hosts=tuple(replace(host, state=HostState.UNREACHABLE) for host in state.hosts))


def foot_of_faults(state: State) -> str:
    return text(faults.foot(state.run, view_of(state), 120, DARK))


def without_stalls(state: State) -> State:
    return with_run(state, faults=tuple(replace(fault, stall_s=None) for fault in state.run.faults))


def recovering() -> State:
    """The last step is 9 s old; the workers are started again since 7 s."""
    last = replace(FAULTY.run.recent[-1], time=scenarios.NOW - 9.0)
    fault = replace(FAULTY.run.faults[0], time=scenarios.NOW - 8.0, stall_s=None, stall_with=None, back=None)
    phases = (Phase(name=WORKERS, began=scenarios.NOW - 7.0),)
    state = with_run(FAULTY, faults=(fault,), recent=(), superseded=last, phases=phases)
    return replace(state, hosts=tuple(replace(host, sample=None) for host in state.hosts))


def failed_with_the_last_worker() -> State:
    lost = protocol.WorkerLost(
        seq=RUN.last_seq + 1, time=scenarios.NOW + 1, worker="mercer/cuda:0", host="mercer", device="cuda:0",
        step=1204, cause="its process was killed",
    )  # fmt: skip
    end = protocol.RunFailed(
        seq=lost.seq + 1, time=scenarios.NOW + 9, step=1204, host="mercer", cause="no worker is left"
    )
    return scenarios.fold(TRAINING, [ev.RunProgressed(run="text-7f3", event=event) for event in (lost, end)])


def evaluated(best: int) -> RunView:
    newest = protocol.Evaluated(
        seq=1, time=1.0, step=1200, epoch=1.0, metrics={"val_loss": 0.25, "accuracy": 0.931, "f1": None}, samples=9,
        seconds=1.0, best=best == 1200,
    )  # fmt: skip
    return replace(RUN, evaluated=newest, best=replace(newest, step=best))


def first_step(later: float) -> str:
    """The last line about a start whose first step is predicted to take 40 s."""
    phases = (*(replace(each, ended=scenarios.NOW) for each in STARTING.run.phases),
              Phase(name=FIRST_STEP, began=scenarios.NOW))  # fmt: skip
    made = protocol.PlanMade(seq=9, time=scenarios.NOW, strategy="sync", shares=(), predicted_step_s=40.0)
    return text(phases_lines(with_run(STARTING, phases=phases, plan=made), scenarios.NOW + later, 80, DARK)[-1:])


def workers_phase(later: float) -> str:
    return text(phases_lines(STARTING, scenarios.NOW + later, 80, DARK)[-1:])


def sweep_ended() -> str:
    about = {"run": "sweep-1", "job": "digits", "host": "mercer", "iterations": 0, "batch_size": 0, "parameters": 0}
    begun = protocol.RunStarted(seq=1, time=scenarios.NOW - 60, **about)
    ended = protocol.RunFinished(
        seq=2, time=scenarios.NOW, steps=20, samples=0, final_loss=0.25, samples_per_second=0.0, checkpoint=""
    )
    happened = [ev.RunProgressed(run="sweep-1", event=event) for event in (begun, ended)]
    state = scenarios.fold(State(cluster="lab"), happened)
    return str(outcome_line(state.run, 100, view_of(state)))


def failed_before_its_first_step() -> tuple[State, State]:
    end = protocol.RunFailed(seq=2, time=scenarios.NOW, step=0, host="mercer", cause="no memory")
    return STARTING, apply(STARTING, ev.RunProgressed(run="text-7f3", event=end))


def failed_in_mid_run() -> tuple[State, State]:
    """In the middle of its next step."""
    end = protocol.RunFailed(seq=RUN.last_seq + 1, time=scenarios.NOW, step=1205, host="mercer", cause="x")
    return TRAINING, apply(TRAINING, ev.RunProgressed(run="text-7f3", event=end))


def simulated(speed: float) -> str:
    host = replace(scenarios.demo().hosts[0], facts=scenarios.facts("ash", simulated_speed=speed))
    return text(details_lines(host, None, scenarios.NOW, 80, DARK))


def hinted() -> State:
    changed = ev.HostChanged(
        time=scenarios.NOW, host="nas", state=HostState.UNFIT, detail="Ray is missing", hint="pip install '.[node]'"
    )
    return apply(scenarios.fresh(), changed)


def decided(line: str) -> str:
    entry = scenarios.log_line("nas", "coordinator", 3, line)
    return text(logs.log_lines([entry], view_of(UP), 120))


def tiny_parts() -> str:
    steps = tuple(
        replace(step, workers=tuple(replace(part, push_s=1e-5, pull_s=0.0) for part in step.workers))
        for step in RUN.recent
    )
    return text(step_time_lines(recent_times(replace(RUN, recent=steps)), 100, 8, DARK)[-1:])


def kept(*names: str) -> TeardownReport:
    kinds = {"profiles": "measurements", "mine": "folder"}
    items = (HostItem(host="nas", kind=kinds.get(name, name), detail=f"~/.hetero-tui/lab/{name}") for name in names)
    return TeardownReport(kept=tuple(items))


PREVIEW = TeardownPreview(cluster="demo", running="", stops=(), unreachable=())
UNSEEN = TeardownReport(unseen=("nas", "studio"))
REMOVAL = "`rm -r ~/.hetero-tui/lab` on a host removes"
CAME_AGAIN = LogLine(time=scenarios.NOW, level=ev.Level.INFO, text="it runs at 2.5 times its speed", count=3)
MESSAGES: dict[str, tuple[Callable[[], str], tuple[str, ...], tuple[str, ...]]] = {
    # What a user is told on leaving.
    "leaving, a run": (lambda: farewell(TRAINING, ""), ("text-7f3 goes on without this screen", "attach text-7f3"), ()),
    "leaving, a cluster": (lambda: farewell(scenarios.finished(), ""), ("stays up", "hetero-tui down"), ()),
    "leaving, unseen run": (lambda: farewell(away(TRAINING), ""), ("is not known",), ()),
    # What there is to do.
    "nothing looked at": (
        lambda: text(idle_lines(view_of(scenarios.fresh()), 100, 3)[:1]), ("looking at 4 machines …",), ("ready",)
    ),
    "some looked at": (
        lambda: text(idle_lines(view_of(with_host(scenarios.fresh(), "nas", state=HostState.READY)), 100, 3)[:1]),
        ("1 of 4 machines ready, 3 still looked at: u",),
        (),
    ),
    "readonly": (
        lambda: text(idle_lines(view_of(scenarios.probed(), keys=(), readonly=True), 100, 3)[:1]),
        ("2 of 4 machines ready",),
        (":",),
    ),
    "train, nothing looked at": (lambda: train_form.foot(scenarios.fresh(), "digits", {}), (), ("ready",)),
    "train beside a sweep": (
        lambda: train_form.foot(scenarios.sweeping(UP), "digits", {}), ("hosts ready, in use by sweep-12ab",), ()
    ),
    "no run ever": (lambda: view_of(apply(UP, ev.RunsListed(runs=()))).no_run, ("No run yet. Press t to train.",), ()),
    "a run to come": (lambda: view_of(UP, awaits_run=True).no_run, ("A run is about to start.",), ("train",)),
    "a sweep": (lambda: view_of(scenarios.sweeping(UP)).no_run, ("sweep-12ab is running on these machines",), ()),
    # How far a start is.
    "start, a second later": (lambda: workers_phase(1.0), ("first step in about 5 s",), ()),
    "start, late": (lambda: workers_phase(5.0), ("longer than usual; then about 3 s to the first step",), ()),
    "first step": (lambda: first_step(0.0), ("first step in about 40 s",), ()),
    "first step, late": (lambda: first_step(60.0), ("longer than usual",), ("about",)),
    "catching up": (lambda: catching_up_words(RUN, Behind(seq=9000, step=3000)), ("step 1,204 of 3,000",), ()),
    # How a run ended, and how good it is.
    "failed before its first step": (
        lambda: call_for(*failed_before_its_first_step())[1],
        ("text-7f3 failed before its first step: no memory",),
        (),
    ),
    "failed": (lambda: call_for(*failed_in_mid_run())[1], ("after step 1,204: ",), ()),
    "sweep": (sweep_ended, ("sweep-1 finished", "best loss 0.2500", "in 1 min"), ("20",)),
    "evaluation": (lambda: evaluation_words(evaluated(1200)), ("val loss 0.25, accuracy 93.1%", "the best"), ()),
    "a part below 1 %": (tiny_parts, ("push <1%", "pull 0%"), ()),
    "plan": (lambda: plan.title_of(RUN, RUN.plan, 200), ("a step predicted 250 ms, measured ",), ()),
    "plan, corrected": (
        lambda: plan.title_of(replace(RUN, predicted_s=0.9), RUN.plan, 200),
        ("a step planned 250 ms, predicted 900 ms, measured ",),
        (),
    ),
    # Faults.
    "faults, restarting": (
        lambda: foot_of_faults(with_host(FAULTY, "nas", state=HostState.RESTARTING)), (" · 1 host restarting",), ()
    ),
    "faults, recovering": (lambda: foot_of_faults(recovering()), ("the run is recovering",), ("paused",)),
    "faults, no stall": (lambda: foot_of_faults(without_stalls(FAULTY)), (" faults · no stall",), ()),
    "faults, to the end": (
        lambda: foot_of_faults(failed_with_the_last_worker()),
        ("3 faults · 0.9 s stalled (0.3%), then to the end",),
        (),
    ),
    "faults, finished": (
        lambda: foot_of_faults(with_run(failed_with_the_last_worker(), state=RunState.FINISHED)),
        ("3 faults · 0.9 s stalled (0.3%)",),
        ("end",),
    ),
    # A host, and the log.
    "hint, log": (lambda: hinted().log[-1].text, ("nas is unfit: Ray is missing -> pip install '.[node]'",), ()),
    "full speed": (lambda: simulated(1.0), ("as fast as this computer",), ("slowed",)),
    "half speed": (lambda: simulated(0.5), ("×0.5 of this computer", "slowed"), ()),
    "came again": (lambda: text(log_lines(CAME_AGAIN, None, 100, DARK)), ("its speed (came 3 times)",), ()),
    "our decisions": (
        lambda: decided("INFO remote_agent.training.coordinator.recovery.membership: step 9: nas leaves"),
        ("step 9: nas leaves",),
        ("INFO", "remote_agent"),
    ),
    "our warnings": (lambda: decided("WARNING remote_agent.runs: slow"), ("WARNING slow",), ("remote_agent",)),
    "a user's own logging": (lambda: decided("INFO mine: as it is"), ("INFO mine: as it is",), ()),
    # A teardown.
    "teardown, demo": (
        lambda: text(question_lines(PREVIEW, 90, DARK, demo=True)), ("until the demo ends",), ("environment",)
    ),
    "torn down, unseen": (
        lambda: outcome(UNSEEN), ("nothing is left; not looked at, as there was no answer: nas, studio.",), ()
    ),
    "torn down, kept": (
        lambda: outcome(kept("agent", "runs", "profiles")), ("nothing runs; kept: agent, runs, measurements.",), ()
    ),
    "kept: runs": (
        lambda: text(kept("runs").kept_words), ("kept on nas: runs (listed again", f"{REMOVAL} its runs"), ("purge",)
    ),
    "kept: agent and runs": (
        lambda: text(kept("agent", "runs").kept_words),
        ("`hetero-tui down --purge` removes all but the runs", f"{REMOVAL} its runs"),
        (),
    ),
}  # fmt: skip
"""What produces it, what is in it, and what is not."""


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_says(name: str) -> None:
    produce, words, without = MESSAGES[name]
    said = produce()
    assert [word for word in words if word not in said] == [], said
    assert [word for word in without if word in said] == [], said


@pytest.mark.parametrize(
    ("changes", "row", "word", "title"),
    [
        ({}, None, "starting", "Start"),
        ({"history": 90}, None, "resuming", "Resume"),
        ({"step": 40, "superseded": RUN.recent[-1]}, None, "recovering", "Recovery"),
        ({"step": 40, "superseded": RUN.recent[-1]}, (LOST, None), "recovering", "Recovery"),
    ],
)
def test_a_run_that_is_started_again_is_said_to_be_resumed_or_to_recover(changes, row, word, title) -> None:
    if row is not None:
        what, back = row
        changes = changes | {
            "faults": (Fault(number=1, time=1.0, step=40, host="nas", worker="", word=what, what="", back=back),)
        }
    state = with_run(STARTING, **changes)
    assert f"{word}: workers 12 s" in header(state, 120)
    assert start_title(state) == title


def test_of_runs_that_make_no_steps_of_their_own_none_are_counted() -> None:
    known = {"job": "digits", "step": 0, "loss": None, "started": scenarios.NOW - 90, "host": "mercer"}
    sweep = protocol.RunSummary(id="sweep-1", state=RunState.RUNNING, script=True, **known)
    failed = protocol.RunSummary(id="digits-1", state=RunState.FAILED, **known)
    swept = replace(sweep, state=RunState.FINISHED, step=20, loss=0.25)  # of 20 trials the best
    rows = run_rows(tuple(("mercer", run) for run in (sweep, failed, swept)))
    assert [row[3:6] for row in rows] == [["-", "-", "-"], ["0", "n/a", "n/a"], ["-", "0.2500", "-"]]
    lines = text(idle_lines(view_of(replace(UP, runs=(sweep, failed))), 80, 4)).splitlines()
    assert [line.rpartition("  ")[0] for line in lines[1:]] == ["✕ digits-1  failed, no step", "● sweep-1  running"]


@given(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=300), st.integers(20, 200))
def test_wrapping_loses_nothing_and_keeps_to_the_width(said: str, width: int) -> None:
    parts = wrapped(said, width)
    assert "".join(parts).replace(" ", "") == said.replace(" ", "")
    assert max(map(cell_len, parts)) <= width


def test_a_character_that_needs_two_cells_goes_on_below_too() -> None:
    assert wrapped("梯度累积 ok", 6) == ["梯度累", "积 ok"]
    assert wrapped("梯度", 1) == ["梯", "度"], "there is no room for it"


def test_a_long_event_goes_on_below_itself() -> None:
    entry = LogLine(time=scenarios.NOW, level=ev.Level.BAD, text="word " * 30)
    lines = [line.plain for line in log_lines(entry, UTC, 60, DARK)]
    assert lines[0].startswith("14:21:00  ✕ word")
    assert all(line.startswith(" " * 12 + "word") and len(line) <= 60 for line in lines[1:] if line.strip())
