"""Which hosts leave a run whose workers exchange directly, so that all others reach each other."""

from __future__ import annotations

import pytest

from remote_agent.training.coordinator.recovery.apart import without


@pytest.mark.parametrize(
    ("apart", "out"),
    [
        ([], []),
        (["bc"], ["c"]),
        (["ab"], ["b"]),
        (["ab", "bc"], ["b"]),
        (["ac", "bc", "bd"], ["c", "d"]),
        (["ab", "cd"], ["d", "b"]),
        (["ab", "ac", "bc", "ad", "bd", "cd"], ["d", "c", "b"]),
    ],
)
def test_as_few_leave_as_it_takes_and_the_first_stays(apart: list[str], out: list[str]) -> None:
    assert list(without("abcd", {frozenset(pair) for pair in apart})) == out


def test_each_says_whom_it_does_not_reach() -> None:
    found = without("abcd", {frozenset("ab"), frozenset("bd")})
    assert found["b"].cause == (
        "b does not reach a and d, though all answer the head: see to the network, or to a firewall, between them"
    )
