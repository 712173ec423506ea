"""Writes numbers for people, with few digits. Pure."""

from __future__ import annotations


def number(value: float, digits: int = 3) -> str:
    """A number with so many digits: ``0.0412``, ``3.1``, ``190``, ``12,300``; only a very small one has an exponent."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def share(fraction: float, digits: int = 0) -> str:
    """A part of a whole: ``41%``, with a digit ``41.3%``; what is there is never 0, and what is not whole never 100%.

    That is ``<1%`` and ``99%``, or ``<0.1%`` and ``99.9%``.
    """
    least = 10.0 ** -(2 + digits)
    if 0 < fraction < least / 2:
        return f"<{least:.{digits}%}"
    return f"{1 - least:.{digits}%}" if 1 - least / 2 <= fraction < 1 else f"{fraction:.{digits}%}"
