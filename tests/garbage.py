"""What a broken or hostile host may send in place of a line of JSON, by name; for tests of the parsers and in the lab.

Each is made of a line that would be right. ``REFUSED`` can't be taken for an answer; ``DISGUISED`` may be, and is then
shown without what could harm a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Make = Callable[[str], bytes]

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\u202e\u200b\x08\r"


def _values(change: Callable[[Any], Any]) -> Make:
    """Each value that is no list and no object is changed, but for ``kind``."""

    def walk(found: Any, key: str = "") -> Any:
        if isinstance(found, dict):
            return {name: walk(entry, name) for name, entry in found.items()}
        if isinstance(found, list):
            return [walk(entry) for entry in found]
        return found if key in ("kind", "probe") else change(found)

    return lambda line: json.dumps(walk(json.loads(line))).encode()


def _numbers(word: str) -> Make:
    """Each number becomes this word."""
    mark = "\x00number\x00"

    def change(found: Any) -> Any:
        return mark if isinstance(found, int | float) and not isinstance(found, bool) else found

    return lambda line: _values(change)(line).replace(json.dumps(mark).encode(), word.encode())


def _texts(change: Callable[[str], str], *, raw: bool = False) -> Make:
    def make(line: str) -> bytes:
        made = _values(lambda found: change(found) if isinstance(found, str) else found)(line)
        return json.dumps(json.loads(made), ensure_ascii=False).encode("utf-8", "surrogatepass") if raw else made

    return make


def _first_key(line: str) -> str:
    return str(next(key for key in json.loads(line) if key not in ("kind", "seq", "time", "probe")))


REFUSED: dict[str, Make] = {
    "nothing": lambda line: b"",
    "html": lambda line: b"<html><body>Login required</body></html>",
    "half of it": lambda line: line[: len(line) // 2].encode(),
    "a list": lambda line: f"[{line}]".encode(),
    "a number": lambda line: b"17",
    "null": lambda line: b"null",
    "an empty object": lambda line: b"{}",
    "single quotes": lambda line: line.replace('"', "'").encode(),
    "200,000 lists": lambda line: b'{"probe":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "200,000 objects": lambda line: b'{"probe":' * 200_000,
    "NaN": _numbers("NaN"),
    "-Infinity": _numbers("-Infinity"),
    "1e400": _numbers("1e400"),
    "10^400": _numbers("1" + "0" * 400),
    "10^5000": _numbers("1" + "0" * 5000),
    "1e305": _numbers("1e305"),
    "words for numbers": _numbers('"three"'),
    "lists for texts": _values(lambda found: [found] if isinstance(found, str) else found),
    "null bytes": lambda line: line.replace(":", ":\x00").encode(),
    "invalid UTF-8": lambda line: b'\xff\xfe{"' + b"\xc3\x28" * 100,
    "20 MB in one line": lambda line: b'{"probe":"' + b"x" * 20_000_000 + b'"}',
    "a million entries": lambda line: b'{"probe":[' + b"0," * 1_000_000 + b"0]}",
    "300,000 newlines": lambda line: b"\n" * 300_000,
}

DISGUISED: dict[str, Make] = {
    "escape codes": _texts(lambda text: ESCAPES + text),
    "raw escape codes": _texts(lambda text: text + "\x7f\x9b2J\x9d0;owned\x9c\u202e", raw=True),
    "half a surrogate pair": _texts(lambda text: text + "\ud800"),
    "escape codes in names": lambda line: line.replace(
        f'"{_first_key(line)}"', f'"\\u001b[31m{_first_key(line)}"', 1
    ).encode(),
    "long texts": _texts(lambda text: text + "é" * 50_000),
    "newlines": _texts(lambda text: text + "\nnas: ok\r\nmercer: ok"),
    "a byte order mark": lambda line: b"\xef\xbb\xbf" + line.encode(),
    "unknown words": _texts(lambda text: "flying"),
    "truth for numbers": _numbers("true"),
    "numbers below zero": _numbers("-7"),
    "large numbers": _numbers("9223372036854775807"),
    "each key twice": lambda line: (line[:-1] + "," + line[1:]).encode(),
}

GARBAGE = REFUSED | DISGUISED


def harmless(shown: str) -> bool:
    """Whether a terminal only prints this."""
    return not any(
        (ord(sign) < 0x20 and sign not in "\n\t") or 0x7F <= ord(sign) <= 0x9F or sign in "\u202e\u200b\ud800"
        for sign in shown
    )
