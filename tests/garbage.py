"""What a broken or hostile host may send in place of a line of JSON, by name; for tests of the parsers and in the lab.

Each is made of a line that would be right. ``REFUSED`` can't be taken for an answer; ``DISGUISED`` may be, and is then
shown without what could harm a terminal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from remote_agent import protocol

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


# --- Good lines, and random changes of them --------------------------------------------------------------------------

FACTS = json.dumps(
    {
        "probe": 1,
        "hostname": "mercer",
        "user": "me",
        "home": "/home/me",
        "os": {"system": "Linux", "release": "6.1", "name": "Debian 12", "machine": "x86_64"},
        "python": {"version": "3.11.7", "executable": "/usr/bin/python3", "prefix": "/usr"},
        "packages": {"ray": "2.60.0", "torch": "2.13.0+cu126", "safetensors": None},
        "torch_build": "cu126",
        "cpu": {"model": "CPU", "physical": 4, "logical": 8, "quota": 2.5},
        "memory": {"total_bytes": 16 << 30, "available_bytes": 8 << 30},
        "disk": {"path": "/home", "total_bytes": 100 << 30, "free_bytes": 50 << 30, "unwritable": ""},
        "accelerators": [
            {"kind": "cuda", "index": 0, "name": "TITAN X", "memory_bytes": 12 << 30, "driver": "550", "uuid": "GPU-1"}
        ],
        "addresses": [
            {"interface": "eth0", "address": "10.0.0.2", "prefix": 24, "speed_mbps": 1000},
            {"interface": "eth0", "address": "fd00::2", "prefix": 64, "speed_mbps": None},
        ],
        "machine": "0123456789abcdef",
        "clock": 1767225600.5,
        "free_ports": [6389, 8365],
        "problems": ["nvidia-smi is there but failed: exit 9"],
    },
    separators=(",", ":"),
)
"""A probe's answer."""

EVENTS = tuple(
    map(
        protocol.encode,
        (
            protocol.RunStarted(
                seq=1,
                time=1767225600.5,
                run="text-7f3a",
                job="text",
                host="mercer",
                iterations=100,
                batch_size=64,
                parameters=1000,
                config={"learning_rate": 0.1, "strategy": "sync"},
            ),
            protocol.RunFailed(
                seq=5, time=1767225604.5, step=3, host="nas", cause="no", detail="a.py:3 in loss\n  1/0"
            ),
        ),
    )
)
"""Lines of a run's history."""

_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**400,
    2**63,
    1e308,
    -1e-308,
    "",
    "three",
    "\x1b[2J",
    "\ud800",
    "é" * 3000,
    [],
    {},
    [[[[[]]]]],
    {"": {"": {}}},
    list(range(300)),
)
_PIECES = (
    *("NaN", "-Infinity", "1e999", "9" * 5000),
    *("\x00", "\x1b[31m", "\\ud800", "\\u009b", "é"),
    *('"', "{", "}", ",", "[" * 2000),
)


def mutated(line: str, chance: random.Random) -> str:
    """The line with up to four random changes of its bytes, values or structure."""
    for _ in range(chance.randint(1, 4)):
        line = chance.choice((_replace_value, _insert, _cut))(line, chance)
    return line


def _replace_value(line: str, chance: random.Random) -> str:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return line
    places: list[tuple[Any, Any]] = []

    def collect(found: Any) -> None:
        if isinstance(found, dict | list):
            keys = found.keys() if isinstance(found, dict) else range(len(found))
            places.extend((found, key) for key in keys)
            for key in keys:
                collect(found[key])

    collect(document)
    if not places:
        return line
    within, key = chance.choice(places)
    if isinstance(within, dict) and chance.random() < 0.2:
        within[chance.choice(("\x1b[31m", "new", "time"))] = within.pop(key)
    else:
        within[key] = chance.choice(_VALUES)
    try:
        return json.dumps(document, ensure_ascii=chance.random() < 0.5, separators=(",", ":"))
    except ValueError:
        return line


def _insert(line: str, chance: random.Random) -> str:
    place = chance.randint(0, len(line))
    return line[:place] + chance.choice(_PIECES) + line[place:]


def _cut(line: str, chance: random.Random) -> str:
    start = chance.randint(0, len(line))
    return line[:start] + line[start + chance.randint(1, 30) :]
