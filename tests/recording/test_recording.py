"""What was recorded is seen again as it was: the replayed state is the live one, whatever was left out or cut off."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

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
from hetero_tui.recording.recording import read
from hetero_tui.recording.replay import Replay
from hetero_tui.session import Session
from hetero_tui.state import State, initial
from hetero_tui.ui.replaying import ReplayApp
from hetero_tui.ui.widgets.lines import Lines
from remote_agent import protocol
from remote_agent.states import RayState, RunState

HOSTS = ("mercer", "nas")
START = initial("lab", tuple((host, "10.0.0.2") for host in HOSTS))


def step(number: int, seq: int) -> events.RunProgressed:
    worker = protocol.WorkerStep(
        worker="nas/cpu", host="nas", device="cpu", samples=64, compute_s=0.1, push_s=0.1, pull_s=0.1, wait_s=0.0
    )
    event = protocol.Step(
        seq=seq,
        time=1000.0 + number,
        step=number,
        loss=1.0 / number,
        samples=64,
        seconds=1.0,
        bytes_pushed=1,
        bytes_pulled=1,
        workers=(worker,),
    )
    return events.RunProgressed(run="text-1", event=event)


def sample(host: str, ray: str, time: float, round_trip_s: float | None = None, epoch: int = 0) -> events.HostSampled:
    use = protocol.HostSample(time=time, cpu_use=0.5, memory_used=1, memory_total=2, ray=ray, epoch=epoch)
    return events.HostSampled(time=time, host=host, sample=use, round_trip_s=round_trip_s)


class Live:
    """A fold that is recorded, on a clock that each event moves."""

    def __init__(self, place: Path, **options: int) -> None:
        self.clock = 1000.0
        self.state: State = START
        self.states = [START]
        self.recorder = Recorder(place, now=lambda: self.clock, **options)
        self.recorder.begin(self.state)
        assert self.recorder.path is not None
        self.path = self.recorder.path

    def happen(self, happened: Iterable[events.Event], seconds: float = 1.0) -> None:
        for event in happened:
            self.clock += seconds
            before, self.state = self.state, apply(self.state, event)
            self.recorder(event, before, self.state)
            self.states.append(self.state)


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


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(happened=ANYTHING, seconds=st.sampled_from([0.001, 1.0, 10.0]))
def test_the_state_after_a_replay_is_the_live_one_at_its_end(
    tmp_path: Path, happened: list[events.Event], seconds: float
) -> None:
    live = Live(tmp_path)
    live.happen(happened, seconds)
    killed = read(live.path)
    assert killed.cut_off
    if seconds > recorders.SAMPLE_EVERY:  # nothing was left out: the events alone lead there
        assert not any(isinstance(what, State) for _, what in killed.entries[1:])
        assert killed.state_after(len(killed.entries)) == live.state
    live.recorder.close()
    whole = read(live.path)
    assert not whole.cut_off
    assert whole.state_after(len(whole.entries)) == live.state


def test_a_recording_of_a_long_run_stays_small_and_its_end_is_the_live_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(tmp_path, max_bytes=400_000)
    for number in range(1, 4001):
        live.happen([step(number, number)], seconds=0.05)
        assert live.path.stat().st_size <= 500_000
    live.happen((step(number, number) for number in range(4001, 9001)), seconds=0.0)  # a history that is caught up with
    live.recorder.close()
    assert live.path.stat().st_size <= 500_000
    recording = read(live.path)
    assert recording.begins > 1000.0, "the older part went"
    assert recording.state_after(len(recording.entries)) == live.state
    assert live.state.run is not None
    assert live.state.run.step == 9000

    monkeypatch.setattr(recorders, "KEPT", 3)
    for number in range(5):
        path = tmp_path / f"lab-{number}.jsonl"
        path.touch()
        os.utime(path, (number, number))
    Live(tmp_path).recorder.close()
    assert len(list(tmp_path.glob("*.jsonl"))) == 3


def test_any_moment_can_be_gone_to_and_fro_and_shows_what_was_known_then(tmp_path: Path) -> None:
    live = Live(tmp_path, max_bytes=1 << 20)
    live.happen(step(number, number) for number in range(1, 101))
    live.recorder.close()
    replay = Replay(read(live.path))
    shown: list[State] = []
    replay.subscribe(shown.append)
    for moment in (1050, 1100, 1001, 1099, 1000, 1075):
        replay.seek(float(moment))
        assert replay.state == live.states[moment - 1000] == shown[-1]
        assert replay.now() == moment
    replay.skip(1.0)
    assert replay.state == live.state
    replay.skip(-2.0)
    assert replay.state == START


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
        await pilot.press("space", "right_square_bracket", "right_square_bracket")
        assert replay.paused
        assert replay.position == pytest.approx(1010, abs=2)
        assert app.view().now == replay.position
        assert app.view().state == live.states[replay.recording.count_until(replay.position) - 1]
        await pilot.press("left_square_bracket", "greater_than_sign", "greater_than_sign", "less_than_sign")
        assert replay.position == pytest.approx(1005, abs=2)
        assert replay.speed == 2
        header = app.main.query_one("#status", Lines).lines[0].plain
        assert header.startswith(" ◌ replay paused ") or "  ◌ replay paused " in header
        assert "stop" not in app.main.query_one("#keys", Lines).lines[0].plain
        await pilot.press("s")
        await pilot.pause()
        assert [toast.message for toast in app._notifications] == [
            "This app only shows: nothing on the machines is changed."
        ]
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
    assert "format 99" in mistake(whole.replace('"format": 1', '"format":99').replace('"format":1', '"format":99'))
    assert "cut off" in mistake(lines[0])
    assert "cut off" in mistake("".join((lines[0], *lines[2:])))
    assert "line 3" in mistake("".join((*lines[:2], "{}\n", *lines[3:])))
    assert "line 3" in mistake("".join((*lines[:2], lines[2][:40] + "\n", *lines[3:])))
    assert "line 2" in mistake(whole.replace('"cluster_state":"down"', '"cluster_state":"sideways"'))
    with pytest.raises(UsageError, match="can't be read"):
        read(tmp_path / "none")
    file.write_text("".join(lines[:3]) + lines[3][:40])  # the app was killed while it wrote
    cut = read(file)
    assert cut.cut_off
    assert cut.state_after(len(cut.entries)).run is not None
    hostile = whole.replace("10.0.0.2", "\\u001b[2J10.0.0.2")
    file.write_text(hostile)
    assert "\x1b" not in read(file).state_after(1).hosts[0].address


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
    recording = read(file)
    assert not recording.cut_off
    assert recording.state_after(len(recording.entries)) == live
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
    assert "not recorded" in said.pop()
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(recorders, "_private", lambda _: full)
        recorder = Recorder(tmp_path, complain=said.append)
        recorder.begin(START)
        recorder(step(1, 1), START, START)
        recorder.close()
    assert len(said) == 1
    assert "space" in said[0]
