"""Kinds and ranges of settings: what a value has to be, and how it is read from text.

A field says both in its annotation: ``Annotated[int, Range(least=1)]``, ``Annotated[str, Choice(("a", "b"))]``.
"""

from __future__ import annotations

import difflib
import math
import numbers
import operator
import typing
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_NONE = frozenset({"none", "null", ""})


@dataclass(frozen=True, kw_only=True)
class Range:
    """The numbers from ``least`` to ``most``, or beyond ``above`` and ``below``, which are not among them."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def mistake(self, value: float) -> str:
        """What ``value`` has to be; empty: it is."""
        given = [
            (f"{word} {bound:g}", holds(value, bound))
            for word, bound, holds in (
                ("at least", self.least, operator.ge),
                ("above", self.above, operator.gt),
                ("at most", self.most, operator.le),
                ("below", self.below, operator.lt),
            )
            if bound is not None
        ]
        return "" if all(held for _, held in given) else "must be " + " and ".join(text for text, _ in given)


@dataclass(frozen=True)
class Choice:
    """One of these words."""

    words: Collection[str]

    def mistake(self, value: str) -> str:
        """Which words are valid, and which is meant; empty: ``value`` is one of them."""
        if value in self.words:
            return ""
        close = nearest(value, self.words)
        return (f"did you mean {close!r}? " if close else "") + "valid: " + ", ".join(self.words)


@dataclass(frozen=True)
class Required:
    """A text that has to be given; ``what`` says what it is."""

    what: str

    def mistake(self, value: str) -> str:
        """That it is missing; empty: it is there."""
        return "" if value else f"has to be given: {self.what}"


def words(hint: Any) -> str:
    """``int, at least 1``: what a setting of this annotation has to be."""
    plain, *limits = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    said = [getattr(plain, "__name__", str(plain))]
    for limit in limits:
        said += [", ".join(limit.words)] if isinstance(limit, Choice) else []
        said += [limit.mistake(math.nan).removeprefix("must be ")] if isinstance(limit, Range) else []
        said += [f"required: {limit.what}"] if isinstance(limit, Required) else []
    return ", ".join(said)


def initials(name: str) -> str:
    """``lr`` of ``learning_rate``."""
    return "".join(word[:1] for word in name.split("_"))


def spelt_out(name: str, valid: Collection[str]) -> str:
    """The first of ``valid`` whose initials ``name`` is, as papers write ``lr``; else ``name`` itself."""
    short = [known for known in valid if initials(known) == name]
    return short[0] if short and name not in valid else name


ALIKE = 0.66
"""Share of their letters that two words have in common, by :mod:`difflib`, from which on one may be a slip for the
other: two thirds. From a half on, ``nofile.py`` was taken for ``unet.py``."""


def nearest(name: str, valid: Collection[str], *, alike: float = ALIKE) -> str:
    """The one of ``valid`` that a misspelled ``name``, or its initials (``lr``), stands for, in any case; empty: none.

    ``alike``, from 0 to 1, says how similar a misspelled name has to be.
    """
    short = [known for known in valid if initials(known) == name or known.lower() == name.lower()]
    close = short or difflib.get_close_matches(name, valid, n=1, cutoff=alike)
    return close[0] if close else ""


def convert(hint: Any, value: Any, *, parse: bool) -> Any:
    """``value`` as the plain Python value that a field annotated with ``hint`` holds.

    numpy's numbers and booleans become plain ones, and a number of another kind is taken where nothing is lost.

    Args:
        hint: ``bool``, ``int``, ``float`` or ``str``, perhaps ``| None``, perhaps ``Annotated`` with its range.
        parse: a text stands for the value that it spells, as ``--set key=value`` gives it.

    Raises:
        ValueError: it is of another kind, or out of range; the message says what is expected.
    """
    limits: tuple[Any, ...] = ()
    if typing.get_origin(hint) is typing.Annotated:
        hint, *rest = typing.get_args(hint)
        limits = tuple(rest)
    options = typing.get_args(hint)
    if type(None) in options:
        if value is None or (parse and isinstance(value, str) and value.strip().lower() in _NONE):
            return None
        hint = next(option for option in options if option is not type(None))
    if hint not in _READERS:
        raise ValueError("it is no bool, int, float or str, so it can't be set")
    plain = _READERS[hint](_plain(value), parse)
    for limit in limits:
        mistake = limit.mistake(plain)
        if mistake:
            raise ValueError(mistake)
    return plain


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch (shape ``()``) as Python's own; known by its looks, since neither is imported here."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value


def _flag(value: Any, parse: bool) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if parse and word in _TRUE | _FALSE:
            return word in _TRUE
        if word in _TRUE | _FALSE:
            raise ValueError(f"expected {word in _TRUE}, without quotes: a text is true whatever it says")
    raise ValueError("expected true or false" if parse else "expected True or False")


def _whole(value: Any, parse: bool) -> int:
    number = _number_in(value, parse, (int, float))
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    if isinstance(number, float) and number.is_integer():
        return int(number)
    raise ValueError("expected a whole number")


def _number(value: Any, parse: bool) -> float:
    number = _number_in(value, parse, (float,))
    if isinstance(number, bool) or not isinstance(number, int | float | numbers.Real):
        raise ValueError("expected a number")  # noqa: TRY004 - one type of error for every kind of mistake
    try:
        plain = float(number)
    except OverflowError:
        plain = math.inf
    if not math.isfinite(plain):
        raise ValueError("expected a finite number")
    return plain


def _text(value: Any, parse: bool) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")  # noqa: TRY004 - as above
    return str(value)


def _number_in(value: Any, parse: bool, readers: tuple[type[int] | type[float], ...]) -> Any:
    """The number that a text spells, where texts are parsed; anything else as it is."""
    if parse and isinstance(value, str):
        for reader in readers:
            try:
                return reader(value)
            except ValueError:
                continue
    return value


_READERS = {bool: _flag, int: _whole, float: _number, str: _text}
