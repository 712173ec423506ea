"""Devices and links by published figures."""

from __future__ import annotations

import pytest

from hetero_tui.planning.catalogue import DEVICES, PAYLOAD, estimate, known_as, link_rate
from remote_agent.planning.survey import Device


@pytest.mark.parametrize(
    ("text", "megabits"),
    [
        ("1gbit", 1000),
        ("100mbit", 100),
        ("2.5Gbit", 2500),
        ("1 gbit", 1000),
        ("gbit", None),
        ("0gbit", None),
        ("5kbit", None),
    ],
)
def test_a_links_rate_is_what_is_left_of_its_bits_for_data(text: str, megabits: float | None) -> None:
    rate = None if megabits is None else pytest.approx(PAYLOAD * megabits * 1e6 / 8)
    assert link_rate(text) == rate


@pytest.mark.parametrize(
    ("product", "device"),
    [
        ("NVIDIA GeForce RTX 4070", "rtx4070"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"),
        ("NVIDIA GeForce GTX TITAN X", "titanx"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("CPU 4 cores", None),
        ("", None),
    ],
)
def test_a_product_is_known_by_the_longest_name_in_it(product: str, device: str | None) -> None:
    assert known_as(product) == (DEVICES[device] if device else None)


def test_a_device_is_estimated_beside_one_that_was_measured() -> None:
    anchor = Device(name="a/0", speed=67.0, overhead_s=0.002, step_s=0.4, product="NVIDIA GeForce GTX TITAN X")
    found = estimate("b/0", "rtx4070", anchor)
    ratio = 29.1 / 6.7
    assert found.speed == pytest.approx(67.0 * ratio)
    assert found.step_s == pytest.approx(0.4 / ratio)
    assert (found.name, found.product, found.memory, found.overhead_s) == ("b/0", "rtx4070", 12_000_000_000, 0.002)
    assert found.estimate.startswith("29.1 TFLOPS fp32, https://")
    assert found.estimate.endswith("against a/0 as measured")
