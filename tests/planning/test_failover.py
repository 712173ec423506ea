"""A head is given up only on the word of others, and its run goes on where its newest checkpoint is."""

from hypothesis import given
from hypothesis import strategies as st

from hetero_tui.planning.cluster import Verdict, holders, judge_head, silence_in_words
from remote_agent.protocol import HeadReport, RunSummary
from remote_agent.states import RunState

ANSWERS = HeadReport(answers=True, epoch=1)
SILENT = HeadReport(answers=False, silence="no answer", epoch=1)
NO_NODE = HeadReport(answers=False, silence="no node was started here")
REPORTS = st.one_of(st.none(), st.sampled_from([ANSWERS, SILENT, NO_NODE]))


def copy(host: str, checkpoint: int | None, *, epoch: int = 1, run: str = "digits-1") -> tuple[str, RunSummary]:
    summary = RunSummary(
        id=run, job="digits", state=RunState.LOST, step=9, loss=None, started=1.0, epoch=epoch, checkpoint=checkpoint
    )
    return host, summary


@given(st.dictionaries(st.text(min_size=1, max_size=3), REPORTS))
def test_a_head_that_any_host_of_the_cluster_reaches_is_never_given_up(
    words: dict[str, HeadReport | None],
) -> None:
    verdict = judge_head(words)
    assert (verdict is Verdict.LIVES) == (ANSWERS in words.values())
    assert (verdict is Verdict.UNKNOWN) == (not {ANSWERS, SILENT} & {word for word in words.values() if word})


def test_without_a_witness_nothing_is_known() -> None:
    assert judge_head({}) is Verdict.UNKNOWN
    assert judge_head({"a": None, "b": NO_NODE}) is Verdict.UNKNOWN
    assert judge_head({"a": None, "b": SILENT}) is Verdict.LOST


def test_the_cause_names_who_does_not_reach_the_head() -> None:
    assert "b: no answer" in silence_in_words({"a": None, "b": SILENT})


def test_those_with_the_newest_checkpoint_hold_the_run() -> None:
    found = [copy("a", 10), copy("b", 15), copy("c", 15), copy("d", None), copy("e", 99, run="text-1")]
    assert holders("digits-1", found) == {"b", "c"}


def test_a_checkpoint_that_a_replaced_head_made_since_does_not_count() -> None:
    assert holders("digits-1", [copy("old", 80, epoch=1), copy("new", 40, epoch=2)]) == {"new"}
    assert holders("digits-1", [copy("old", 40, epoch=1), copy("new", 40, epoch=2)]) == {"new"}


def test_a_run_without_a_checkpoint_has_no_holder() -> None:
    assert holders("digits-1", [copy("a", None)]) == frozenset()
