"""A run that several hosts have a folder of is listed once, by the host that knows best."""

import pytest

from hetero_tui.errors import RunError, UsageError
from hetero_tui.runs.listing import find_among, find_to_stop, told_best
from remote_agent.protocol import RunSummary
from remote_agent.states import RunState


def told(host: str, state: str, *, head: str, epoch: int = 1, seq: int = 9, run: str = "r") -> tuple[str, RunSummary]:
    return host, RunSummary(
        id=run, job="digits", state=RunState(state), step=seq, loss=None, started=1.0, host=head, epoch=epoch, seq=seq
    )


def test_the_heads_own_folder_is_believed_and_not_the_copies() -> None:
    found = [told("b", "lost", head="a", seq=8), told("a", "running", head="a"), told("c", "lost", head="a", seq=8)]
    assert [(host, run.state) for host, run in told_best(found)] == [("a", "running")]
    found = [told("b", "lost", head="a"), told("a", "finished", head="a")]
    assert [(host, run.state) for host, run in told_best(found)] == [("a", "finished")]


def test_without_the_head_the_copy_with_most_events_is_believed() -> None:
    found = [told("b", "lost", head="a", seq=8), told("c", "lost", head="a", seq=9)]
    assert [host for host, _ in told_best(found)] == ["c"]


def test_a_head_that_was_replaced_is_not_believed_though_it_still_trains() -> None:
    found = [told("old", "running", head="old", seq=99), told("new", "lost", head="new", epoch=2, seq=10)]
    assert [host for host, _ in told_best(found)] == ["new"]


def test_a_run_that_ended_before_its_first_event_is_not_the_newest_and_one_that_starts_is() -> None:
    def entry(name: str, state: str, started: float | None) -> tuple[str, RunSummary]:
        return "nas", RunSummary(id=name, job="text", state=RunState(state), step=0, loss=None, started=started)

    runs = [entry("new", "starting", None), entry("old", "lost", None), entry("b", "stopped", 5.0)]
    assert [summary.id for _, summary in told_best(runs)] == ["old", "b", "new"]


def test_a_misspelt_run_is_answered_with_the_nearest_one_and_all_that_there_are() -> None:
    runs = (told("a", "finished", head="a", run="text-7f3a"), told("a", "finished", head="a", run="digits-0b12"))
    with pytest.raises(RunError) as caught:
        find_among(runs, "text-7f3")
    assert caught.value.cause == "no run 'text-7f3' on the hosts that answer; did you mean 'text-7f3a'?"
    assert caught.value.hint == "runs: text-7f3a, digits-0b12"


def test_a_stop_without_a_name_ends_the_only_run_that_is_under_way_though_it_is_not_the_newest() -> None:
    runs = (told("a", "running", head="a", run="text-1"), told("a", "finished", head="a", run="digits-2"))
    assert find_to_stop(runs, None)[1].id == "text-1"
    assert find_to_stop(runs, "text-1")[1].id == "text-1"


def test_where_several_runs_are_under_way_a_stop_has_to_name_one() -> None:
    runs = (told("a", "running", head="a", run="text-1"), told("a", "starting", head="a", run="text-2"))
    with pytest.raises(UsageError) as caught:
        find_to_stop(runs, None)
    assert str(caught.value) == "stop run: text-1 and text-2 are under way -> name the one to stop"
    assert find_to_stop(runs, "text-1")[1].id == "text-1"
