"""What tests of several packages share: facts of a machine, and embedded machines to connect to."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hetero_tui.demo.machines import EmbeddedMachines, make_folder
from hetero_tui.facts import HostFacts, parse_facts

MakeFacts = Callable[..., HostFacts]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A private folder with a path short enough for Ray's sockets, as the demo makes it."""
    folder = make_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def machines(short_folder: Path) -> AsyncIterator[EmbeddedMachines]:
    """Three embedded machines: fast, half and quarter. ``unplug`` one and it is unreachable."""
    async with EmbeddedMachines(short_folder) as running:
        running.write_inventory()
        yield running


@pytest.fixture
def make_facts() -> MakeFacts:
    """A fit Linux machine without accelerator at 10.0.0.2; keyword arguments replace parts of the raw document."""

    def make(**changes: Any) -> HostFacts:
        raw: dict[str, Any] = {
            "probe": 1,
            "hostname": "mercer",
            "user": "me",
            "home": "/home/me",
            "os": {"system": "Linux", "release": "6.1", "name": "Debian 12", "machine": "x86_64"},
            "python": {"version": "3.11.7", "executable": "/usr/bin/python3", "prefix": "/usr"},
            "packages": {"ray": "2.60.0", "torch": "2.13.0", "safetensors": "0.8", "psutil": "7", "numpy": "2.4"},
            "cpu": {"model": "CPU", "physical": 4, "logical": 8, "quota": None},
            "memory": {"total_bytes": 16 << 30, "available_bytes": 8 << 30},
            "disk": {"path": "/home", "total_bytes": 100 << 30, "free_bytes": 50 << 30},
            "accelerators": [],
            "addresses": [{"interface": "eth0", "address": "10.0.0.2", "prefix": 24, "speed_mbps": 1000}],
            "clock": 1.0,
            "free_ports": [*range(6389, 6399), *range(8365, 8369)],
        }
        return parse_facts(raw | changes)

    return make
