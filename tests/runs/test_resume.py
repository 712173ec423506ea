"""Which runs can go on, by their word, before anything is started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero_tui.errors import RunError, Unreachable
from hetero_tui.runs.resume import refuse_beside, refuse_if_done, refuse_without_checkpoint
from remote_agent.protocol import RunSummary
from remote_agent.states import RunState

DONE = RunSummary(id="text-1", job="text", state=RunState.FINISHED, step=500, loss=1.0, started=1.0, host="nas")


def test_a_run_that_has_made_all_its_steps_goes_on_only_to_more() -> None:
    with pytest.raises(RunError) as error:
        refuse_if_done(DONE, {})
    assert "resume text-1 --set num_iterations=1000" in str(error.value)
    refuse_if_done(DONE, {"num_iterations": "501"})
    refuse_if_done(DONE, {"epochs": "9"})
    refuse_if_done(replace(DONE, state=RunState.STOPPED), {"learning_rate": "0.1"})
    for state in (RunState.FINISHED, RunState.FAILED):
        with pytest.raises(RunError, match="is a script or a sweep"):
            refuse_if_done(replace(DONE, script=True, state=state), {})
    with pytest.raises(RunError, match="has made 500 steps already"):
        refuse_if_done(replace(DONE, state=RunState.STOPPED), {"num_iterations": "500"})


def test_a_run_without_a_checkpoint_is_refused_with_what_is_known_of_the_hosts_that_do_not_answer() -> None:
    failed = replace(DONE, state=RunState.FAILED)
    refuse_without_checkpoint(failed, [("nas", failed), ("mercer", replace(failed, checkpoint=40))])
    with pytest.raises(RunError, match=r"text-1 ended before its first checkpoint -> .*hetero-tui train"):
        refuse_without_checkpoint(failed, [("nas", failed)])
    away = Unreachable("mercer", "no answer", step="connect", hint="is it on?")
    with pytest.raises(RunError, match=r"no host that answers .*; not asked: mercer \(no answer\) -> is it on\?"):
        refuse_without_checkpoint(failed, [("nas", failed)], [away])


def test_a_run_does_not_go_on_beside_another_one_that_is_under_way() -> None:
    lost, live = replace(DONE, state=RunState.LOST), replace(DONE, id="text-2", state=RunState.RUNNING)
    with pytest.raises(RunError, match=r"text-2 is under way.*hetero-tui stop text-2"):
        refuse_beside([("nas", lost), ("nas", live)], "text-1")
    refuse_beside([("nas", lost), ("nas", replace(live, state=RunState.STOPPED))], "text-1")
    refuse_beside([("nas", lost), ("nas", replace(live, script="script"))], "text-1")
    refuse_beside([("nas", replace(lost, state=RunState.RUNNING))], "text-1")
