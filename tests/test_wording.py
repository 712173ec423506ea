"""Numbers for people."""

from __future__ import annotations

import pytest

from remote_agent.wording import number, share


@pytest.mark.parametrize(
    ("value", "digits", "words"),
    [
        (190.0, 2, "190"),
        (99.6, 2, "100"),
        (9.96, 2, "10"),
        (3.14, 2, "3.1"),
        (1.0, 2, "1"),
        (0.0412345, 3, "0.0412"),
        (12345.6, 3, "12,346"),
        (999.96, 4, "1000"),
        (12345.6, 4, "12,346"),
        (0.98611, 4, "0.9861"),
        (-190.0, 2, "-190"),
        (1.25e-7, 3, "1.25e-07"),
        (0.0, 3, "0"),
    ],
)
def test_a_number_has_few_digits_and_no_exponent(value: float, digits: int, words: str) -> None:
    assert number(value, digits) == words


@pytest.mark.parametrize(
    ("fraction", "words"),
    [(0.0, "0%"), (1 / 256, "<1%"), (0.0051, "1%"), (0.41, "41%"), (2999 / 3000, "99%"), (1.0, "100%")],
)
def test_a_part_that_is_there_is_never_said_to_be_nothing_or_all(fraction: float, words: str) -> None:
    assert share(fraction) == words
