"""Decides whether the head is lost, and which host can continue its run, from evidence as values. Pure.

A head that does not answer the laptop may be well: the laptop's own link can be the broken one. So the other hosts of
the cluster are asked, too. Only when none of them reaches the head's Ray either, for a while, is it taken as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from remote_agent.protocol import HeadReport, RunSummary


class Verdict(Enum):
    """What the other hosts' words mean for a head that does not answer the laptop."""

    LIVES = "lives"  # another host reaches it: wait for the laptop's own link
    LOST = "lost"  # no other host reaches it
    UNKNOWN = "unknown"  # no host can be asked: no other one answers, or none is in a cluster


def judge_head(witnesses: Mapping[str, HeadReport | None]) -> Verdict:
    """What the other hosts say of the head; None: the host did not answer."""
    words = [report for report in witnesses.values() if report is not None and report.epoch is not None]
    if not words:
        return Verdict.UNKNOWN
    return Verdict.LIVES if any(report.answers for report in words) else Verdict.LOST


def silence_in_words(witnesses: Mapping[str, HeadReport | None]) -> str:
    """Why the head is taken as lost: who can't reach it, and how that shows."""
    said = [f"{host}: {report.silence}" for host, report in witnesses.items() if report is not None and report.silence]
    return f"it answers neither the laptop nor the other hosts ({', '.join(said)})"


def holders(run: str, copies: Iterable[tuple[str, RunSummary]]) -> frozenset[str]:
    """The hosts whose folder of ``run`` holds its newest checkpoint; what a replaced cluster did does not count."""
    known = [
        (summary.epoch, summary.checkpoint, host)
        for host, summary in copies
        if summary.id == run and summary.checkpoint is not None
    ]
    newest = max((entry[:2] for entry in known), default=None)
    return frozenset(host for epoch, checkpoint, host in known if (epoch, checkpoint) == newest)


def others_began(run: str, copies: Iterable[tuple[str, RunSummary]], newest_epoch: int) -> bool:
    """Whether a cluster newer than the one that ``run`` was on last is there, or is being formed."""
    return newest_epoch > max((summary.epoch for _, summary in copies if summary.id == run), default=0)
