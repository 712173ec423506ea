"""What a stage of some blocks takes, added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remote_agent.planning.blocks import BlockCost, DeviceBlocks, need, wire_bytes

FROZEN = BlockCost(forward_s=1.0, backward_s=0.5, weights=100, trained=0, held=7, boundary=0)
TRAINED = BlockCost(forward_s=2.0, backward_s=4.0, weights=200, trained=150, held=5, boundary=40, numbers=10)


def test_a_stage_takes_its_weights_what_trains_them_and_what_is_in_flight() -> None:
    costs = DeviceBlocks(blocks=(FROZEN, TRAINED, TRAINED), room=0.0, copies=2.0, workspace=1000.0)
    assert need(costs, 0, 1, 3) == 100 + 3 * 7, "without the optimizer's workspace"
    assert need(costs, 1, 2, 3) == 200 + 2 * 150 + 3 * (5 + 40) + 1000
    assert need(costs, 0, 3, 1) == 500 + 2 * 300 + (7 + 45 + 45) + 1000, "which is there once"


def test_of_what_goes_over_a_link_only_numbers_are_encoded_and_never_into_more() -> None:
    assert wire_bytes(TRAINED, "fp32") == 40
    assert wire_bytes(TRAINED, "bf16") == 20
    assert wire_bytes(replace(TRAINED, numbers=0), "bf16") == 40
    assert wire_bytes(replace(TRAINED, boundary=15), "bf16") == 15, "numbers of one byte each, and some"


def test_a_slower_device_takes_longer_both_ways_and_keeps_the_rest() -> None:
    costs = DeviceBlocks(blocks=(FROZEN, TRAINED), room=9.0, update_s=1e-9)
    slower = costs.slower(3.0)
    assert [block.seconds for block in slower.blocks] == pytest.approx([4.5, 18.0])
    assert slower.blocks[1].forward_s == 6.0
    kept = tuple(
        replace(block, forward_s=old.forward_s, backward_s=old.backward_s)
        for block, old in zip(slower.blocks, costs.blocks, strict=True)
    )
    assert replace(slower, blocks=kept) == costs
