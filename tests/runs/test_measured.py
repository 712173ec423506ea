"""What was measured of a fleet is used again as long as it is true; else it is measured anew."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hetero_tui.errors import CommandFailed, UsageError
from hetero_tui.events import Level
from hetero_tui.fleet import agent
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.inventory import Host, Inventory
from hetero_tui.runs import measured
from hetero_tui.runs.order import read_order
from hetero_tui.runs.profile_names import profile_name
from hetero_tui.transport import Transport, open_transport
from remote_agent import protocol
from remote_agent.planning.survey import Survey, Work
from remote_agent.states import RunState
from tests.specs import run_spec

NOW, DAY = 1_800_000_000.0, 86400.0
FOUND = Survey(job="digits", work=Work(parameters=10, batch=4), hosts=(), time=NOW)
LAPTOP = Host(name="laptop", connection="local")
FLEET = Inventory(hosts=(LAPTOP,))
SPEC = run_spec("plan", "digits", "laptop", devices=(protocol.DeviceSpec(host="laptop", device="cpu", name="cpu"),))


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Transport:
    """This computer, with an empty home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return open_transport(LAPTOP, FLEET)


def agent_that(tmp_path: Path, script: str) -> None:
    """Put a program in the place of the agent's."""
    place = tmp_path / agent.folder(FLEET.cluster).removeprefix("~/") / "agent" / "run"
    place.parent.mkdir(parents=True)
    place.write_text(script)


@pytest.mark.parametrize(("text", "is_found"), [(protocol.encode(FOUND), True), ("", False)])
async def test_a_cache_that_was_cut_off_counts_as_none(
    head: Transport, tmp_path: Path, text: str, is_found: bool
) -> None:
    folder = tmp_path / agent.folder(FLEET.cluster).removeprefix("~/") / protocol.PROFILES
    folder.mkdir(parents=True)
    for number, kept in enumerate([text, text[: len(text) // 2], text + "\x00\xff", "[]", '{"job": 3}']):
        (folder / f"{number}.json").write_bytes(kept.encode("latin-1"))
        found = await measured.kept(head, FLEET.cluster, str(number))
        assert found == (FOUND if is_found and number == 0 else None), kept
    assert await measured.kept(head, FLEET.cluster, "none") is None


def test_another_version_address_or_a_battery_asks_for_another_measurement_but_not_another_up(make_facts) -> None:
    order, usual = read_order("digits", [], ()), make_facts()

    def name(facts: object, spec: protocol.RunSpec = SPEC) -> str:
        return profile_name(order, None, spec, {"laptop": facts})  # type: ignore[dict-item]

    assert name(usual) == name(usual, dataclasses.replace(SPEC, epoch=SPEC.epoch + 1))
    assert name(usual) != name(make_facts(reached="10.1.2.3"))

    assert name(usual) == name(make_facts(power="mains")) == name(make_facts(clock=5.0))
    newer = make_facts(packages=dict(usual.packages) | {"torch": "99.0"})
    assert len({name(usual), name(make_facts(power="battery")), name(newer)}) == 3


async def test_a_measurement_says_how_far_it_is_and_what_went_wrong(head: Transport, tmp_path: Path) -> None:
    told: list[str] = []

    def notice(level: Level, text: str) -> None:
        assert level == Level.INFO
        told.append(text)

    good = f"echo 'measuring: starting'; echo noise; echo 'measuring: links'; echo '{protocol.encode(FOUND)}'"
    agent_that(tmp_path, good)
    assert await measured.measure(FLEET, head, SPEC, None, notice) == FOUND
    assert told == ["starting", "links"]
    (tmp_path / agent.folder(FLEET.cluster).removeprefix("~/") / "agent" / "run").write_text("echo worse >&2; exit 1")
    with pytest.raises(CommandFailed, match="could not be measured: worse"):
        await measured.measure(FLEET, head, SPEC, None, notice)


@pytest.mark.parametrize("script", [False, True])
async def test_nothing_is_measured_beside_a_run_a_sweep_or_a_script(
    monkeypatch: pytest.MonkeyPatch, script: bool
) -> None:
    ended = protocol.RunSummary(
        id="old-1", job="digits", state=RunState.FINISHED, step=9, loss=None, started=1.0, host="laptop"
    )
    live = dataclasses.replace(ended, id="sweep-2", state=RunState.RUNNING, script=script)

    async def nothing(*_: object) -> None:
        return None

    async def runs(*_: object) -> tuple[tuple[str, protocol.RunSummary], ...]:
        return (("laptop", ended), ("laptop", live))

    for name, found in (
        ("head_name", lambda _: "laptop"),
        ("specification", lambda *_: SPEC),
        ("kept", nothing),
        ("refuse_early", lambda *_: None),
    ):
        monkeypatch.setattr(measured, name, found)
    monkeypatch.setattr(measured, "list_runs", runs)
    monkeypatch.setattr(measured, "profile_name", lambda *_: "x")
    fleet = SimpleNamespace(
        look=nothing,
        surveyed={},
        facts={},
        cluster="lab",
        answering={},
        transports={"laptop": None},
        inventory=Inventory(hosts=()),
    )
    with pytest.raises(UsageError) as refused:
        await measured.survey_of(
            cast("LiveFleet", fleet), read_order("digits"), lambda *_: pytest.fail("nothing is told"), anew=False
        )
    assert str(refused.value).startswith("plan: sweep-2 is under way, and devices are not measured beside that -> ")
    assert "`hetero-tui stop sweep-2`" in refused.value.hint
