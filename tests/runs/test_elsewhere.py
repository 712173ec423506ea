"""What another terminal started is looked for, and what it ends is not taken for something new."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hetero_tui import events
from hetero_tui.events import ClusterState
from hetero_tui.fold import apply
from hetero_tui.following import Elsewhere
from hetero_tui.state import State, initial
from remote_agent import protocol
from remote_agent.states import RayState


def sampled(host: str, epoch: int) -> events.HostSampled:
    sample = protocol.HostSample(
        time=1.0, cpu_use=0.1, memory_used=1, memory_total=2, ray=RayState.RUNNING, epoch=epoch
    )
    return events.HostSampled(time=1.0, host=host, sample=sample, round_trip_s=None)


class Looks:
    """Counts how often is looked for something new."""

    count = 0

    async def __call__(self) -> None:
        self.count += 1


def looking() -> tuple[Looks, Elsewhere]:
    looks = Looks()
    elsewhere = Elsewhere(looks, lambda: False)
    elsewhere.is_wanted = True
    return looks, elsewhere


async def test_a_host_that_runs_for_a_moment_after_its_head_is_down_is_no_new_cluster() -> None:
    """A look in the middle of another terminal's teardown would call a host failed that was taken down."""
    looks, elsewhere = looking()

    async def happened(state: State, event: events.Event) -> State:
        after = apply(state, event)
        elsewhere(event, state, after)
        await asyncio.sleep(0)
        return after

    up = replace(initial("lab", (("mercer", ""), ("nas", ""))), cluster_state=ClusterState.UP, head="mercer")
    up = await happened(up, sampled("mercer", 7))
    state = await happened(up, events.ClusterChanged(time=1.0, state=ClusterState.DOWN))
    state = await happened(state, sampled("nas", 7))
    assert looks.count == 0
    await happened(state, sampled("nas", 8))
    assert looks.count == 1
    await elsewhere.close()
