"""The status line: which facts it has at which width, and what it leaves out rather than say something untrue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero_tui.events import ClusterChanged, ClusterState, HostLost, HostSampled, HostState, RunChanged, RunProgressed
from hetero_tui.fold import apply
from hetero_tui.state import State
from hetero_tui.ui.cells import host_line
from hetero_tui.ui.columns import choose
from hetero_tui.ui.header import header_line
from hetero_tui.ui.palette import DARK
from remote_agent import protocol
from remote_agent.states import RunState
from tests.ui import scenarios
from tests.ui.looking import header


def with_host(state: State, name: str, word: HostState) -> State:
    hosts = tuple(replace(host, state=word) if host.name == name else host for host in state.hosts)
    return replace(state, hosts=hosts)


def with_run(state: State, /, **changes: object) -> State:
    return replace(state, run=replace(state.run, **changes))


def heard_of(later: float) -> State:
    """The scenario ``training`` so many seconds later: no step was made since, and the head has said so."""
    now = scenarios.NOW + later
    sample = replace(scenarios.sample("mercer", 0.84, 9.1, 12.0), time=now + 1)  # its clock is ahead, as it was
    return apply(scenarios.training(), HostSampled(time=now, host="mercer", sample=sample))


def run_is(state: State, word: RunState) -> State:
    return apply(state, RunChanged(time=scenarios.NOW, run="text-7f3", job="text", state=word))


TRAINING, FAULTY = scenarios.training(), scenarios.faulty()
UNREACHABLE = HostLost(time=scenarios.NOW, host="mercer", cause="no answer")
NAMED = with_run(FAULTY, run="language-model-7f3")


@pytest.mark.parametrize(
    ("state", "width", "busy", "words", "without"),
    [
        (FAULTY, 200, "", "◐ training 1/3    1 paused, 1 away, 1 drained  ", ""),
        (FAULTY, 100, "", "◐ training 1/3    1 paused, 1 away  ", ""),
        (FAULTY, 80, "", "◐ training 1/3    1 paused  ● text-7f3", ""),
        (TRAINING, 40, "", "◐ training 3/4", ""),
        (with_host(TRAINING, "nas", HostState.RESTARTING), 200, "", "1 restarting", ""),
        (TRAINING, 120, "probing", "◌ probing", ""),
        (TRAINING, 120, "asking hosts", "◐ training 3/4", "asking"),  # a question hides nothing
        (scenarios.up(), 120, "asking hosts", "◌ asking hosts", ""),
        (NAMED, 120, "", "1 paused  ● language-model-7f3  step 1,204/5,000", "last step"),
        (NAMED, 130, "", "● language-model-7f3", "24%"),  # a bar goes before a name is cut
        (with_run(FAULTY, run="language-model-e2c0"), 80, "", "● langu…l-e2c0  step 1,204/5,000", ""),
        (run_is(TRAINING, RunState.STOPPED), 200, "", "■ text-7f3 stopped at step 1,204", "samples/s"),
        (run_is(TRAINING, RunState.LOST), 200, "", "lost after step 1,204", ""),
        (with_run(FAULTY, state=RunState.STOPPING), 80, "", "text-7f3 stopping", " left"),
        (run_is(scenarios.starting(), RunState.STOPPING), 120, "ending the run", "text-7f3 stopping: workers", ""),
        (scenarios.starting(), 60, "", "text-7f3 starting", ""),
        (apply(TRAINING, replace(UNREACHABLE, host="crosby")), 200, "", "3/4    1 away, 1 not seen", ""),
        (scenarios.sweeping(scenarios.up()), 120, "", "● sweep-12ab running", ""),
        (scenarios.sweeping(scenarios.up(), RunState.FINISHED), 120, "", "", "sweep"),
        (apply(scenarios.sweeping(scenarios.up()), ClusterChanged(state=ClusterState.DOWN)), 120, "", "", "sweep"),
        (apply(scenarios.sweeping(scenarios.up()), UNREACHABLE), 120, "", "", "sweep"),  # it may have ended
        (scenarios.sweeping(TRAINING), 120, "", "text-7f3", "sweep"),
    ],
)  # fmt: skip
def test_the_status_has_these_words(state: State, width: int, busy: str, words: str, without: str) -> None:
    said = header(state, width, busy)
    assert words in said
    assert not without or without not in said
    assert len(said) == width


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("state", ["empty", "probed", "training", "finished"])
def test_the_status_line_is_as_wide_as_the_screen_and_keeps_the_clock(width: int, state: str) -> None:
    said = header(getattr(scenarios, state)(), width, "stopping")
    assert len(said) == width
    assert said.endswith("14:21 ")


def test_a_fleet_of_which_no_host_answers_is_not_said_to_train() -> None:
    hosts = tuple(replace(host, state=HostState.UNREACHABLE) for host in TRAINING.hosts)
    assert "✕ none answers" in header(replace(TRAINING, hosts=hosts), 80)


def test_the_age_of_the_last_step_becomes_grey_and_then_orange() -> None:
    colours = []
    for later in (0.0, 5.0, 60.0):
        line = header_line(heard_of(later), "", scenarios.NOW + later, None, 200, DARK)
        at = line.plain.index("last step")
        colours.append(next(str(span.style) for span in line.spans if span.start <= at < span.end))
    assert colours == [DARK.foreground, DARK.muted, DARK.warning]


@pytest.mark.parametrize(("later", "left"), [(0.0, "17 min left"), (30.0, "no step 30 s"), (600.0, "no step 10 min")])
def test_a_run_that_makes_no_steps_has_neither_time_left_nor_speed(later: float, left: str) -> None:
    assert left in header(heard_of(later), 80, later=later)
    assert ("518 samples/s" in header(heard_of(later), later=later)) == (later == 0.0)


@pytest.mark.parametrize(("why", "later"), [("asleep", 28_800.0), ("cable", 30.0)])
def test_a_run_that_this_computer_hears_nothing_of_is_not_said_to_make_no_steps(why: str, later: float) -> None:
    """It slept for a night, and wakes up; or the head does not answer it, and goes on."""
    state = TRAINING
    if why == "cable":
        lost = HostLost(time=scenarios.NOW + later, host="mercer", cause="no answer for 15 s")
        state = apply(heard_of(later), lost)
    for width, words in ((80, "not seen"), (200, "seen")):
        said = header(state, width, later=later)
        assert words in said
        assert not [untrue for untrue in ("no step", "last step") if untrue in said]


def test_a_host_that_only_this_computer_does_not_reach_is_counted_as_training_until_its_worker_is_lost() -> None:
    """The run's own events come from the head: crosby still makes its part of each step."""
    state = apply(TRAINING, HostLost(time=scenarios.NOW, host="crosby", cause="no answer for 15 s"))
    line = host_line(state.host("crosby"), state.run, choose(150, ("mercer",)), scenarios.NOW, DARK).plain
    assert ("unreachable" in line, "41%" in line) == (True, True)
    lost = protocol.WorkerLost(
        seq=state.run.last_seq + 1, time=scenarios.NOW, worker="crosby/cuda:0", host="crosby", device="cuda:0",
        step=1204, cause="x",
    )  # fmt: skip
    state = apply(state, RunProgressed(run="text-7f3", event=lost))
    assert "◐ training 2/4    2 away" in header(state, 120)
