"""Recordings: the replayed state is the live one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_tui import events
from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import UsageError
from hetero_tui.events import ClusterState, HostState, Level
from hetero_tui.fold import apply
from hetero_tui.inventory.file import load
from hetero_tui.recording import recorder as recorders
from hetero_tui.recording.recorder import Recorder
from hetero_tui.recording.replay import Replay, read
from hetero_tui.session import Session
from hetero_tui.state import State, initial
from hetero_tui.ui.replaying import ReplayApp
from remote_agent import protocol
from remote_agent.states import RayState, RunState
from tests.specs import run_step

HOSTS = ("mercer", "nas")
START = initial("lab", tuple((host, "10.0.0.2") for host in HOSTS))


def step(number: int, seq: int) -> events.RunProgressed:
    worker = protocol.WorkerStep(
        worker="nas/cpu", host="nas", device="cpu", samples=64, compute_s=0.1, push_s=0.1, pull_s=0.1, wait_s=0.0
    )
    event = run_step(number, seq=seq, time=1000.0 + number, loss=1.0 / number, workers=(worker,))
    return events.RunProgressed(run="text-1", event=event)


def sample(host: str, ray: str, time: float, round_trip_s: float | None = None, epoch: int = 0) -> events.HostSampled:
    use = protocol.HostSample(time=time, cpu_use=0.5, memory_used=1, memory_total=2, ray=ray, epoch=epoch)
    return events.HostSampled(time=time, host=host, sample=use, round_trip_s=round_trip_s)


class Live:
    """A fold that is recorded, on a clock that each event moves."""

    def __init__(self, place: Path, **options: Any) -> None:
        self.clock = 1000.0
        self.state: State = START
        self.recorder = Recorder(place, now=lambda: self.clock, **options)
        self.recorder.begin(self.state)
        assert self.recorder.path is not None
        self.path = self.recorder.path

    def happen(self, happened: Iterable[events.Event], seconds: float = 1.0) -> None:
        for event in happened:
            self.clock += seconds
            before, self.state = self.state, apply(self.state, event)
            self.recorder(event, before, self.state)


RUN: tuple[Callable[[int], events.Event], ...] = (
    lambda seq: step(max(1, seq), seq),
    lambda seq: events.RunProgressed(
        run="text-1",
        event=protocol.RunStarted(
            seq=seq, time=1.0, run="text-1", job="text", host="nas", iterations=9, batch_size=64, parameters=3
        ),
    ),
    lambda seq: events.RunProgressed(
        run="text-1",
        event=protocol.PlanMade(
            seq=seq,
            time=1.0,
            strategy="sync",
            shares=(protocol.Share(worker="nas/cpu", host="nas", device="cpu", samples=64, speed=9.0),),
            reasons=("one host",),
        ),
    ),
    lambda seq: events.RunProgressed(
        run="text-1",
        event=protocol.Evaluated(seq=seq, time=1.0, step=seq, epoch=None, metrics={}, samples=1, seconds=1),
    ),
    lambda seq: events.RunProgressed(
        run="text-1",
        event=protocol.RunFinished(
            seq=seq, time=1.0, steps=9, samples=9, final_loss=None, samples_per_second=1.0, checkpoint="/c"
        ),
    ),
    lambda seq: events.RunRewound(run="text-1", seq=max(0, seq - 2)),
    lambda seq: events.RunBehind(run="text-1", seq=seq + 2, step=seq),
    lambda seq: events.RunChanged(time=1.0, run="text-1", job="text", state=RunState.STARTING),
)
WORDS = st.text("ab ×", max_size=5)
ANYTHING = st.lists(
    st.one_of(
        st.builds(
            events.HostChanged,
            time=st.floats(0, 1e9),
            host=st.sampled_from(HOSTS),
            state=st.sampled_from(HostState),
            detail=WORDS,
        ),
        st.builds(events.HostLost, time=st.floats(0, 1e9), host=st.sampled_from(HOSTS), cause=WORDS),
        st.builds(
            sample,
            st.sampled_from(HOSTS),
            st.sampled_from(RayState),
            st.floats(0, 1e9),
            st.none() | st.floats(0, 1),
            st.sampled_from((0, 7, 8)),
        ),
        st.builds(
            events.ClusterChanged,
            time=st.floats(0, 1e9),
            state=st.sampled_from(ClusterState),
            head=st.none() | st.sampled_from(HOSTS),
            epoch=st.sampled_from((0, 7)),
        ),
        st.builds(events.Notice, time=st.floats(0, 1e9), level=st.sampled_from(Level), text=WORDS),
        st.builds(lambda make, seq: make(seq), st.sampled_from(RUN), st.integers(1, 12)),
    ),
    max_size=40,
)


def replayed(path: Path) -> State:
    """The state at the end of a recording."""
    replay = Replay(read(path))
    replay.advance(1e10)
    return replay.state


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(happened=ANYTHING)
def test_the_state_after_a_replay_is_the_live_one_at_its_end(tmp_path: Path, happened: list[events.Event]) -> None:
    live = Live(tmp_path)
    live.happen(happened, seconds=2 * recorders.SAMPLE_EVERY)  # no sample is left out
    assert read(live.path).cut_off
    assert replayed(live.path) == live.state
    live.recorder.close()
    assert not read(live.path).cut_off
    assert replayed(live.path) == live.state


def test_use_that_changes_nothing_is_recorded_every_few_seconds(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.happen([sample("nas", RayState.RUNNING, 1.0) for _ in range(100)], seconds=0.1)
    assert len(read(live.path).entries) <= 5


def test_a_full_recording_ends_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    live = Live(tmp_path, max_bytes=40_000, complain=said.append)
    live.happen(step(number, number) for number in range(1, 1001))
    assert live.path.stat().st_size <= 41_000
    assert len(said) == 1
    assert replayed(live.path).run is not None
    monkeypatch.setattr(recorders, "KEPT", 3)
    for number in range(5):
        path = tmp_path / f"lab-{number}.jsonl"
        path.touch()
        os.utime(path, (number, number))
    Live(tmp_path).recorder.close()
    assert len(list(tmp_path.glob("*.jsonl"))) == 3


async def test_a_replay_plays_at_its_speed_and_can_be_paused(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.happen(step(number, number) for number in range(1, 101))
    live.recorder.close()
    replay = Replay(read(live.path))
    for _ in range(20):
        replay.change_speed(1)
    assert replay.speed == 256
    replay.toggle()
    playing = asyncio.create_task(replay.play())
    try:
        await asyncio.sleep(0.3)
        assert replay.state == START
        assert "paused" in replay.busy
        replay.toggle()
        async with asyncio.timeout(10):
            while replay.state != live.state:
                await asyncio.sleep(0.05)
        with pytest.raises(UsageError, match="recording"):
            await replay.up()
    finally:
        playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing


async def test_the_app_shows_a_recording_by_its_own_clock_and_its_keys_move_it(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.happen(step(number, number) for number in range(1, 101))
    live.recorder.close()
    replay = Replay(read(live.path))
    app = ReplayApp(replay)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("space", "greater_than_sign", "greater_than_sign", "less_than_sign")
        assert (replay.paused, replay.speed) == (True, 2)
        replay.advance(10.5)
        assert app.view().now == replay.position
        assert app.view().state.run.step >= 10
        assert app.view().state.run.step < 20
        await pilot.press("s")
        await pilot.pause()
        assert len(app._notifications) == 1
        await pilot.press("q")


def test_a_file_that_is_no_recording_or_is_damaged_is_said_to_be_so(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.happen([step(1, 1), step(2, 2)])
    live.recorder.close()
    whole = live.path.read_text()
    lines = whole.splitlines(keepends=True)
    file = tmp_path / "given.jsonl"

    def mistake(text: str) -> str:
        file.write_text(text)
        with pytest.raises(UsageError) as raised:
            read(file)
        assert str(file) in str(raised.value)
        return str(raised.value)

    assert "not a recording" in mistake("")
    assert "not a recording" in mistake('{"seq": 1, "kind": "run_started"}\n')
    assert "format 99" in mistake(whole.replace('"format":2', '"format":99'))
    assert "line 3" in mistake("".join((*lines[:2], lines[2][:40] + "\n", *lines[3:])))
    with pytest.raises(UsageError, match="can't be read"):
        read(tmp_path / "none")
    file.write_text("".join(lines[:2]) + lines[2][:40])  # the app was killed while it wrote
    assert read(file).cut_off
    assert replayed(file).run is not None
    hostile = whole.replace("10.0.0.2", "\\u001b[2J10.0.0.2")
    file.write_text(hostile)
    assert "\x1b" not in read(file).initial.hosts[0].address


async def test_a_session_is_recorded_as_it_was_without_its_secret(machines: EmbeddedMachines, tmp_path: Path) -> None:
    path = machines.write_inventory()
    session = Session(load(path), path, ledger_folder=machines.folder / "laptop")
    session._fleet.ledger.keep_token("a-secret")
    async with session:
        file = session.record(tmp_path / "kept")
        await session.probe()
        await session.down()
        live = session.state
    assert file is not None
    assert not read(file).cut_off
    assert replayed(file) == live
    assert live.hosts[0].facts is not None
    assert "a-secret" not in file.read_text()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_a_session_that_can_not_be_recorded_goes_on_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    Recorder(tmp_path / "file", complain=said.append).begin(START)
    assert str(tmp_path / "file") in said.pop()
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(recorders, "_private", lambda _: full)
        recorder = Recorder(tmp_path, complain=said.append)
        recorder.begin(START)
        recorder(step(1, 1), START, START)
        recorder.close()
    assert len(said) == 1
    assert "space" in said[0]
