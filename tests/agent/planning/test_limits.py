"""What a run's settings leave to the planner, and what a way to train is called and sends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from remote_agent.planning.choice import Limits, limits_of
from remote_agent.planning.survey import DAY_S, MAX_AGE_DAYS, wire_bytes
from remote_agent.planning.ways import Way
from remote_agent.settings import TrainingConfig
from tests.agent.planning.fleets import host, survey


def test_a_strategy_that_is_set_leaves_nothing_open() -> None:
    config = TrainingConfig(strategy="local_sgd", codec="int8", shards=2, local_steps=7, local_batch=3, overlap=True)
    assert limits_of(config) == Limits(
        strategy="local_sgd", codec="int8", shards=2, local_steps=7, local_batch=3, overlap=True, all_hosts=True
    )
    assert limits_of(TrainingConfig()).overlap is False


def test_with_auto_what_differs_from_its_default_is_fixed_and_all_else_is_open() -> None:
    assert limits_of(TrainingConfig(strategy="auto")) == Limits()
    fixed = TrainingConfig(strategy="auto", allow="inexact", codec="bf16", local_steps=7, overlap=True, shards=2)
    assert limits_of(fixed) == Limits(inexact=True, codec="bf16", local_steps=7, overlap=True, shards=2)


@pytest.mark.parametrize(
    ("way", "title", "exact"),
    [
        ({"strategy": "sync"}, "sync", True),
        ({"strategy": "allreduce"}, "allreduce", True),
        ({"strategy": "sync", "codec": "int8"}, "sync, int8", False),
        ({"strategy": "sync", "overlap": True}, "sync", True),
        ({"strategy": "local_sgd", "local_steps": 7}, "local_sgd, 7 local steps", False),
        (
            {"strategy": "local_sgd", "overlap": True, "codec": "bf16"},
            "local_sgd, 20 local steps, bf16, overlap",
            False,
        ),
    ],
)
def test_a_way_has_a_title_and_is_exact_or_not(way: dict[str, Any], title: str, exact: bool) -> None:
    made = Way(hosts=("a",), **way)
    assert (made.title, made.exact) == (title, exact)


@pytest.mark.parametrize(("codec", "numbers"), [("fp32", 4000), ("bf16", 2000), ("int8", 1007.8125)])
def test_a_codec_sends_so_many_bytes(codec: str, numbers: float) -> None:
    assert wire_bytes(codec, 1000) == pytest.approx(numbers, rel=0.02)


def test_a_survey_is_old_after_its_days_or_if_it_comes_from_the_future() -> None:
    made = dataclasses.replace(survey([host("a", 40)]), time=1e9)
    days = {0.0: False, 1.0: False, MAX_AGE_DAYS - 0.01: False, MAX_AGE_DAYS: True, -0.99: False, -1.0: True}
    assert {age: made.is_old(1e9 + age * DAY_S) for age in days} == days


def test_a_host_without_its_devices_stays() -> None:
    left = survey([host("a", 40, devices=2), host("b", 20)]).without({"a/0", "b/0"})
    assert [[device.name for device in each.devices] for each in left.hosts] == [["a/1"], []]
    assert left.of(["b"]).names == ("b",)
