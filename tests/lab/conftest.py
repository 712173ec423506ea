"""Labs for the tests: skipped with a reason where none can be built, a failure where one is required (CI)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.lab.lab import Lab, obstacle
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui

REQUIRED = "HETERO_TUI_REQUIRE_LAB"


def skip(reason: str) -> None:
    """Skip the test, or have it fail where labs are required."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {reason}")
    pytest.skip(reason)


def needs_wireguard() -> None:
    """Skip the test where the hosts can be in no WireGuard network."""
    missing = [program for program in ("wg", "wireguard-go") if shutil.which(program) is None]
    if missing:
        skip(f"the lab's hosts need {' and '.join(missing)} (packages wireguard-tools, wireguard-go)")


@pytest.fixture(scope="session")
def possible() -> None:
    """A lab can be built here."""
    reason = obstacle()
    if reason is not None:
        skip(reason)


@pytest.fixture(scope="module")
def fleet(possible: None) -> Iterator[Lab]:
    """Three hosts of simulated speeds 4 : 2 : 1 on 1 Gbit/s.

    They are slow, so that a run that goes on beside commands leaves these, and other tests, most of two cores.
    """
    speeds = {"mercer": 0.4, "crosby": 0.2, "nas": 0.1}
    specs = [HostSpec(name=name, simulated_speed=speed, cpus=1) for name, speed in speeds.items()]
    with Lab(specs, rate_mbit=1000) as lab:
        yield lab


@pytest.fixture(scope="module")
def product(lab: Lab) -> Iterator[HeteroTui]:
    """The product on the laptop of the module's ``lab``, with all its hosts; ``down`` at the end, whatever happened."""
    product = HeteroTui(lab.laptop, lab.inventory())
    yield product
    product.run("down", "--yes", "--json")
