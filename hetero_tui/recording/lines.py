"""The lines of a recording: a header with the hosts, then events, each with its time.

::

    {"hetero_tui": "recording", "format": 2, "version": "0.1.0", "at": 1790000000.0, "cluster": "lab", "hosts": ...}
    {"at": 1790000000.2, "kind": "HostChanged", "value": {"host": "nas", ...}}
    {"at": 1790000001.0, "kind": "RunProgressed", "run": "text-7f3", "value": {"seq": 1, "kind": "run_started", ...}}
    {"at": 1790000009.0, "kind": "end"}

Anybody may have made the file: what is read is cleaned and bounded as what a host sends is.
"""

from __future__ import annotations

import json
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from hetero_tui import __version__, answers, events
from hetero_tui.facts import HostFacts
from hetero_tui.state import State, initial
from hetero_tui.text import HostText
from remote_agent import protocol

FORMAT = 2
_MARK = "recording"
_END = "end"
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(events.Event)}

Entry = tuple[float, "events.Event | None"]
"""When, and what: an event, or None for the end of the session."""


class NotReadable(ValueError):
    """A line is not one of a recording; the text says why."""


def header(at: float, state: State) -> bytes:
    """The first line."""
    hosts = [[host.name, host.address] for host in state.hosts]
    mark = {"hetero_tui": _MARK, "format": FORMAT, "version": __version__}
    return _line({**mark, "at": at, "cluster": state.cluster, "hosts": hosts})


def event_line(at: float, event: events.Event) -> bytes:
    """One event that was folded at ``at``, in seconds since the epoch."""
    kind = type(event).__name__
    if isinstance(event, events.RunProgressed):
        run, value = json.dumps(event.run), protocol.encode(event.event)
        return f'{{"at":{at!r},"kind":"{kind}","run":{run},"value":{value}}}\n'.encode()
    return f'{{"at":{at!r},"kind":"{kind}","value":'.encode() + _adapter(type(event)).dump_json(event) + b"}\n"


def end_line(at: float) -> bytes:
    """The last line of a session that ended in good order."""
    return _line({"at": at, "kind": _END})


def beginning(line: str) -> tuple[float, State]:
    """When a recording begins, and the state before its first event, from its header.

    Raises:
        NotReadable: it is no header, or one of a format that this version does not know.
    """
    try:
        found = answers.clean_document(HostText(line))
    except protocol.ProtocolError:
        found = {}
    if found.get("hetero_tui") != _MARK:
        raise NotReadable("it is not a recording of hetero-tui")
    if found.get("format") != FORMAT:
        raise NotReadable(f"it is of format {found.get('format')}, and this hetero-tui reads format {FORMAT}")
    try:
        at, hosts = float(found["at"]), tuple((str(name), str(address)) for name, address in found["hosts"])
        answers.check_time(at)
        return at, initial(str(found["cluster"]), hosts)
    except (KeyError, TypeError, ValueError, protocol.ProtocolError) as error:
        raise NotReadable(f"its first line is damaged ({type(error).__name__}: {error})") from None


def entry(line: str) -> Entry:
    """What a further line says; raises NotReadable if it is damaged, or of another program."""
    try:
        return _entry(answers.clean_document(HostText(line), several_lines="detail"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise NotReadable(f"{where}: {first['msg']}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise NotReadable(f"it is no line of a recording ({type(error).__name__}: {error})") from None
    except protocol.ProtocolError as error:
        raise NotReadable(str(error)) from None


def _entry(found: dict[str, Any]) -> Entry:
    at, kind, value = float(found["at"]), found["kind"], found.get("value", {})
    answers.check_time(at)
    if kind == _END:
        return at, None
    if kind == events.RunProgressed.__name__:
        event = protocol.event_of(value)
        if event is None:
            raise NotReadable("an event of a run that this version does not know")
        answers.check_time(event.time)
        return at, events.RunProgressed(run=str(found["run"]), event=event)
    known: events.Event = _adapter(_KINDS[kind]).validate_python(value)
    answers.check_time(getattr(known, "time", None))
    return at, known


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """What turns values of ``cls`` into JSON and back; it takes a while to make."""
    if cls not in _ADAPTERS:
        adapter = TypeAdapter(cls)
        if not adapter.pydantic_complete:  # modules name these for type checkers only: the first paint needs neither
            adapter.rebuild(_types_namespace={"HostFacts": HostFacts, "protocol": protocol})
        _ADAPTERS[cls] = adapter
    return _ADAPTERS[cls]


def _line(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"
