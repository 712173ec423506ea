"""A machine's clock is its own: what the screens say of a run does not depend on how far the head's is off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from hetero_tui import events as ev
from hetero_tui.fold import apply
from hetero_tui.state import State

VIEWS = "1234"


def folded_with(off: float):
    """A fold for the scenarios in which the clock of mercer, the head, is ``off`` by so many seconds."""

    def sampled(event: ev.HostSampled) -> ev.HostSampled:
        return replace(event, sample=replace(event.sample, time=event.time + off))

    def fold(state: State, happened: Iterable[ev.Event]) -> State:
        for event in happened:
            if isinstance(event, ev.RunProgressed):
                event = replace(event, event=replace(event.event, time=event.event.time + off))
            state = apply(state, sampled(event) if isinstance(event, ev.HostSampled) else event)
        return state

    return fold, sampled


@pytest.mark.parametrize(("condition", "off"), [("starting", -300.0), ("faulty", 300.0)])
async def test_every_view_is_the_same_however_far_the_clock_of_the_head_is_off(
    condition, off, scenarios, open_app, monkeypatch
) -> None:
    for made in ("probed", "up", "training"):  # each time anew, by this fold
        monkeypatch.setattr(scenarios, made, getattr(scenarios, made).__wrapped__)
    up = scenarios.up

    async def drawn(off: float) -> list[str]:
        fold, sampled = folded_with(off)
        seen = ev.HostSampled(
            time=scenarios.NOW - 330, host="mercer", sample=scenarios.sample("mercer", 0.1, 1.0, 12.0)
        )
        monkeypatch.setattr(scenarios, "fold", fold)
        monkeypatch.setattr(scenarios, "up", lambda now=scenarios.NOW: apply(up(now), sampled(seen)))
        app, found = open_app(getattr(scenarios, condition)()), []
        async with app.run_test(size=(120, 40)) as pilot:
            for view in VIEWS:
                await pilot.press(view)
                await pilot.pause()
                found += [f"{view}: {line.text.rstrip()}" for line in app.main._compositor.render_strips()]
        return found

    assert await drawn(off) == await drawn(0.0)
