"""Whatever a host sends becomes a value that can be shown, or the one typed error; soon, and in bounded memory."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tui import answers
from hetero_tui.errors import CommandFailed
from hetero_tui.text import HostText
from remote_agent import protocol
from remote_agent.protocol import ProtocolError
from remote_agent.states import RayState, RunState
from tests.garbage import EVENTS, FACTS, GARBAGE, REFUSED, harmless, mutated

SPEC = protocol.NodeSpec(
    cluster="lab",
    host="nas",
    role="worker",
    folder="~/x",
    node_address="10.0.0.2",
    head_address="fd00::1",
    gcs_port=6389,
    dashboard_port=8365,
    labels={"a": "b"},
    resources={},
    epoch=1,
)
RUN = protocol.RunSummary(id="text-7f3a", job="text", state=RunState.RUNNING, step=3, loss=0.5, started=1.0)
NODE = protocol.NodeReport(host="nas", state=RayState.RUNNING, pid=7, spec=SPEC)


def parse(place: str, text: HostText) -> object:
    """What the product makes of a line at one of the places where hosts send some."""
    match place:
        case "facts":
            return answers.facts(text)
        case "event":
            return answers.event(text), json.loads(answers.json_line(text))
        case "sample":
            return answers.value(protocol.HostSample, text)
        case "runs":
            return answers.value(protocol.RunList, text)
        case "node":
            return answers.value(protocol.NodeReport, text)
        case "removed":
            return answers.value(protocol.StopReport, text)
        case _:
            return answers.value(protocol.LogLine, text)


LINES = {
    "facts": FACTS,
    "event": EVENTS[0],
    "sample": protocol.encode(
        protocol.HostSample(
            time=1.0,
            cpu_use=0.5,
            memory_used=1,
            memory_total=2,
            ray=RayState.RUNNING,
            devices=(protocol.DeviceSample(device="cpu", name="CPU", use=0.25),),
        )
    ),
    "runs": protocol.encode(protocol.RunList(runs=(RUN,))),
    "node": protocol.encode(NODE),
    "removed": protocol.encode(
        protocol.StopReport(
            stopped=("ray (7)",), removed=("/x",), leftovers=(protocol.Leftover(kind="port", detail="6389"),)
        )
    ),
    "log": protocol.encode(protocol.LogLine(time=1.0, process="cpu", line="hello")),
}


@pytest.mark.parametrize("place", LINES)
def test_what_is_right_is_taken(place: str) -> None:
    assert parse(place, HostText(LINES[place]))


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("place", LINES)
def test_garbage_is_refused_or_shown_without_what_harms_a_terminal(place: str, kind: str) -> None:
    text = HostText(GARBAGE[kind](LINES[place]).decode("utf-8", "replace"))
    refused, found = "", None
    try:
        found = parse(place, text)
    except ProtocolError as error:
        refused = str(error)
    # Some numbers and texts are right anywhere, and a report of what was removed may be empty.
    assert refused or kind not in REFUSED or place in ("removed", "log", "runs"), found
    assert all(harmless(shown) for shown in (refused, *_texts_in(found)))
    assert len(refused) < 400


def _texts_in(found: Any) -> list[str]:
    if isinstance(found, str):
        return [found]
    if hasattr(found, "model_dump"):
        return _texts_in(found.model_dump())
    if hasattr(found, "__dataclass_fields__"):
        return _texts_in([getattr(found, name) for name in found.__dataclass_fields__])
    if isinstance(found, dict):
        return [text for pair in found.items() for entry in pair for text in _texts_in(entry)]
    return [text for entry in found for text in _texts_in(entry)] if isinstance(found, list | tuple) else []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"python": {"version": "three", "executable": "/p"}}, "python.version"),
        ({"cpu": {"model": "x", "logical": 8, "quota": float("-inf")}}, "JSON has no -Infinity"),
        ({"cpu": {"model": "x", "logical": 8, "quota": -1}}, "cpu.quota"),
        ({"cpu": {"model": "x", "logical": 10**400}}, "too large"),
        ({"memory": {"total_bytes": -5}}, "memory.total_bytes"),
        ({"addresses": [{"address": "not-one", "prefix": 24}]}, "addresses.0.address"),
        ({"addresses": [{"address": "10.0.0.1", "prefix": 240}]}, "addresses.0.prefix"),
        ({"clock": 1e200}, "clock"),
        ({"home": "/home/a\tb"}, "home"),
        ({"free_ports": [70000]}, "free_ports.0"),
    ],
)
def test_a_fact_that_cannot_be_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        answers.facts(HostText(json.dumps(json.loads(FACTS) | changes)))


def test_what_the_probe_could_not_read_is_no_reason_to_refuse_the_machine() -> None:
    unread = {
        "cpu": {"model": None, "physical": None, "logical": 4, "quota": None},
        "memory": {"total_bytes": None, "available_bytes": None},
        "disk": {"path": "/x", "total_bytes": None, "free_bytes": None},
        "addresses": [{"interface": "", "address": "10.0.0.2", "prefix": None, "speed_mbps": None}],
    }
    facts = answers.facts(HostText(json.dumps(json.loads(FACTS) | unread)))
    assert facts.memory.total_bytes is None
    assert facts.addresses[0].network.num_addresses == 1


def cut_at(*bounds: tuple[int, int], micro_batches: int = 8) -> protocol.PlanMade:
    stages = tuple(protocol.Stage(worker="a", first=first, last=last, seconds=0, memory=0) for first, last in bounds)
    return protocol.PlanMade(
        seq=1, time=1, strategy="pipeline", shares=(), stages=stages, micro_batches=micro_batches, in_flight=1
    )


def test_the_line_for_scripts_is_the_hosts_own_unless_it_could_harm() -> None:
    line = EVENTS[0]
    assert answers.json_line(HostText(line)) is line
    changed = json.loads(line) | {"job": "\x1b[2Jtext", "new": "\x9b1m"}
    shown = answers.json_line(HostText(json.dumps(changed, ensure_ascii=False)))
    assert json.loads(shown) == json.loads(line) | {"job": "text", "new": "1m"}


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_a_mutated_document_gives_a_value_or_the_typed_error_at_once(seed: int) -> None:
    chance = random.Random(seed)
    place = chance.choice(("facts", "event"))
    text = HostText(mutated(LINES[place], chance))

    def seconds() -> float:
        began = time.thread_time()
        with suppress(ProtocolError):
            parse(place, text)
        return time.thread_time() - began

    # On a quiet computer each takes less than 10 ms. Other tests' garbage may be collected meanwhile.
    assert any(seconds() < 0.1 for _ in range(5))


def test_only_the_detail_of_a_failure_has_lines_of_its_own() -> None:
    failed = json.loads(EVENTS[-1]) | {"cause": "no\nmercer: ok", "detail": "a\nb"}
    found = answers.event(HostText(json.dumps(failed)))
    assert isinstance(found, protocol.RunFailed)
    assert (found.cause, found.detail) == ("no mercer: ok", "a\nb")
    report = protocol.StopReport(leftovers=(protocol.Leftover(kind="port", detail="1\nmercer: ok"),))
    assert answers.value(protocol.StopReport, HostText(protocol.encode(report))).leftovers[0].detail == "1 mercer: ok"


def test_an_error_of_a_host_is_one_line_whatever_the_host_said() -> None:
    error = CommandFailed("nas", "no\nmercer: ok\x1b[2J" + "x" * 5000, step="start Ray", hint="do\nthis")
    assert "\n" not in error.cause + error.hint
    assert harmless(str(error))
    assert len(error.cause) <= 600


def test_a_letter_that_the_output_lacks_ends_no_command() -> None:
    script = "from hetero_tui.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--inventory", "/no-such/\xfc.yaml", "status"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii:strict"},
        check=False,
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"/no-such/?.yaml" in done.stderr


FULL = """
import asyncio
from hetero_tui.launcher import run_to_end
async def work():
    print("a line")
    return 0
raise SystemExit(run_to_end(work))
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
def test_an_output_that_can_not_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", FULL], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == "hetero-tui: the output can't be written: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_is_no_error(tmp_path: Path, closed: str) -> None:
    (tmp_path / "inventory.yaml").write_text("cluster: {name: x}\nhosts: {here: {connection: local}}\n")
    command = f"{shlex.quote(sys.executable)} -m hetero_tui runs --plain {closed}"
    environment = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr


def test_text_of_a_host_is_clean_wherever_it_is_formatted() -> None:
    text = HostText("\x1b[31mred\n\x07next")
    assert f"{text}" == str(text) == "red next"
    assert "\x1b" not in repr([text])
    assert not isinstance(text, str)


def nested(kind: str, depth: int) -> str:
    opening, closing = ("[", "]") if kind == "list" else ('{"a":', "}")
    return '{"a": ' + opening * (depth - 1) + '"\\t"' + closing * (depth - 1) + "}"


HARMFUL = '"\\t"'
"""A text that has to be cleaned, so that all of its document is looked at."""

BOUNDS = {
    "levels of lists": (
        nested("list", answers.MAX_DEPTH),
        nested("list", answers.MAX_DEPTH + 1),
        "nested more than 40",
    ),
    "levels of objects": (nested("dict", answers.MAX_DEPTH), nested("dict", answers.MAX_DEPTH + 1), "nested more than"),
    "whole numbers": (f'{{"a": {2**63 - 1}}}', f'{{"a": {2**63}}}', "a whole number is too large"),
    "whole numbers below 0": (f'{{"a": {-(2**63) + 1}}}', f'{{"a": {-(2**63)}}}', "a whole number is too large"),
    "numbers": ('{"a": 1e300}', '{"a": 1.1e300}', "a number is not finite, or too large"),
    "entries of a list": (
        f'{{"a": [{",".join([HARMFUL] * answers.MAX_ENTRIES)}]}}',
        f'{{"a": [{",".join([HARMFUL] * (answers.MAX_ENTRIES + 1))}]}}',
        "a list has more than 10,000 entries",
    ),
    "entries of an object": (
        json.dumps(dict.fromkeys(map(str, range(answers.MAX_ENTRIES)), "\t")),
        json.dumps(dict.fromkeys(map(str, range(answers.MAX_ENTRIES + 1)), "\t")),
        "an object has more than 10,000 entries",
    ),
    "characters": (
        "{}".ljust(answers.MAX_DOCUMENT),
        "{}".ljust(answers.MAX_DOCUMENT + 1),
        "a line is longer than 4 MB",
    ),
}


@pytest.mark.parametrize("what", BOUNDS)
def test_a_document_is_taken_up_to_its_bounds_and_no_further(what: str) -> None:
    taken, refused, says = BOUNDS[what]
    assert answers.clean_document(HostText(taken)) is not None
    with pytest.raises(ProtocolError, match=says):
        answers.clean_document(HostText(refused))


def test_the_probes_answer_is_taken_up_to_its_longest() -> None:
    assert answers.facts(HostText(FACTS.ljust(answers.MAX_FACTS)))
    with pytest.raises(ProtocolError, match="longer than 256 KB"):
        answers.facts(HostText(FACTS.ljust(answers.MAX_FACTS + 1)))


def sample(**changes: Any) -> protocol.HostSample:
    values = {"time": 1.0, "cpu_use": None, "memory_used": None, "memory_total": None, "ray": RayState.NONE}
    return protocol.HostSample(**values | changes)


def used(use: float | None) -> protocol.HostSample:
    return sample(devices=(protocol.DeviceSample(device="cpu", name="CPU", use=use),))


def formed(epoch: float) -> protocol.NodeReport:
    return replace(NODE, spec=replace(SPEC, epoch=int(epoch)))


def listening(*ports: int) -> protocol.Listening:
    return protocol.Listening(word="w", ports=ports)


NOW = time.time()


@pytest.mark.parametrize(
    "found",
    [
        sample(),
        sample(cpu_use=0.0),
        sample(cpu_use=2.0),
        used(None),
        used(2.0),
        listening(1, 65535),
        listening(*range(1, 21)),
        replace(NODE, spec=replace(SPEC, gcs_port=1, dashboard_port=65535)),
        formed(0),
        formed(NOW + 3600),
        cut_at((0, 1), micro_batches=1),
        cut_at((0, 3), (3, 4), (4, 6)),
        replace(cut_at(), micro_batches=0),
        protocol.RunList(runs=(replace(RUN, started=0.0, ended=2.0),)),
    ],
)
def test_values_at_the_edge_of_what_can_be_are_taken(found: object) -> None:
    assert answers.value(type(found), HostText(protocol.encode(found))) == found


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (sample(cpu_use=2.1), "a use of 2.1 is no fraction"),
        (sample(cpu_use=-0.1), "no fraction"),
        (used(2.1), "no fraction"),
        (protocol.RunList(runs=(replace(RUN, state="flying"),)), "'flying' is none of starting"),
        (protocol.RunList(runs=(replace(RUN, id="../../x"),)), "not the name of a run"),
        (cut_at((0, 3), (4, 6)), "no cut of a model"),
        (cut_at((0, 0)), "no cut of a model"),
        (cut_at((0, 3), micro_batches=0), "no cut of a model"),
        (protocol.LogLine(time=-1.0, process="", line=""), "not a time"),
        (listening(0), "a port is not from 1"),
        (listening(2**16), "a port is not from 1"),
        (listening(*range(1, 22)), "more than 20 ports"),
        (replace(NODE, spec=replace(SPEC, dashboard_port=2**16)), "a port is not from 1"),
        (replace(NODE, spec=replace(SPEC, node_address="mercer")), "a node's address is 'mercer'"),
        (formed(-1), "formed in the future"),
        (formed(NOW + 2 * 86400), "formed in the future .*: set this computer.s clock"),
        (cut_at((1, 3)), "no cut of a model"),
        (cut_at((0, 3), (3, 3)), "no cut of a model"),
        (protocol.RunList(runs=(replace(RUN, ended=-1.0),)), "not a time"),
    ],
)
def test_values_of_the_right_type_that_cannot_be_are_refused(found: object, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        answers.value(type(found), HostText(protocol.encode(found)))


@pytest.mark.parametrize("moment", [-1.0, 253402300800.0])
def test_an_event_of_a_time_that_no_clock_shows_is_refused(moment: float) -> None:
    assert answers.event(HostText(protocol.encode(cut_at((0, 3))))) == cut_at((0, 3))
    with pytest.raises(ProtocolError, match="not a time"):
        answers.event(HostText(protocol.encode(replace(cut_at((0, 3)), time=moment))))
