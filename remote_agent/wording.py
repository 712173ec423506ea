"""Writes numbers for people, with few digits. Pure."""

from __future__ import annotations


def number(value: float, digits: int = 3) -> str:
    """A number with so many digits: ``0.0412``, ``3.1``, ``190``, ``12,300``; only a very small one has an exponent."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
