"""Text that comes from a host is data: what is shown of it has no control characters, and it has an end."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from remote_agent.kinds import nearest

# C0 and C1 controls, escape sequences, bidirectional overrides, halves of surrogate pairs and other invisible
# characters: a host could otherwise move the cursor, colour the screen, disguise a name, or make printing fail.
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_].*?(?:\x1b\\|$)|[@-Z\\-_])", re.DOTALL
)
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff"
    r"\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# Signs that stand above or below a letter and have no width: a heap of them reaches into the lines around. And skin
# tones, which some terminals draw within the sign before them, and others beside it.
_MARKS = (
    r"\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u06d6-\u06ed\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0f71-\u0f84"
    r"\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\u302a-\u302f\u3099\u309a\ufe20-\ufe2f"
)
_HEAPS = re.compile(rf"(?<=[{_MARKS}]{{3}})[{_MARKS}]+|[\U0001f3fb-\U0001f3ff]")


@dataclass(frozen=True, slots=True, repr=False)
class HostText:
    """Text as a host sent it. It is no ``str``: where a ``str`` is asked for, it is a type error.

    Formatted or printed, it is one clean line. ``raw`` is for parsers (:mod:`hetero_tui.answers`), for what goes back
    to the same host, and for nothing else.
    """

    raw: str

    def __str__(self) -> str:
        return one_line(self)

    def __repr__(self) -> str:
        return repr(one_line(self))

    def last(self, start: str) -> str | None:
        """The last line that begins with ``start``, raw; None: there is none."""
        found = self.raw.rfind(f"\n{start}") + 1
        if found == 0 and not self.raw.startswith(start):
            return None
        end = self.raw.find("\n", found)
        return self.raw[found:] if end < 0 else self.raw[found:end]


def plain(text: str | HostText, limit: int = 2000) -> str:
    """``text`` without escape sequences and control characters (newline and tab stay), at most ``limit`` long."""
    raw = text.raw if isinstance(text, HostText) else text
    clean = _CONTROL.sub("", _ESCAPE_SEQUENCE.sub("", raw.replace("\r\n", "\n")))
    clean = clean if clean.isascii() else _HEAPS.sub("", clean)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


WHOLE = 2000
"""Characters of a message that nothing of ours exceeds: its end says what to do, and is never cut."""


def one_line(text: str | HostText, limit: int = 200) -> str:
    """``text`` as one plain line: white space runs become single spaces."""
    return plain(" ".join(plain(text, limit * 4).split()), limit)


END = 100_000
"""Characters of a text's end in which its last lines are looked for."""


def last_lines(text: str | HostText, count: int = 5, limit: int = 600) -> str:
    """The last ``count`` lines of ``text`` that are not empty, plain, at most ``limit`` characters."""
    raw = text.raw if isinstance(text, HostText) else text
    lines = [line.rstrip() for line in plain(raw[-END:], END).splitlines() if line.strip()]
    return "\n".join(lines[-count:])[-limit:]


def loss_figure(value: float | None) -> str:
    """A loss with enough digits to see it move: ``4.803``, ``0.5078``, ``0.00016``, ``1234.5``, ``n/a``."""
    if value is None:
        return "n/a"
    size = abs(value)
    if not math.isfinite(value) or size >= 1e5 or 0 < size < 0.01:
        return f"{value:.2g}"
    return f"{value:.{1 if size >= 100 else 3 if size >= 1 else 4}f}"


def duration(seconds: float) -> str:
    """A time span as people write it: ``8 s``, ``2 min 5 s``, ``3 h 20 min``."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def meant(word: str, known: Collection[str]) -> str:
    """``; did you mean 'mercer'?`` with the one of the ``known`` words that is nearest; empty: none is near."""
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""
