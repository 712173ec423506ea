"""What ``benchmarks.faults`` says of torchft follows from what its replicas reported."""

from __future__ import annotations

import json

import pytest

from benchmarks.faulty import commits
from benchmarks.faulty.figures import Absence, Mark

PART = 20


def report(*steps: tuple[float, int, int, bool]) -> str:
    """A replica's file."""
    return "".join(
        json.dumps({"time": time, "step": step, "participants": participants, "present": present}) + "\n"
        for time, step, participants, present in steps
    )


A = report((1.0, 1, 3, True), (2.0, 2, 3, True), (8.0, 3, 2, True), (9.0, 4, 2, True), (10.0, 5, 3, True))
B = report((1.1, 1, 3, True), (2.1, 2, 3, True), (8.1, 3, 2, True), (9.1, 4, 2, True), (10.1, 5, 3, True))
C = report((1.2, 1, 3, True), (9.2, 4, 2, False), (9.9, 5, 3, True)) + '{"time": 11'
"""Killed in step 2, which the others had committed with its part; healing in step 4; the last line is not finished."""

FOUND = commits.read({"a": A, "b": B, "c": C}, PART)


def test_a_step_counts_once_when_the_first_replica_committed_it_with_those_who_took_part() -> None:
    assert FOUND.progress() == (
        Mark(1.0, 1, 60),
        Mark(2.0, 2, 60),
        Mark(8.0, 3, 40),
        Mark(9.0, 4, 40),
        Mark(9.9, 5, 60),
    )


def test_a_replica_is_away_from_the_first_step_without_it_until_the_first_one_with_it() -> None:
    assert FOUND.away(20.0) == (Absence("c", 2.0, 9.9),)
    assert commits.read({"a": A, "c": report((1.2, 1, 2, True))}, PART).away(20.0) == (Absence("c", 2.0, 20.0),)


def test_parts_of_replicas_that_were_away_are_left_out() -> None:
    assert FOUND.left_out() == 2 * PART


def test_a_step_that_a_replica_commits_again_is_counted_twice_and_is_no_progress() -> None:
    again = commits.read({"a": A + report((30.0, 1, 1, True))}, PART)
    assert again.twice() == PART
    assert FOUND.twice() == 0
    assert again.progress() == commits.read({"a": A}, PART).progress()


@pytest.mark.parametrize(("texts", "missing"), [({"a": A, "c": ""}, {"c"}), ({"a": A, "b": B}, set())])
def test_who_committed_none_of_the_newest_steps_is_missing(texts: dict[str, str], missing: set[str]) -> None:
    assert commits.read(texts, PART).missing() == missing
