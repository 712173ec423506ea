"""Mutated inventories: no traceback, each mistake with its line, and no comment lost by changing hosts.

``python -m benchmarks.bad_inventories [--count 10000] [--seed 0]``

A valid file is changed at random (characters, words, lines) and read. Where it is still valid, a host is added, and
each is removed and changed. The exit code is 1, and the seed is printed, where anything but a list of mistakes with
their lines comes of it, or a comment is gone.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from hetero_tui.errors import InventoryError
from hetero_tui.inventory import Inventory
from hetero_tui.inventory.file import add_host, change_host, host_fields, load, remove_host

FILES = (
    """# c1#
cluster:  # c2#
  name: lab
  head: mercer  # c3#
defaults: {user: me, port: 22}  # c4#
# c5#
hosts:  # c6#
  # c7#
  mercer: {address: mercer.local}  # c8#
  crosby:
    # c9#
    address: 192.168.1.12  # c10#
    devices: [cpu, "cuda:0"]
    proxy_jump: mercer
  # c11#
  nas: {address: "nas.local", role: server,
    cpus: 2}  # c12#
# c13#
""",
    "hosts: {a: {address: x},  # c1#\n  # c2#\n  b: {address: y, # c3#\n  port: 23} # c4#\n}\n# c5#\n",
    "---\nhosts:\n    laptop:  # c1#\n        connection: local\n    # c2#\n...\n# c3#\n",
    "cluster: {name: x}\nhosts: {}  # c1#\n",
    "# c1#\nhosts:  # c2#\n  # c3#\n",
    """hosts:
  a:
    devices:  # c1#
      - cpu  # c2#
      # c3#
    user: >-
      me
    address: x
  # c4#
  b:
    address: y
    devices:
    - cpu  # c5#
    # c6#
  c: {address: z}
# c7#
""",
)
_PIECES = (
    *(
        "{",
        "}",
        "[",
        "]",
        ":",
        ": ",
        ",",
        "#",
        " # ",
        "\n",
        "\n  ",
        "\t",
        "- ",
        "? ",
        "| ",
        ">",
        "&a ",
        "*a",
        "!!x ",
        "%",
    ),
    *("'", '"', "\\", "~", "null", "yes", "1.5", "0o17", "9" * 400, "<<: *a", "---\n", "...\n", "\r", "\r\n", "\x00"),
    *(
        "\x0c",
        "\x85",
        "\u2028",
        "\ufeff",
        "é",
        "☃",
        "😀",
        "\ud7ff",
        "address: ",
        "hosts:",
        "port: 70000",
        "role: boss",
        "::1",
    ),
)


def mutated(seed: int) -> str:
    """A file; the same for the same ``seed``."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret is made
    text = chance.choice(FILES)
    for _ in range(chance.randint(1, 3)):
        text = chance.choice((_insert, _cut, _twice, _swap, _shift))(text, chance)
    return text.replace("\n", "\r\n") if chance.random() < 0.1 else text


def wrong_with(text: str, folder: Path) -> str:
    """What is wrong with how this file is treated; empty: nothing."""
    path = folder / "inventory.yaml"
    path.write_bytes(text.encode())
    try:
        inventory = load(path)
    except InventoryError as error:
        lacking = [one for one in error.mistakes if not re.match(r"line [1-9]\d*\b", one) and "is empty" not in one]
        return f"mistakes without a line: {lacking}" if lacking else ""
    comments = _comments(text)
    try:
        add_host(path, "added", {"address": "added.example", "port": 2222})
    except InventoryError as error:
        return f"add: {error}\n{text!r}"
    after = path.read_bytes().decode()
    if lost := [comment for comment in comments if comment not in after]:
        return f"lost by add: {lost}\n{after}"
    if [host.name for host in load(path).hosts] != [*(host.name for host in inventory.hosts), "added"]:
        return f"add changed other hosts\n{after}"
    for host in inventory.hosts:
        path.write_bytes(text.encode())
        try:
            remove_host(path, host.name)
        except InventoryError as error:  # it is the head, or another host's jump
            if re.search(r"cluster.head|proxy_jump", str(error)):
                continue
            return f"remove: {error}\n{text!r}"
        after = path.read_bytes().decode()
        if lost := [comment for comment in comments if comment not in after]:
            return f"lost by remove {host.name}: {lost}\n{after}"
        if load(path).hosts != tuple(other for other in inventory.hosts if other is not host):
            return f"remove {host.name} changed other hosts\n{after}"
    return _wrong_with_changing(text, path, inventory, comments)


def _wrong_with_changing(text: str, path: Path, inventory: Inventory, comments: list[str]) -> str:
    for host in inventory.hosts:
        path.write_bytes(text.encode())
        own = host_fields(path, host.name)
        try:
            change_host(path, host.name, {**{key: own[key] for key in own if key != "role"}, "cpus": 3})
        except InventoryError as error:
            return f"change {host.name}: {error}\n{text!r}"
        after = path.read_bytes().decode()
        if lost := [comment for comment in comments if comment not in after]:
            return f"lost by change {host.name}: {lost}\n{after}"
    return ""


def _comments(text: str) -> list[str]:
    """Those of the marks that stand in no value of the file."""
    marks = [f"c{number}#" for number in range(1, 14)]
    values = " ".join(_scalars(YAML(typ="safe", pure=True).compose(text)))
    return [mark for mark in marks if f"# {mark}" in text and mark not in values]


def _scalars(node: Any) -> Iterator[str]:
    if node is None or isinstance(node.value, str):
        yield "" if node is None else node.value
        return
    for item in node.value:
        for each in item if isinstance(item, tuple) else (item,):
            yield from _scalars(each)


def _insert(text: str, chance: random.Random) -> str:
    place = chance.randint(0, len(text))
    return text[:place] + chance.choice(_PIECES) + text[place:]


def _cut(text: str, chance: random.Random) -> str:
    start = chance.randint(0, len(text))
    return text[:start] + text[start + chance.randint(1, 12) :]


def _twice(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    place = chance.randint(0, max(0, len(lines) - 1))
    return "".join([*lines[: place + 1], *lines[place:]])


def _swap(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    if len(lines) > 1:
        one, other = chance.sample(range(len(lines)), 2)
        lines[one], lines[other] = lines[other], lines[one]
    return "".join(lines)


def _shift(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    place = chance.randrange(len(lines))
    lines[place] = chance.choice((" ", "  ", "\t", "    ")) + lines[place]
    return "".join(lines)


def main() -> int:
    """Try as many as are asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.bad_inventories", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.count):
            if wrong := wrong_with(mutated(seed), Path(folder)):
                bad += 1
                print(f"seed {seed}: {wrong}")
    print(f"{options.count:,} files, {bad} treated wrongly")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
