"""YAML text as plain values that remember their lines; nothing is constructed, expanded or executed.

The text is only *composed* into nodes, so that a tag can't make an object and an alias can't multiply into gigabytes.
An inventory needs neither: both are mistakes here. See https://yaml.org/spec/1.2.2/ for the words used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.nodes import CollectionNode, MappingNode, ScalarNode, SequenceNode

LARGEST = 256 * 1024
"""Bytes of the largest file that is read: thousands of hosts fit, and a wrong file is refused before it is parsed."""

_DEEPEST = 16  # an inventory nests four deep; the composer is slow on thousands of brackets, and recurses

_TAG = "tag:yaml.org,2002:"
Plain = str | int | float | bool | None


@dataclass(frozen=True)
class Value:
    """One value of the document: ``value`` is a scalar, a tuple of values, or a :class:`Mapping`."""

    value: Any
    line: int


@dataclass(frozen=True)
class Entry:
    """One ``key: value`` of a mapping, and the key's line."""

    key: str
    value: Value
    line: int


@dataclass(frozen=True)
class Mapping:
    """Entries in the file's order; keys may repeat, the reader says so."""

    entries: tuple[Entry, ...] = ()


@dataclass
class Mistakes:
    """What is wrong with a file, as ``line 7: hosts.nas.port: ...``, handed back in the order of the lines."""

    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, where: str, what: str, *, column: int = 0) -> None:
        """Note a mistake at ``line`` (from 1; 0: the file as a whole) of the key path ``where``."""
        place = f"line {line}{f', column {column}' if column else ''}: " if line else ""
        self.found.append((line, f"{place}{where}: {what}" if where else f"{place}{what}"))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(text for _, text in sorted(self.found, key=lambda mistake: mistake[0])))

    def __bool__(self) -> bool:
        return bool(self.found)


def parse(text: str, mistakes: Mistakes) -> Value | None:
    """The document's root; None (with a mistake noted) when the text is not one YAML document without aliases."""
    depth = 0
    if strange := re.search("[\x85\u2028\u2029]", text):  # to some readers the end of a line, to others none
        line = text.count("\n", 0, strange.start()) + 1
        mistakes.add(line, "", f"the character U+{ord(strange[0]):04X} is not allowed")
        return None
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if depth > _DEEPEST:
                mistakes.add(event.start_mark.line + 1, "", "not an inventory: nested too deeply")
                return None
            if isinstance(event, AliasEvent):
                line = event.start_mark.line + 1
                mistakes.add(line, "", f"aliases (*{event.anchor}) are not supported; use `defaults` for shared keys")
                return None
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if _is_cut_off(error):
            mark = error.context_mark or mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        mistakes.add(line, "", _broken(error), column=column)
        return None
    except YAMLError as error:  # a character that YAML forbids has no mark
        place = getattr(error, "position", 0)
        what = f"the character U+{ord(text[place]):04X} is not allowed" if place < len(text) else "it can't be read"
        mistakes.add(text.count("\n", 0, place) + 1, "", f"not YAML: {what}")
        return None
    return None if root is None else _value(root, "", mistakes)


def _is_cut_off(error: MarkedYAMLError) -> bool:
    return re.search("end of stream|stream end", str(error.problem)) is not None


def _broken(error: MarkedYAMLError) -> str:
    problem = " ".join(str(error.problem or error.context or "").split())
    if _is_cut_off(error) and error.context_mark is not None:
        return "not YAML: the quotation mark or bracket that opens here is never closed"
    if "'\\t'" in problem:
        return "a tab where YAML allows spaces only; indent with spaces"
    if "expected a single document" in problem or "expected a single document" in str(error.context):
        return "a second document starts here (---); an inventory is one document"
    return f"not YAML: {problem}" if problem else "not YAML"


def _value(node: Any, where: str, mistakes: Mistakes) -> Value:
    line = node.start_mark.line + 1
    if isinstance(node, CollectionNode) and str(node.tag) not in (f"{_TAG}map", f"{_TAG}seq"):
        _refuse_tag(node, where, mistakes)
    if isinstance(node, MappingNode):
        entries = []
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                mistakes.add(key.start_mark.line + 1, where, "a key must be a word")
                continue
            path = f"{where}.{key.value}" if where else key.value
            line_of_key = key.start_mark.line + 1
            found = _value(value, path, mistakes)
            if found.value is None:  # where nothing is written, the parser's mark is somewhere after the key
                found = Value(None, line_of_key)
            entries.append(Entry(key.value, found, line_of_key))
        return Value(Mapping(tuple(entries)), line)
    if isinstance(node, SequenceNode):
        return Value(tuple(_value(item, where, mistakes) for item in node.value), line)
    return Value(_scalar(node, where, mistakes), line)


def _scalar(node: ScalarNode, where: str, mistakes: Mistakes) -> Plain:
    text = str(node.value)
    tag = str(node.tag)
    try:
        if tag == f"{_TAG}str":
            return text
        if tag == f"{_TAG}null":
            return None
        if tag == f"{_TAG}bool":
            return text.lower() == "true"
        if tag == f"{_TAG}int":
            return int(text.replace("_", ""), 0) if text.lstrip("+-")[:2] in ("0x", "0o", "0b") else int(text)
        if tag == f"{_TAG}float":
            return float(text.replace("_", ""))
    except ValueError:  # e.g. more digits than Python converts: it stays a word, and the field's type complains
        return text
    if tag in (f"{_TAG}timestamp", f"{_TAG}merge"):
        return text
    _refuse_tag(node, where, mistakes)
    return None


def _refuse_tag(node: Any, where: str, mistakes: Mistakes) -> None:
    mistakes.add(node.start_mark.line + 1, where, f"tags ({str(node.tag).replace(_TAG, '!!')}) are not supported")
