"""What is known of the hosts: a look at one of them leaves the others in peace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hetero_tui import events
from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.events import Event, HostState
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.fold import apply
from hetero_tui.inventory.file import load
from hetero_tui.state import initial


@pytest.fixture
async def fleet(machines: EmbeddedMachines, tmp_path: Path) -> AsyncIterator[tuple[LiveFleet, list[Event]]]:
    heard: list[Event] = []
    fleet = LiveFleet(load(machines.write_inventory()), heard.append, ledger_folder=tmp_path)
    yield fleet, heard
    await fleet.close()


def probed(heard: list[Event]) -> list[str]:
    return sorted(event.host for event in heard if isinstance(event, events.HostProbed))


async def test_a_look_at_one_host_probes_that_one_and_keeps_what_is_known_of_the_others(
    machines: EmbeddedMachines, fleet: tuple[LiveFleet, list[Event]]
) -> None:
    live, heard = fleet
    await live.look()
    everybody = ["fast", "half", "quarter"]
    assert probed(heard) == everybody

    heard.clear()
    await machines.unplug("half")
    await live.look_at("half")
    assert probed(heard) == []
    assert sorted(live.facts) == ["fast", "quarter"]
    assert sorted(live.answering) == ["fast", "quarter"]
    changed = {event.host: event.state for event in heard if isinstance(event, events.HostChanged)}
    assert changed["half"] is HostState.UNREACHABLE

    heard.clear()
    await machines.unplug("fast")
    await machines.plug_in("half")
    await live.look_at("half")
    assert probed(heard) == ["half"]
    assert [entry.host for entry in live.probed] == everybody, "in the inventory's order"
    assert sorted(live.answering) == ["half", "quarter"]
    states = [event.state for event in heard if isinstance(event, events.HostChanged) and event.host == "fast"]
    assert HostState.READY not in states, "it was fit when it was probed, and does not answer now"


async def test_a_host_with_nothing_of_ours_is_called_fit_only_once_it_was_probed(
    machines: EmbeddedMachines, tmp_path: Path
) -> None:
    path = machines.write_inventory()
    machine = machines.machine("half")
    entry = f"half: {{address: {machine.address}, port: {machine.port}"
    path.write_text(path.read_text().replace(entry, f"{entry}, devices: [cuda:1]"))
    state = initial("lab", tuple((name, "") for name in ("fast", "half", "quarter")))

    def fold(event: Event) -> None:
        nonlocal state
        state = apply(state, event)

    live = LiveFleet(load(path), fold, ledger_folder=tmp_path)
    await live.survey()
    await live.judge_idle()
    await live.close()
    assert [host.state for host in state.hosts] == [HostState.READY, HostState.UNFIT, HostState.READY]
    assert "cuda:1" in state.hosts[1].detail
