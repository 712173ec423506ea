"""Figures for people."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone

import pytest

from hetero_tui.text import loss_figure
from hetero_tui.ui import format as fmt

GB = 2**30


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (lambda: fmt.memory(int(9.1 * GB), 12 * GB), "9.1/12.0 GB"),
        (lambda: fmt.size(3 * 2**50), "3072.0 TB"),
        (lambda: fmt.ago(None), "never"),
        (lambda: fmt.throughput(1841.2), "1,841 samples/s"),
        (lambda: fmt.percent(0.84), " 84%"),
        (lambda: fmt.percent(None), " n/a"),
        (lambda: loss_figure(1.2e-5), "1.2e-05"),
        (lambda: fmt.figure("test_accuracy", 0.9731), "test accuracy 97.3%"),
        (lambda: fmt.figure("test_loss", 0.12345), "test loss 0.1235"),
        (lambda: fmt.size(1024), "1.0 KB"),
        (lambda: fmt.size(int(1004.7 * 2**20)), "1.0 GB"),
        (lambda: fmt.milliseconds(0.00994), "9.9 ms"),
        (lambda: fmt.milliseconds(0.00995), "10 ms"),
        (lambda: fmt.milliseconds(0.9996), "1,000 ms"),
        (lambda: fmt.milliseconds(9.9995), "10.0 s"),
        (lambda: fmt.duration(3600), "1 h 00"),
        (lambda: fmt.duration(86369), "23 h 59"),
        (lambda: fmt.duration(86400), "1 d"),
        (lambda: fmt.took(-1), "0.0 s"),
        (lambda: fmt.took(9.95), "10 s"),
        (lambda: fmt.took(2 * 3600 + 5 * 60 + 59), "2 h 5 min"),
        (lambda: fmt.recent(-1), "0.0 s"),
        (lambda: fmt.recent(9.95), "9 s"),
        (lambda: fmt.duration(-1), "0 s"),
        (lambda: fmt.duration(99.9), "99 s"),
        (lambda: fmt.duration(151), "3 min"),
        (lambda: fmt.duration(3580), "1 h 00"),
        (lambda: fmt.duration(None), "n/a"),
        (lambda: fmt.ago(3), "3 s ago"),
        (lambda: fmt.link_rate(9.95e6 / 8), "10 Mb/s"),
        (lambda: fmt.link_rate(999.5e6 / 8), "1.0 Gb/s"),
        (lambda: loss_figure(123456.0), "1.2e+05"),
        (lambda: loss_figure(99.5), "99.500"),
        (lambda: loss_figure(0.0999), "0.0999"),
        (lambda: loss_figure(0.00016), "0.00016"),
        (lambda: loss_figure(float("inf")), "inf"),
        (lambda: loss_figure(None), "n/a"),
        (lambda: fmt.plural(8, "batch"), "8 batches"),
        (lambda: fmt.plural(1, "host"), "1 host"),
        (lambda: fmt.plural(1200, "process"), "1,200 processes"),
    ],
)
def test_a_figure_is_said_in_human_units(figure, said) -> None:
    assert figure() == said


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce GTX TITAN X", "TITAN X"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("Apple M4 Max", "M4 Max"),
        ("CPU 4 cores", "CPU 4 cores"),
        ("NVIDIA ", "NVIDIA "),
    ],
)
def test_a_device_is_named_without_its_maker(name, short) -> None:
    assert fmt.short_device(name) == short


def test_times_of_day_are_on_the_users_clock() -> None:
    assert fmt.clock(1_790_000_460.0, UTC) == "14:21:00"
    assert fmt.clock(1_790_000_460.0, timezone(timedelta(hours=2)), seconds=False) == "16:21"


@pytest.mark.parametrize(
    ("days", "said"),
    [(0, "14:21"), (1, "Sun 14:21"), (6, "Tue 14:21"), (7, "14 Sep 14:21"), (40, "12 Aug 14:21")],
)
def test_a_moment_in_the_past_is_said_by_how_long_ago_it_was(days, said) -> None:
    now = 1_790_000_460.0
    assert fmt.day(now - days * 86400, now, UTC) == said
    assert fmt.day(now - 600, now, timezone(timedelta(hours=9, minutes=40))) == "Mon 23:51", "the user's own day"
