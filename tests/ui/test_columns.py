"""Which columns there are at a width, and what stands in them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_tui.events import HostState
from hetero_tui.ui import cells, columns
from hetero_tui.ui.details import host_details
from hetero_tui.ui.header import verdict
from hetero_tui.ui.palette import DARK
from remote_agent.states import RayState

NAMES = ("mercer", "crosby", "macbook", "nas")


@given(st.integers(1, 300), st.lists(st.text("abcdefgh", min_size=1, max_size=40), max_size=50), st.booleans())
def test_the_columns_never_need_more_than_the_width(width, names, run) -> None:
    chosen = columns.choose(width, tuple(names), run=run)
    assert sum(column.width for column in chosen.columns) + chosen.gap * (len(chosen.columns) - 1) <= max(width, 3)


@pytest.mark.parametrize("width", [194, 114, 74, 54, 36, 12])
def test_every_line_is_exactly_as_wide_as_the_titles(width, scenarios) -> None:
    for state in (scenarios.training(), scenarios.probed(), scenarios.demo(), scenarios.fresh(), scenarios.finished()):
        chosen = columns.choose(width, tuple(host.name for host in state.hosts), run=state.run is not None)
        wide = cells.header_line(chosen, DARK).cell_len
        lines = [cells.host_line(host, state.run, chosen, scenarios.NOW, DARK) for host in state.hosts]
        assert {line.cell_len for line in lines} == {wide}


KEYS = {"key": "k", "bring_back": "b", "open": "enter"}


def line(state, name: str, now: float, width: int = 194) -> str:
    chosen = columns.choose(width, tuple(host.name for host in state.hosts))
    return cells.host_line(state.host(name), state.run, chosen, now, DARK, KEYS.__getitem__).plain


def test_after_a_teardown_no_cell_says_what_a_sample_from_before_said(scenarios) -> None:
    state, now = scenarios.training(), scenarios.NOW
    crosby = state.host("crosby")
    assert crosby.sample.ray is RayState.RUNNING
    down = dataclasses.replace(crosby, state=HostState.READY, since=now + 2)
    after = dataclasses.replace(state, hosts=(down,), run=None)
    said = line(after, "crosby", now + 2)
    assert "running" not in said
    assert "0.5 ms" not in said, "there is no head"
    assert "Ray" not in dict(host_details(down, None, now + 2))
    stopped = dataclasses.replace(down, sampled=now + 3, sample=dataclasses.replace(down.sample, ray=RayState.NONE))
    assert "not started" in line(dataclasses.replace(after, hosts=(stopped,)), "crosby", now + 3)


def test_a_laptop_that_slept_shows_nothing_old_as_if_it_were_now(scenarios) -> None:
    state, later = scenarios.training(), scenarios.NOW + 7200
    said = line(state, "crosby", later)
    assert "training 2 h 00 ago" in said
    assert "939 Mb/s" not in said
    assert "0.5 ms" not in said
    pairs = dict(host_details(state.host("crosby"), state.run, later))
    assert pairs["memory"].endswith("2 h 00 ago")
    assert not pairs.keys() & {"CPU", "sensors", "link", "round trip"}
    assert verdict(state, "", scenarios.NOW, DARK).style != verdict(state, "", later, DARK).style == DARK.muted


def test_a_simulated_machine_always_says_so(scenarios) -> None:
    assert "simulated ×0.25" in line(scenarios.demo(), "cedar", scenarios.NOW)
    narrow = line(scenarios.demo(), "cedar", scenarios.NOW, 54)
    assert "sim. ×0.25" in narrow
    assert "…" not in narrow
    facts = scenarios.fleet_facts()["mercer"].model_copy(update={"simulated_speed": 0.5})
    state = scenarios.training()
    host = dataclasses.replace(state.host("mercer"), facts=facts)
    assert cells.device_words(host) == ("simulated ×0.5 TITAN X", "CUDA")


CHOICES = """
6 run | 1 | HOST 3 STATE 2
9 run | 1 | HOST 4 STATE 4
14 run | 1 | HOST 7 STATE 6
26 run | 1 | HOST 7 STATE 18
27 run | 1 | HOST 7 STATE 19
33 run | 1 | HOST 7 STATE 20 USE- 4
34 run | 1 | HOST 7 STATE 21 USE- 4
40 run | 1 | HOST 7 STATE 27 USE- 4
48 run | 1 | HOST 7 STATE 23 DEVICE- 11 USE- 4
62 run | 1 | HOST 7 STATE 19 DEVICE- 11 USE 13 MEMORY- 8
66 run | 1 | HOST 7 STATE 22 DEVICE- 11 USE 14 MEMORY- 8
72 run | 1 | HOST 7 STATE 22 DEVICE- 11 USE 14 MEMORY- 8 SHARE 5
72 none | 1 | HOST 7 STATE 22 DEVICE 16 USE 15 MEMORY- 8
80 run | 1 | HOST 7 STATE 20 DEVICE 16 USE 13 MEMORY 14 SHARE 5
80 none | 1 | HOST 7 STATE 22 DEVICE 16 USE 17 MEMORY 14
90 run | 1 | HOST 7 STATE 26 DEVICE 16 USE 17 MEMORY 14 SHARE 5
96 run | 1 | HOST 7 STATE 32 DEVICE 16 USE 17 MEMORY 14 SHARE 5
110 run | 2 | HOST 7 STATE 22 DEVICE 16 USE 17 MEMORY 14 LINK 17 SHARE 5
110 none | 2 | HOST 7 STATE 29 DEVICE 16 USE 17 MEMORY 14 LINK 17
130 run | 2 | HOST 7 STATE 36 DEVICE 22 USE 17 MEMORY 14 LINK 17 SHARE 5
160 run | 2 | HOST 7 STATE 36 DEVICE 22 USE 17 MEMORY 14 LINK 17 SHARE 5 RAY 14 SEEN 12
240 run | 2 | HOST 7 STATE 48 DEVICE 24 USE 30 MEMORY 14 LINK 17 SHARE 5 RAY 14 SEEN 12
"""
"""Width, is there a run | the gap | each column with its width; -: without its optional half."""


@pytest.mark.parametrize("line", CHOICES.strip().splitlines())
def test_the_columns_at_these_widths_are_the_accepted_ones(line: str) -> None:
    given, gap, wanted = line.split(" | ")
    width, run = given.split()
    chosen = columns.choose(int(width), NAMES, run=run == "run")
    said = [f"{column.title}{'' if column.full else '-'} {column.width}" for column in chosen.columns]
    assert (str(chosen.gap), " ".join(said)) == (gap, wanted)
