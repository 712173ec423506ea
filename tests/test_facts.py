"""What is known of a machine, in words."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, ""),
        (59.9, ""),
        (-59.9, ""),
        (60.0, "its clock is 1 min ahead of this computer's"),
        (-150.0, "its clock is 2 min behind this computer's"),
        (2879 * 60.0, "its clock is 2,879 min ahead of"),
        (2880 * 60.0, "its clock is 2 days ahead of"),
        (-10 * 86400.0, "its clock is 10 days behind"),
    ],
)
def test_a_clock_that_is_off_by_a_minute_is_said(make_facts: Any, seconds: float, said: str) -> None:
    notes = make_facts().model_copy(update={"clock_ahead": seconds}).notes
    assert len(notes) == bool(said)
    assert all(note.startswith(said) and "set it there" in note for note in notes)


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (0.5, 1), (1.0, 1), (2.7, 2), (16.0, 8)])
def test_the_cores_that_a_user_may_use_are_whole_and_one_at_least(
    make_facts: Any, quota: float | None, cores: int
) -> None:
    facts = make_facts(cpu={"model": "CPU", "logical": 8, "quota": quota})
    assert facts.cpu.usable == cores
    assert facts.device_name("cpu") == f"CPU {cores} core{'s' if cores > 1 else ''}"


def test_a_device_has_its_products_name_and_a_simulated_machine_says_so(make_facts: Any) -> None:
    cards = [{"kind": "cuda", "index": number, "name": name} for number, name in enumerate(("TITAN X", "RTX 4070"))]
    facts = make_facts(accelerators=cards)
    assert [facts.device_name(device) for device in ("cuda:0", "cuda:1", "cpu")] == [
        "TITAN X",
        "RTX 4070",
        "CPU 8 cores",
    ]
    assert make_facts(simulated_speed=0.5).device_name("cpu") == "simulated ×0.5"
    assert make_facts(simulated_speed=0.5, accelerators=cards).device_name("cuda:0") == "TITAN X"
