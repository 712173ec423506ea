"""``inventory.yaml``: read with every mistake at once, and edited so that comments survive."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import tempfile
from collections.abc import Iterable
from collections.abc import Mapping as MappingType
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml.error import YAMLError

from hetero_tui.errors import InventoryError
from hetero_tui.inventory import editing
from hetero_tui.inventory.document import LARGEST, Mapping, Mistakes, Value, parse
from hetero_tui.inventory.schema import Host, Inventory
from remote_agent.device_kinds import TORCH_NAMES
from remote_agent.kinds import nearest

HOST_KEYS = tuple(name for name in Host.model_fields if name != "name")
"""Keys that a host may have, and ``defaults`` too."""

_SSH_ONLY = ("address", "port", "user", "identity_file", "proxy_jump", "known_hosts")
_TOP = ("cluster", "defaults", "hosts")
_CLUSTER = ("name", "head", "security", "network")
_STARTER = (
    "`hetero-tui add me@mercer.local` writes a machine to it; for this computer alone write a line"
    " `hosts: {laptop: {connection: local}}`; `hetero-tui demo` needs no file"
)
_EXPECTED = {
    "string_type": "should be text; put it in quotes",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "tuple_type": "should be a list, such as [cpu]",
}


def load(path: Path) -> Inventory:
    """Read the inventory at ``path``; ``defaults`` are merged into the hosts, paths are made absolute.

    Raises:
        InventoryError: the file can't be read, or has mistakes: all of them, in the order of their lines.
    """
    return _read(_text(path), path)


def add_host(path: Path, name: str, fields: MappingType[str, object]) -> Inventory:
    """Write the host ``name`` into the file, which is made if there is none; comments and order are kept.

    The new text is checked before it replaces the old one in one step, so a refused host changes nothing.

    Raises:
        InventoryError: the file has mistakes, knows the host already, or would have mistakes with it.
    """
    inventory, text = with_host(path, name, fields)
    _replace(path, text)
    return inventory


def with_host(path: Path, name: str, fields: MappingType[str, object]) -> tuple[Inventory, str]:
    """The inventory, and its text, as :func:`add_host` would make them; nothing is written. Raises as that does."""
    text = _text(path) if path.exists() else ""
    before = _read(text, path, may_be_empty=True)
    refused = f"{name} can't be added to {path}"
    if before.host(name) is not None:
        what = f"hosts.{name}: is there already; edit the file to change it"
        raise InventoryError(str(path), (what,), refused)
    changed = editing.with_host(text, name, fields)
    return _checked(changed, path, refused, before, name), changed


def remove_host(path: Path, name: str) -> Inventory:
    """Take the host ``name`` out of the file; comments and everything else stay as they are.

    Raises:
        InventoryError: the file has mistakes, has no such host, or would have mistakes without it (it is the head).
    """
    text = _text(path)
    existing = _read(text, path)
    if existing.host(name) is None:
        raise _unknown(path, name, existing)
    named = [
        ("cluster.head", existing.head),
        *((f"hosts.{one.name}.proxy_jump", one.proxy_jump) for one in existing.hosts),
    ]
    if uses := tuple(
        f"{where}: names {name}; change that first" for where, named_there in named if named_there == name
    ):
        raise InventoryError(str(path), uses, f"{name} can't be removed from {path}")
    changed = editing.without_host(text, name)
    inventory = _checked(changed, path, f"{name} can't be removed from {path}", existing, name)
    _replace(path, changed)
    return inventory


def host_fields(path: Path, name: str) -> dict[str, object]:
    """The fields of a host in the file, without ``defaults``; raises InventoryError, also for no such host."""
    text = _text(path)
    existing = _read(text, path)
    if existing.host(name) is None:
        raise _unknown(path, name, existing)
    return _own_fields(text, name)


def with_changed(path: Path, name: str, fields: MappingType[str, object]) -> tuple[Inventory, str]:
    """The inventory, and its text, in which a host has exactly these fields beside ``defaults``; nothing is written.

    Comments and everything else stay. Raises InventoryError as :func:`remove_host` does, and where the file is written
    in a way that can't be changed without changing more.
    """
    refused = f"{name} can't be changed in {path}"
    before = host_fields(path, name)
    text = _text(path)
    inventory = _read(text, path)
    changes = {key: fields.get(key) for key in {**before, **fields} if fields.get(key) != before.get(key)}
    try:
        changed = editing.with_fields(text, name, changes)
    except YAMLError:
        raise _unusual(path, name, refused) from None
    after = _checked(changed, path, refused, inventory, name)
    if _own_fields(changed, name) != fields:
        raise _unusual(path, name, refused)
    return after, changed


def change_host(path: Path, name: str, fields: MappingType[str, object]) -> Inventory:
    """Give a host exactly these fields beside ``defaults``, as :func:`with_changed` would; raises as that does."""
    inventory, text = with_changed(path, name, fields)
    _replace(path, text)
    return inventory


def _own_fields(text: str, name: str) -> dict[str, object]:
    mistakes = Mistakes()
    root = parse(text, mistakes)
    top = _fields(root, "", None, mistakes) if root is not None else {}
    hosts = _fields(top["hosts"], "hosts", None, mistakes) if "hosts" in top else {}
    own = _fields(hosts[name], name, None, mistakes) if name in hosts else {}
    return {key: _unwrapped(value) for key, value in own.items() if _unwrapped(value) is not None}


def _unknown(path: Path, name: str, existing: Inventory) -> InventoryError:
    known = ", ".join(host.name for host in existing.hosts) or "none"
    return InventoryError(str(path), (f"hosts are: {known}",), f"{path} has no host {name}")


def _checked(text: str, path: Path, refused: str, before: Inventory, name: str) -> Inventory:
    """The inventory of a text that is about to be written; its lines are not those of the file that the user knows.

    It must differ from the inventory ``before`` in nothing but the host ``name``.
    """
    try:
        after = _read(text, path)
    except InventoryError as error:
        mistakes = tuple(re.sub(r"^line \d+: | \(line \d+\)", "", mistake) for mistake in error.mistakes)
        raise InventoryError(str(path), mistakes, refused) from None
    if _without(after, name) != _without(before, name):
        raise _unusual(path, name, refused)
    return after


def _without(inventory: Inventory, name: str) -> Inventory:
    return inventory.model_copy(update={"hosts": tuple(host for host in inventory.hosts if host.name != name)})


def _unusual(path: Path, name: str, refused: str) -> InventoryError:
    return InventoryError(str(path), (f"hosts.{name}: is written in an unusual way; edit the file",), refused)


def _text(path: Path) -> str:
    def refuse(what: str) -> InventoryError:
        return InventoryError(str(path), (what,), f"{path} can't be read")

    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # opening a pipe would wait for its writer
            raise refuse("it is no regular file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise refuse(f"there is no such file; {_STARTER}") from None
    except IsADirectoryError:
        raise refuse("it is a folder; name the file in it") from None
    except OSError as error:
        raise refuse(str(error.strerror)) from None
    if len(data) > LARGEST:
        raise refuse(f"it is larger than {LARGEST // 1024} KiB, so it can't be an inventory")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refuse(f"line {line}: not UTF-8 text; save the file as UTF-8") from None


def _read(text: str, path: Path, *, may_be_empty: bool = False) -> Inventory:
    mistakes = Mistakes()
    root = parse(text, mistakes)
    if root is None and not mistakes and not may_be_empty:
        mistakes.add(0, "", f"the file is empty; {_STARTER}")
    top = _fields(root, "", _TOP, mistakes) if root is not None else {}
    cluster, cluster_lines = _cluster(top.get("cluster"), mistakes)
    defaults = _defaults(top.get("defaults"), mistakes)
    hosts, lines = _hosts(top.get("hosts"), defaults, path.parent, mistakes)
    check_hosts(hosts, lines, mistakes)
    if isinstance(head := cluster.get("head"), str):
        check_head(head, tuple(lines), cluster_lines["head"], mistakes)
    if mistakes:
        raise InventoryError(str(path), tuple(mistakes))
    return Inventory(hosts=hosts, **cluster)


def _fields(value: Value, where: str, allowed: Iterable[str] | None, mistakes: Mistakes) -> dict[str, Value]:
    """The entries of one mapping; unknown and repeated keys, and what is no mapping, are mistakes."""
    if value.value is None:
        return {}
    if not isinstance(value.value, Mapping):
        example = ", such as {address: mercer.local}" if where.startswith("hosts.") else ""
        mistakes.add(value.line, where, f"should be a mapping of `key: value`{example}")
        return {}
    known = None if allowed is None else tuple(allowed)
    fields: dict[str, Value] = {}
    lines: dict[str, int] = {}
    for entry in value.value.entries:
        path = f"{where}.{entry.key}" if where else entry.key
        if entry.key in fields:
            mistakes.add(entry.line, path, f"is there twice, first in line {lines[entry.key]}")
        elif known is not None and entry.key not in known:
            mistakes.add(entry.line, path, f"unknown key; {_nearest(entry.key, known)}")
        else:
            fields[entry.key] = entry.value
            lines[entry.key] = entry.line
    return fields


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = nearest(word.lower(), known)
    return f"did you mean '{close}'?" if close else f"known here: {', '.join(known)}"


def _cluster(value: Value | None, mistakes: Mistakes) -> tuple[dict[str, Any], dict[str, int]]:
    fields = _fields(value, "cluster", _CLUSTER, mistakes) if value else {}
    if "name" in fields:
        fields["cluster"] = fields.pop("name")
    good = _good(Inventory, {}, fields, "cluster", mistakes)
    return good, {key: field.line for key, field in fields.items()}


def _defaults(value: Value | None, mistakes: Mistakes) -> dict[str, Any]:
    fields = _fields(value, "defaults", HOST_KEYS, mistakes) if value else {}
    return _good(Host, {"name": "defaults"}, fields, "defaults", mistakes)


def _hosts(
    value: Value | None, defaults: dict[str, Any], folder: Path, mistakes: Mistakes
) -> tuple[tuple[Host, ...], dict[str, int]]:
    """The hosts without a mistake of their own, and the line of every name."""
    hosts: list[Host] = []
    lines: dict[str, int] = {}
    for name, entry in (_fields(value, "hosts", None, mistakes) if value else {}).items():
        where = f"hosts.{name}"
        lines[name] = entry.line
        before = len(mistakes.found)
        fields = _fields(entry, where, HOST_KEYS, mistakes)
        whole = len(mistakes.found) == before  # else the address may be there, under a misspelt key
        named = _good(Host, {}, {"name": Value(name, entry.line)}, where, mistakes)
        own = _good(Host, {"name": "host"}, fields, where, mistakes)
        local = own.get("connection", defaults.get("connection", "ssh")) == "local"
        for key in _SSH_ONLY:
            if local and own.get(key) is not None:
                mistakes.add(fields[key].line, f"{where}.{key}", "has no meaning with `connection: local`")
        merged = {**defaults, **own}
        if whole and not local and merged.get("address") is None and ("address" in own or "address" not in fields):
            mistakes.add(entry.line, where, "has no address; add `address: ...`, or `connection: local`")
        if len(mistakes.found) == before:
            merged = {key: None if local and key in _SSH_ONLY else item for key, item in merged.items()}
            hosts.append(Host.model_validate(_absolute(merged, folder) | named))
    return tuple(hosts), lines


def _good(
    model: type[BaseModel], rest: dict[str, Any], fields: dict[str, Value], where: str, mistakes: Mistakes
) -> dict[str, Any]:
    """The fields that the model accepts, each by itself, as plain values; for the others a mistake."""
    values = {key: _unwrapped(field) for key, field in fields.items() if _unwrapped(field) is not None}
    bad: set[str] = set()
    try:
        model.model_validate({**rest, **values}, strict=True)
    except ValidationError as error:
        for detail in error.errors():
            key = str(detail["loc"][0]) if detail["loc"] else ""
            if key not in fields or key in bad:
                continue
            bad.add(key)
            shown = "name" if key == "cluster" else key
            path = where if (key, where.split(".")[0]) == ("name", "hosts") else f"{where}.{shown}"
            mistakes.add(fields[key].line, path, _said(model, key, detail))
    return {key: value for key, value in values.items() if key not in bad}


def _said(model: type[BaseModel], key: str, detail: Any) -> str:
    """One of pydantic's error details (https://docs.pydantic.dev/latest/errors/validation_errors/) in our words."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"{_short(detail['input'])} is not allowed; it can be {context['expected']}"
    if kind in ("greater_than_equal", "less_than_equal"):
        limit = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return f"{_short(detail['input'])} is out of range; it should be {limit}"
    if kind == "string_pattern_mismatch":
        if key == "devices":
            known = f"devices are cpu, {', '.join(TORCH_NAMES)}, and one of several as cuda:0"
            return f"{_short(detail['input'])} is not a device; {known}"
        return "a name has lower-case letters, digits and inner dashes, at most 40 of them"
    return f"{_EXPECTED.get(kind, 'has a wrong value')}, not {_short(detail['input'])}"


def _short(value: object) -> str:
    text = "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, tuple) else f"{value!r}"
    return text if len(text) <= 60 else text[:59] + "…"


def _unwrapped(value: Value) -> Any:
    if isinstance(value.value, tuple):
        return tuple(item.value for item in value.value)
    return value.value


def _absolute(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Files of this computer: ``~`` expanded, relative to the inventory's own folder."""
    changed = dict(values)
    for key in ("identity_file", "known_hosts"):
        if isinstance(name := changed.get(key), str):
            with contextlib.suppress(RuntimeError):  # a home folder that is not known: the name stays as written
                changed[key] = str(folder.absolute() / Path(name).expanduser())
    return changed


def _replace(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` whole or not at all, with the old file's mode; raises InventoryError."""
    try:
        if path.exists():
            path.open("r+b").close()  # a write-protected file could be replaced, which its owner does not want
        _write(path.resolve(), text)
    except OSError as error:
        raise InventoryError(str(path), (f"{error.strerror}",), f"{path} can't be written") from None


def _write(path: Path, text: str) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    encoding = "utf-8-sig" if path.exists() and path.read_bytes().startswith(codecs.BOM_UTF8) else "utf-8"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding=encoding, newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_head(head: str, names: tuple[str, ...], line: int, mistakes: Mistakes) -> None:
    """The head must be a host, of any role: roles say who trains and who holds weights, and the head does neither."""
    if head in names:
        return
    close = nearest(head, names)
    hint = f"did you mean '{close}'?" if close else f"hosts are: {', '.join(names) or 'none'}"
    mistakes.add(line, "cluster.head", f"'{head}' is not a host; {hint}")


def check_hosts(hosts: tuple[Host, ...], lines: MappingType[str, int], mistakes: Mistakes) -> None:
    """Two names for one machine would start two nodes on it; a jump through itself would never arrive."""
    first: dict[tuple[str, int, str], Host] = {}
    by_name = {host.name: host for host in hosts}
    for host in hosts:
        place = (
            ("this computer", 0, "")
            if host.connection == "local"
            else ((host.address or "").lower(), host.port or 22, host.proxy_jump or "")
        )
        if place in first:
            other = first[place].name
            what = "this computer, like" if host.connection == "local" else "same address and port as"
            mistakes.add(lines[host.name], f"hosts.{host.name}", f"{what} hosts.{other} (line {lines[other]})")
        else:
            first[place] = host
        _check_jump(host, by_name, lines, mistakes)


def _check_jump(host: Host, by_name: MappingType[str, Host], lines: MappingType[str, int], mistakes: Mistakes) -> None:
    where = f"hosts.{host.name}.proxy_jump"
    line = lines[host.name]
    path = [host.name]
    current = host
    while current.proxy_jump is not None and (following := by_name.get(current.proxy_jump)) is not None:
        if following.name == host.name:
            chain = " -> ".join([*path, host.name])
            what = "leads through the host itself" if len(path) == 1 else f"goes round in a circle: {chain}"
            mistakes.add(line, where, what)
            return
        if following.name in path:
            return  # a circle further on: its own members report it
        if following.connection == "local" and current is host:
            mistakes.add(line, where, f"'{following.name}' is this computer; leave proxy_jump out")
            return
        path.append(following.name)
        current = following
