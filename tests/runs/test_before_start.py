"""What can't become a run is refused before anything is started on the hosts."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest

from hetero_tui.errors import OrderError
from hetero_tui.inventory import Host
from hetero_tui.runs import before_start
from hetero_tui.runs.order import read_order


@pytest.mark.parametrize(
    ("settings", "hosts", "refused"),
    [
        ({"shards": "3"}, 2, True),
        ({"shards": "3", "strategy": "local_sgd"}, 1, True),
        ({"shards": "3"}, 3, False),
        ({"shards": "3", "strategy": "allreduce"}, 1, False),
        ({"strategy": "sync"}, 1, False),
    ],
)
def test_more_shards_than_hosts_are_refused_before_anything_is_contacted(
    settings: dict[str, str], hosts: int, refused: bool
) -> None:
    order, there = read_order("digits", settings), [Host(name=f"h{number}", address="h") for number in range(hosts)]
    if not refused:
        before_start.refuse_for(order, there)
        return
    with pytest.raises(OrderError, match=f"shards=3: there {'is 1 host' if hosts == 1 else 'are 2 hosts'}"):
        before_start.refuse_for(order, there)


@pytest.mark.parametrize(
    ("limits", "refused"), [((), False), ((16, 8), True), ((16, None), False), ((64, 8), False), ((16, 8, None), True)]
)
def test_a_unit_that_no_device_may_take_is_refused_before_anything_is_contacted(
    limits: tuple[int | None, ...], refused: bool
) -> None:
    order = read_order("digits", {"unit": "512", "batch_size": "32"})
    roles = ["any", "any", "server"]
    there = [
        Host(name=f"h{number}", address="h", max_batch=most, role=cast("Any", roles[number]))
        for number, most in enumerate(limits)
    ]
    with (
        pytest.raises(OrderError, match=r"unit=32: .* largest max_batch is 16 -> set unit=16 or less")
        if refused
        else nullcontext()
    ):
        before_start.refuse_for(order, there)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"local_steps": "3", "strategy": "sync"}, ["local_steps=3 has no effect: it counts with strategy=local_sgd"]),
        ({"local_steps": "3"}, []),
        ({"outer_momentum": "0.5"}, ["outer_momentum=0.5 has no effect: it counts with outer=nesterov"]),
    ],
)
async def test_a_setting_without_effect_is_told_before_anything_starts(
    settings: dict[str, str], said: list[str]
) -> None:
    told: list[str] = []
    assert await before_start.archive_of(read_order("digits", settings), lambda _, text: told.append(text)) is None
    assert told == said
