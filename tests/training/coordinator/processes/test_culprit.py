"""Which call of the user's code ends a run: the one that kills or holds up one worker after the other."""

from __future__ import annotations

from typing import Any

import pytest

from remote_agent.current_call import Place
from remote_agent.training.coordinator.processes.culprit import Crash, culprit, one_sample


def crash(worker: str = "a/cpu", how: str = "SIGSEGV", **place: Any) -> Crash:
    """In step 4, slice 1, in ``__getitem__`` of sample 17, unless it is told otherwise."""
    where = {"step": 4, "slice": 1, "function": "__getitem__", "sample": 17, "samples": 1} | place
    return Crash(worker=worker, host=worker[0], place=Place(**where), how=how, certain=bool(how))


@pytest.mark.parametrize(
    ("crashes", "ends"),
    [
        ([crash()], False),
        ([crash(), crash("b/cpu")], True),
        ([crash(), crash()], True),
        ([crash(how=""), crash("b/cpu", how="")], True),  # killed from outside, at the very same sample
        ([crash(), crash("b/cpu", slice=2)], False),
        ([crash(), crash("b/cpu", step=5)], False),
        ([crash(), crash("b/cpu", function="loss", sample=-1, samples=0)], False),
        ([crash(function="loss", samples=8), crash("b/cpu", function="loss", samples=8)], True),
    ],
)
def test_a_run_ends_once_the_same_call_has_killed_two_workers(crashes: list[Crash], ends: bool) -> None:
    assert culprit(crashes, 3) == (tuple(crashes) if ends else ())


def test_workers_that_are_killed_from_outside_in_the_same_slice_may_be_a_coincidence() -> None:
    killed = [crash(worker, how="", function="loss", samples=8) for worker in ("a/cpu", "b/cpu", "c/cpu")]
    assert not culprit(killed[:2], 3)
    assert culprit(killed, 3)


def test_before_the_first_step_one_worker_that_always_dies_may_be_its_hosts_fault() -> None:
    same, other = [crash(step=0), crash(step=0)], [crash(step=0), crash("b/cpu", step=0)]
    assert not culprit(same, 3)
    assert culprit(same, 1)
    assert culprit(other, 3)


def test_a_sample_is_named_only_where_all_were_at_it() -> None:
    assert one_sample([crash(), crash("b/cpu")]) == 17
    assert one_sample([crash(), crash("b/cpu", sample=18)]) is None
    assert one_sample([crash(samples=8)]) is None
