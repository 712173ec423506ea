"""The one place where what a host sent becomes typed values: bounded numbers, clean text, known words, or an error.

A host may be broken, foreign or hostile. Whatever it sends, the functions here return a value that every screen and
command can show, or raise :class:`~remote_agent.protocol.ProtocolError`; who asked turns that into one line for this
host (:class:`~hetero_tui.errors.BadAnswer`). Nothing else in this package parses a :class:`HostText`.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import time
from typing import TYPE_CHECKING, Any, TypeVar

from hetero_tui.text import HostText, one_line, plain
from remote_agent import protocol
from remote_agent.protocol import ProtocolError

if TYPE_CHECKING:  # pydantic takes a while to import, and most of what arrives needs none
    from hetero_tui.facts import HostFacts

T = TypeVar("T")

MAX_FACTS = 256 * 1024
"""Characters of the longest answer of a probe."""

MAX_DOCUMENT = 4 * 1024 * 1024
"""Characters of any other line."""

MAX_TEXT, MAX_ENTRIES, MAX_DEPTH = 20_000, 10_000, 40
"""Characters of a text (what is more is cut), entries of a list or an object, and levels of nesting."""

_LARGEST_INT, _LARGEST_FLOAT = 2**63, 1e300
_LATEST = 253402300800.0  # the year 10000, in seconds since the epoch: no clock can show it
_EPOCH_AHEAD = 86400.0  # a cluster's epoch is the time it was formed at, by a clock that may be wrong by a day
_MOST_PORTS = 20
_RUN_NAME = re.compile(r"\w[\w.+-]{0,200}")

# A line without any of these, as nearly all are, holds no text to clean and no number out of bounds: a run's history
# has millions of lines, and to look at each of their values takes as long as to decode them.
_SUSPICIOUS = re.compile(r"[\\\x7f-\U0010ffff]|\d{19}|[eE]\+?\d{3}")
_SHORT = 64 * 1024


def value(cls: type[T], text: HostText) -> T:
    """One value of a known type of :mod:`remote_agent.protocol` from one line; raises ProtocolError."""
    found = protocol.value_of(cls, clean_document(text))
    _check(found)
    return found


def event(text: HostText) -> protocol.Event | None:
    """The event in one line of ``events.jsonl``; None if its kind is unknown here. Raises ProtocolError."""
    found = protocol.event_of(clean_document(text, several_lines="detail"))
    _check(found)
    return found


def facts(text: HostText) -> HostFacts:
    """The probe's one line as facts; raises ProtocolError, which names the first field that is wrong."""
    from hetero_tui.facts import parse_facts

    if len(text.raw) > MAX_FACTS:
        raise ProtocolError(f"the probe's answer is longer than {MAX_FACTS // 1024} KB")
    try:
        return parse_facts(_cleaned(protocol.document(text.raw)))
    except ProtocolError:
        raise
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def json_line(text: HostText) -> str:
    """A line that :func:`event` accepts, for scripts: valid JSON without control characters."""
    document = clean_document(text, several_lines="detail")
    return text.raw if _is_harmless(text.raw) else json.dumps(document, separators=(",", ":"), allow_nan=False)


def clean_document(text: HostText, several_lines: str = "") -> dict[str, Any]:
    """The JSON object in one line, with clean text and finite numbers.

    ``several_lines`` is the key of texts that may have them; any other text could fake a line of another host.

    Raises:
        ProtocolError: it does not fit.
    """
    if len(text.raw) > MAX_DOCUMENT:
        raise ProtocolError(f"a line is longer than {MAX_DOCUMENT // 2**20} MB")
    found = protocol.document(text.raw)
    if not _is_harmless(text.raw):
        found = _cleaned(found, several_lines=several_lines)
    return found


def _is_harmless(line: str) -> bool:
    return len(line) <= _SHORT and _SUSPICIOUS.search(line) is None


def _cleaned(found: Any, key: str = "", depth: int = 0, *, several_lines: str = "") -> Any:
    if depth > MAX_DEPTH:
        raise ProtocolError(f"values are nested more than {MAX_DEPTH} deep")
    match found:
        case str():
            text = plain(found, MAX_TEXT)
            return text if key and key == several_lines else text.replace("\n", " ")
        case bool() | None:
            return found
        case int():
            if abs(found) >= _LARGEST_INT:
                raise ProtocolError("a whole number is too large")
        case float():
            if not abs(found) <= _LARGEST_FLOAT:
                raise ProtocolError("a number is not finite, or too large")
        case list():
            if len(found) > MAX_ENTRIES:
                raise ProtocolError(f"a list has more than {MAX_ENTRIES:,} entries")
            return [_cleaned(entry, key, depth + 1, several_lines=several_lines) for entry in found]
        case dict():
            if len(found) > MAX_ENTRIES:
                raise ProtocolError(f"an object has more than {MAX_ENTRIES:,} entries")
            return {
                one_line(name): _cleaned(entry, name, depth + 1, several_lines=several_lines)
                for name, entry in found.items()
            }
    return found


def _check(found: object) -> None:
    """Refuse values of the right type that can't be: times, states, names, addresses, ports, fractions."""
    match found:
        case protocol.Event() | protocol.LogLine():
            check_time(found.time)
            if isinstance(found, protocol.PlanMade):
                _check_stages(found)
        case protocol.RunList():
            for run in found.runs:
                _check_run(run)
        case protocol.NodeReport(spec=protocol.NodeSpec() as spec):
            _check_spec(spec)
        case protocol.History():
            if min(found.history, found.step, found.size) < 0:
                raise ProtocolError("a history of less than nothing")
        case protocol.Listening():
            _check_ports(found.ports, _MOST_PORTS)
        case protocol.HostSample():
            for use in (found.cpu_use, *(device.use for device in found.devices)):
                if use is not None and not 0 <= use <= 2:
                    raise ProtocolError(f"a use of {use:.3g} is no fraction")


def _check_stages(plan: protocol.PlanMade) -> None:
    firsts, lasts = [stage.first for stage in plan.stages], [stage.last for stage in plan.stages]
    cut = firsts == [0, *lasts[:-1]] and all(first < last for first, last in zip(firsts, lasts, strict=True))
    if plan.stages and not (cut and plan.micro_batches > 0):
        raise ProtocolError("the stages of a plan are no cut of a model")


def _check_ports(ports: tuple[int, ...], most: int) -> None:
    if not all(0 < port < 2**16 for port in ports):
        raise ProtocolError("a port is not from 1 to 65535")
    if len(ports) > most:
        raise ProtocolError(f"more than {most} ports")


def check_time(moment: float | None) -> None:
    """Raise ProtocolError for what no clock can show."""
    if moment is not None and not 0 <= moment < _LATEST:
        raise ProtocolError(f"{moment:.3g} is not a time")


def _check_run(run: protocol.RunSummary) -> None:
    if _RUN_NAME.fullmatch(run.id) is None:
        raise ProtocolError(f"{run.id[:40]!r} is not the name of a run")
    check_time(run.started)
    check_time(run.ended)
    check_time(run.away_s)


def _check_spec(spec: protocol.NodeSpec) -> None:
    for address in (spec.node_address, spec.head_address):
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ProtocolError(f"a node's address is {address[:60]!r}") from None
    _check_ports((spec.gcs_port, spec.dashboard_port), 2)
    if not 0 <= spec.epoch <= time.time() + _EPOCH_AHEAD or not math.isfinite(spec.epoch):
        when = f"its cluster was formed in the future (epoch {spec.epoch})"
        raise ProtocolError(f"{when}: set this computer's clock, or run `down`, then `up` if it was wrong at that time")
