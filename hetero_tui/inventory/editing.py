"""Puts hosts into the text of an inventory and takes them out: every other line, and every comment, stays as it is."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.nodes import CollectionNode, MappingNode
from ruamel.yaml.tokens import BlockEndToken, StreamEndToken


def with_host(text: str, name: str, fields: Mapping[str, object]) -> str:
    """The text of a valid inventory, or an empty one, with one more host on a line of its own, behind the others."""
    root: Any = YAML(typ="safe", pure=True).compose(text)
    item = f"{name}: {_flow(fields)}"
    if not isinstance(root, MappingNode):
        text = text[: root.start_mark.index] + text[root.end_mark.index :] if root else text  # without a `null`
        return _with_lines(text, len(text.splitlines()), "hosts:", f"  {item}")
    pair = next((pair for pair in root.value if pair[0].value == "hosts"), None)
    if pair is None:
        if root.flow_style:
            return _within(text, root, f"hosts: {{{item}}}")
        indent = " " * int(root.value[0][0].start_mark.column)
        return _with_lines(text, _last_line(root) + 1, f"{indent}hosts:", f"{indent}  {item}")
    key, hosts = pair
    start, end = hosts.start_mark.index, hosts.end_mark.index
    if isinstance(hosts, MappingNode) and hosts.value and not hosts.flow_style:
        column = int(hosts.value[-1][0].start_mark.column)
        lines = text.splitlines()
        before = _last_line(hosts) + 1
        while before < len(lines) and re.match(rf" {{{column + 1},}}#", lines[before]):  # a comment of the last host
            before += 1
        return _with_lines(text, before, f"{' ' * column}{item}")
    if isinstance(hosts, MappingNode) and (hosts.value or root.flow_style or "#" in text[start:end]):
        return _within(text, hosts, item)
    if root.flow_style:
        return f"{text[:start]} {{{item}}}{text[end:]}"
    # `{}`, `null` or nothing is written there. What follows may be a comment, which needs the space before it.
    kept = text[:start] if text[end:].startswith("#") else text[:start].rstrip(" ")
    indent = " " * int(key.start_mark.column)
    return _with_lines(kept + text[end:], key.end_mark.line + 1, f"{indent}  {item}")


def without_host(text: str, name: str) -> str:
    """The text of a valid inventory without one of its hosts; what stood in comments at it becomes lines of their own.

    Raises:
        KeyError: it has no such host.
    """
    hosts = _value(YAML(typ="safe", pure=True).compose(text), "hosts")
    entry = next((pair for pair in hosts.value if pair[0].value == name), None) if hosts is not None else None
    if hosts is None or entry is None:
        raise KeyError(name)
    return _without(text, hosts, entry)


def with_fields(text: str, name: str, fields: Mapping[str, object]) -> str:
    """The text of a valid inventory with these fields of one host set, or taken out where they are None.

    What a host has so far stays where it stands, with its comments. Raises KeyError where there is no such host.
    """
    for key in sorted(fields, key=lambda key: fields[key] is None):  # set first: a host is never empty
        text = _with_field(text, name, key, fields[key])
    return text


def _with_field(text: str, name: str, key: str, value: object) -> str:
    hosts = _value(YAML(typ="safe", pure=True).compose(text), "hosts")
    entry = next((pair for pair in hosts.value if pair[0].value == name), None) if hosts is not None else None
    if entry is None:
        raise KeyError(name)
    named, host = entry
    item = _flow({key: value})
    if not isinstance(host, MappingNode):  # nothing but the defaults so far: no value, or a written null
        place, colon = _behind_colon(text, named)
        end = max(place, host.end_mark.index) if host.start_mark.index < host.end_mark.index else place
        return text if value is None else f"{text[:place]}{colon} {item}{text[end:]}"
    pair = next((pair for pair in host.value if pair[0].value == key), None)
    if value is None:
        return text if pair is None else _without(text, host, pair)
    if pair is not None and not host.flow_style and _last_line(pair[1]) > pair[0].start_mark.line:
        return _without(text, host, pair, instead=item[1:-1])
    if pair is not None:
        start, end = pair[0].start_mark.index, pair[1].end_mark.index
        if pair[1].start_mark.index == pair[1].end_mark.index:  # no value so far
            end, _ = _behind_colon(text, pair[0])
        return f"{text[:start]}{item[1:-1]}{text[end:]}"
    if host.flow_style:
        return _within(text, host, item[1:-1])
    indent = " " * int(host.value[-1][0].start_mark.column)
    return _with_lines(text, _last_line(host) + 1, f"{indent}{item[1:-1]}")


def _without(text: str, mapping: MappingNode, entry: Any, *, instead: str = "") -> str:
    """Without one ``key: value`` of a mapping; what stood in comments at it becomes lines of their own.

    The line ``instead`` takes its place, which is possible in a block mapping.
    """
    if mapping.flow_style:
        return _without_item(text, entry)
    first, last = entry[0].start_mark.line, _last_line(entry[1])
    lines = text.splitlines(keepends=True)
    comments = _comments(text)
    indent = " " * int(entry[0].start_mark.column)
    kept = [
        lines[number] if lines[number].lstrip().startswith("#") else f"{indent}{comments[number]}{_line_end(text)}"
        for number in range(first, last + 1)
        if number in comments
    ]
    new = [f"{indent}{instead}{_line_end(text)}"] if instead else []
    return "".join([*lines[:first], *new, *kept, *lines[last + 1 :]])


def _flow(fields: Mapping[str, object]) -> str:
    """A mapping as YAML writes it on one line, each value quoted where it has to be."""
    yaml = YAML()
    yaml.width = 4096
    mapping = CommentedMap({key: [*value] if isinstance(value, tuple) else value for key, value in fields.items()})
    mapping.fa.set_flow_style()
    buffer = io.StringIO()
    yaml.dump(mapping, buffer)
    return buffer.getvalue().strip()


def _line_end(text: str) -> str:
    found = re.search(r"\r\n|\n|\r", text)
    return found[0] if found else "\n"


def _with_lines(text: str, before: int, *lines: str) -> str:
    """With ``lines`` put before the line of that number."""
    end = _line_end(text)
    kept = text.splitlines(keepends=True)
    if before and before <= len(kept) and not kept[before - 1].endswith(("\n", "\r")):
        kept[before - 1] += end
    return "".join([*kept[:before], *(line + end for line in lines), *kept[before:]])


def _within(text: str, mapping: MappingNode, item: str) -> str:
    """With one more item in a flow mapping: behind the last, or behind the brace that opens it."""
    if mapping.value:
        key, last = mapping.value[-1]
        if last.start_mark.index < last.end_mark.index:
            place, gap = last.end_mark.index, ""
        else:  # no value
            place, colon = _behind_colon(text, key)
            gap = "" if colon else " "
        return f"{text[:place]}{gap}, {item}{text[place:]}"
    place = mapping.start_mark.index + 1
    return text[:place] + item + text[place:]


def _behind_colon(text: str, key: Any) -> tuple[int, str]:
    """Where a key's colon ends, and an empty text; in ``{key}``, which has none, where the key ends, and the colon."""
    colon = re.compile(r"\s*:").match(text, key.end_mark.index)
    return (colon.end(), "") if colon is not None else (key.end_mark.index, ":")


def _value(root: Any, key: str) -> MappingNode | None:
    found = next((value for name, value in root.value if name.value == key), None) if root is not None else None
    return found if isinstance(found, MappingNode) else None


def _last_line(node: Any) -> int:
    """The line on which a value ends; the end mark of a block mapping or list is where the next thing begins."""
    if isinstance(node, CollectionNode) and not node.flow_style and node.value:
        items = node.value if isinstance(node, MappingNode) else [(item, item) for item in node.value]
        return max(
            _last_line(value) if value.start_mark.index < value.end_mark.index else int(key.end_mark.line)
            for key, value in items
        )
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
    """Without one ``name: {...}`` of a flow mapping, and one of the commas beside it; comments in it stay."""
    start, end = entry[0].start_mark, entry[1].end_mark
    comments = _comments(text)
    inside = [comments[number] for number in range(start.line, end.line) if number in comments]
    before, after = text[: start.index], text[end.index :]
    kept = "".join(f" {comment}{_line_end(text)}" for comment in inside)
    if found := re.match(r"\s*,\s*", after):
        return before + kept + after[found.end() :]
    return re.sub(r"\s*,\s*$", "", before) + kept + after
