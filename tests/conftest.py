"""What tests of several packages share: facts of a machine, and embedded machines to connect to."""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from hetero_tui.demo.machines import EmbeddedMachines, make_folder
from hetero_tui.facts import HostFacts, parse_facts
from tests.lanes import pytest_configure, pytest_unconfigure  # noqa: F401 - hooks

MakeFacts = Callable[..., HostFacts]

# The same examples each time, so that the tests say something about the change that they check, and not about luck. To
# search further, with other examples: HYPOTHESIS_PROFILE=search python -m pytest -m "not ray and not lab".
# How fast examples are made is the computer's business: on a busy one the check of it fails.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=SLOW)
hypothesis.settings.register_profile("search", max_examples=5000, deadline=None, suppress_health_check=SLOW)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

ON_THIS_COMPUTER = {
    "test_cli.py",
    "test_demo.py",
    "agent/test_probe.py",
    "agent/host/test_node.py",
    "demo/test_chaos.py",
    "runs/test_logs.py",
    "runs/test_own_job.py",
}
"""Files whose tests look at what all of this computer shares: the ports of a cluster, the demo's folders in /tmp."""

THIS_COMPUTER = "this computer"
"""Their group."""

LAB = "the lab"
"""The group of all tests of the lab: several labs at once are too much for a small computer."""

ON_CLUSTER = "the tests' cluster"
"""The group of the files whose tests use the Ray cluster of ``tests/training``, which takes a lane 40 s to start."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """With `-n` the tests of a group run in one lane, one after another: they share a cluster, a lab or this computer.

    Groups begin in the order of their first tests (`--no-loadscope-reorder`), the largest first.
    """
    groups = _groups(items)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item.path]))  # before pytest-xdist reads it in this hook
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)
    result = yield  # tests that are deselected are gone now
    sizes = Counter(groups[item.path] for item in items)
    with_ray = {groups[item.path] for item in items if item.get_closest_marker("ray")}

    def place(item: pytest.Item) -> tuple[bool, bool, int, str]:
        group = groups[item.path]
        return group not in (LAB, ON_CLUSTER, THIS_COMPUTER), group not in with_ray, -sizes[group], group

    items.sort(key=place)
    return result


def _groups(items: Sequence[pytest.Item]) -> dict[Path, str]:
    """Return the group of each test file; most files are a group of their own."""
    files = {item.path: item.path.relative_to(Path(__file__).parent).as_posix() for item in items}
    groups = {path: THIS_COMPUTER if file in ON_THIS_COMPUTER else file for path, file in files.items()}
    groups |= {path: LAB for path, file in files.items() if file.startswith("lab/")}
    on_cluster = {item.path for item in items if "cluster" in getattr(item, "fixturenames", ())}
    return groups | {path: ON_CLUSTER for path in on_cluster if files[path].startswith("training/")}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector does not look at what is loaded: that stays, and is large.

    A lane has torch, Ray, Textual and all modules of tests. To look at all that takes 0.3 s, 27 times while it is
    loaded, and then again and again: a tenth of the processor time of tests that only compute.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.fixture(scope="session", autouse=True)
def one_thread_for_torch() -> None:
    """Threads that wait for each other take twenty times as long on a busy computer as one that does it all."""
    if "torch" in sys.modules:  # a test's module that needs it has loaded it by now
        sys.modules["torch"].set_num_threads(1)


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


class CommandLine:
    """``hetero-tui`` with a home folder of its own; Ray's sockets need a short one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.inventory = home / "inventory.yaml"
        self.inventory.write_text("cluster: {name: here}\nhosts:\n  laptop: {connection: local}\n")

    def __call__(self, *words: str, deadline: float = 600) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        try:
            output, errors = process.communicate(timeout=deadline)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Its output and errors are pipes of text."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "XDG_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "hetero_tui", "--inventory", str(self.inventory), *words],
            env=environment | {"HOME": str(self.home), "TERM": "xterm-256color"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def cli() -> Iterator[CommandLine]:
    home = Path(tempfile.mkdtemp(prefix="ht", dir="/tmp"))
    try:
        yield CommandLine(home)
    finally:
        shutil.rmtree(home)
