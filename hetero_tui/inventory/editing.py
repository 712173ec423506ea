"""Takes hosts out of the text of an inventory: every other line, and every comment, stays as it is."""

from __future__ import annotations

import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode
from ruamel.yaml.tokens import BlockEndToken, StreamEndToken


def without_host(text: str, name: str) -> str:
    """The text of a valid inventory without one of its hosts; what stood in comments at it becomes lines of their own.

    Raises:
        KeyError: it has no such host.
    """
    hosts = _value(YAML(typ="safe", pure=True).compose(text), "hosts")
    entry = next((pair for pair in hosts.value if pair[0].value == name), None) if hosts is not None else None
    if hosts is None or entry is None:
        raise KeyError(name)
    if hosts.flow_style:
        return _without_item(text, entry)
    first, last = entry[0].start_mark.line, _last_line(entry[1])
    lines = text.splitlines(keepends=True)
    comments = _comments(text)
    indent = " " * int(entry[0].start_mark.column)
    kept = [
        lines[number] if lines[number].lstrip().startswith("#") else f"{indent}{comments[number]}\n"
        for number in range(first, last + 1)
        if number in comments
    ]
    return "".join([*lines[:first], *kept, *lines[last + 1 :]])


def _value(root: Any, key: str) -> MappingNode | None:
    found = next((value for name, value in root.value if name.value == key), None) if root is not None else None
    return found if isinstance(found, MappingNode) else None


def _last_line(node: Any) -> int:
    """The line on which a value ends; a block mapping's own end mark is where the next thing begins."""
    if isinstance(node, MappingNode) and not node.flow_style and node.value:
        return max(_last_line(value) for _, value in node.value)
    line, column = node.end_mark.line, node.end_mark.column
    return int(line - 1 if column == 0 and line > node.start_mark.line else line)


def _comments(text: str) -> dict[int, str]:
    """The comment of each line that has one: what follows the last token of the line."""
    ends: dict[int, int] = {}
    for token in YAML(typ="safe", pure=True).scan(text):
        if not isinstance(token, (BlockEndToken, StreamEndToken)):
            ends[token.end_mark.line] = max(ends.get(token.end_mark.line, 0), token.end_mark.column)
    rest = {number: line[ends.get(number, 0) :].strip() for number, line in enumerate(text.splitlines())}
    return {number: comment for number, comment in rest.items() if comment.startswith("#")}


def _without_item(text: str, entry: Any) -> str:
    """Without one ``name: {...}`` of a flow mapping, and one of the commas beside it."""
    before, after = text[: entry[0].start_mark.index], text[entry[1].end_mark.index :]
    if found := re.match(r"\s*,\s*", after):
        return before + after[found.end() :]
    return re.sub(r"\s*,\s*$", "", before) + after
