"""Text that comes from a host is data: what is shown of it has no control characters, and it has an end."""

from __future__ import annotations

import re

# C0 and C1 controls, escape sequences, bidirectional overrides and other invisible formatting characters: a host
# could otherwise move the cursor, colour the screen or disguise a name.
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_].*?(?:\x1b\\|$)|[@-Z\\-_])", re.DOTALL
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def plain(text: str, limit: int = 2000) -> str:
    """``text`` without escape sequences and control characters (newline and tab stay), at most ``limit`` long."""
    clean = _CONTROL.sub("", _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def one_line(text: str, limit: int = 200) -> str:
    """``text`` as one plain line: white space runs become single spaces."""
    return plain(" ".join(plain(text, limit * 4).split()), limit)


def last_lines(text: str, count: int = 5, limit: int = 600) -> str:
    """The last ``count`` lines of ``text`` that are not empty, plain, at most ``limit`` characters."""
    lines = [line.rstrip() for line in plain(text, 100_000).splitlines() if line.strip()]
    return "\n".join(lines[-count:])[-limit:]
