"""A run beyond the terminal: figures that count each step once, a table, and a page that is whole and loads nothing."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import sys
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hetero_tui import commanding, events
from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import RunError, UsageError
from hetero_tui.events import ClusterState, HostState
from hetero_tui.fleet import agent
from hetero_tui.fold import apply
from hetero_tui.inventory.file import load
from hetero_tui.narration import Output
from hetero_tui.recording.replay import Recording
from hetero_tui.reporting import table
from hetero_tui.reporting.figures import figures_of
from hetero_tui.reporting.metrics import metrics, served
from hetero_tui.reporting.page import page
from hetero_tui.reports import recording_document
from hetero_tui.session import Session
from hetero_tui.state import WorkerView, initial
from hetero_tui.transport import open_transport
from remote_agent import protocol
from remote_agent.states import RunState
from tests.specs import run_step, write_run

RUN = "digits-1"
SWEEP = "sweep-1"


def started(name: str = "digits") -> protocol.RunStarted:
    return protocol.RunStarted(
        seq=1,
        time=100.0,
        run=RUN,
        job=name,
        host="fast",
        iterations=6,
        batch_size=8,
        parameters=10,
        config={"seed": 1},
    )


def step(number: int, seq: int, loss: float | None = 1.0) -> protocol.Step:
    workers = tuple(
        protocol.WorkerStep(
            worker=f"{host}/cpu",
            host=host,
            device="cpu",
            samples=4,
            compute_s=0.5,
            push_s=0.25,
            pull_s=0.125,
            wait_s=0.125,
        )
        for host in ("fast", "half")
    )
    return run_step(number, seq=seq, time=100.0 + seq, loss=loss, samples=8, workers=workers, scalars={"kl": 0.5})


HAPPENED: tuple[protocol.Event, ...] = (
    started(),
    protocol.WorkerJoined(seq=2, time=100.5, worker="fast/cpu", host="fast", device="cpu", name="A <b>CPU</b>"),
    *(step(number, number + 2, loss=100.0 / number**3) for number in range(1, 5)),
    protocol.WorkerLost(seq=7, time=107.0, worker="half/cpu", host="half", device="cpu", step=4, cause="<i>silent</i>"),
    protocol.WorkerLost(seq=8, time=107.0, worker="x/cpu", host="x", device="cpu", step=4, cause="drained"),
    protocol.RunResumed(seq=9, time=108.0, step=2, host="fast", checkpoint="/c"),
    *(step(number, number + 7, loss=90.0 / number**3) for number in range(3, 6)),
    protocol.Evaluated(seq=13, time=113.0, step=5, epoch=1.0, metrics={"val_loss": 0.5}, samples=9, seconds=0.1),
    step(6, 14, None),
    protocol.RunFinished(
        seq=15, time=115.0, steps=6, samples=48, final_loss=0.25, samples_per_second=8.0, checkpoint="/c/final"
    ),
)


def test_a_resumed_run_has_the_settings_and_the_speed_of_its_last_part() -> None:
    resumed = protocol.RunResumed(seq=4, time=108.0, step=1, host="fast", checkpoint="/c", config={"seed": 2})
    back = protocol.RunResumed(seq=6, time=109.0, step=2, host="fast", checkpoint="", went_back=True)
    end = protocol.RunFinished(
        seq=8, time=115.0, steps=3, samples=24, final_loss=0.00016, samples_per_second=8.0, checkpoint="/c"
    )
    shown = page(figures_of(RUN, (started(), step(1, 2), step(2, 3), resumed, step(2, 5), back, step(3, 7), end)))
    assert figures_of(RUN, (started(), step(1, 2))).settings == {"seed": 1}
    assert figures_of(RUN, (started(), step(1, 2), resumed, back)).settings == {"seed": 2}
    assert "<dt>Speed since step 1</dt><dd>8 samples/s</dd>" in shown
    assert "<dd>0.00016</dd>" in shown


def test_steps_that_were_made_again_count_once() -> None:
    figures = figures_of(RUN, HAPPENED)
    assert [each.step for each in figures.steps] == [1, 2, 3, 4, 5, 6]
    assert figures.steps[2].loss == 90.0 / 27
    worker = figures.workers["fast/cpu"]
    assert (worker.steps, worker.samples, worker.seconds["compute"]) == (6, 24, 3.0)
    assert [each.text for each in figures.happened if each.fault] == ["half lost at step 4: <i>silent</i>"]


def test_a_worker_that_took_over_a_slice_took_part_in_one_step_and_not_in_two() -> None:
    once = step(1, 2)
    figures = figures_of(RUN, (started(), dataclasses.replace(once, workers=(*once.workers, once.workers[0]))))
    worker = figures.workers["fast/cpu"]
    assert (worker.steps, worker.samples, worker.seconds["compute"]) == (1, 8, 1.0)


def test_a_table_has_a_row_a_step_with_what_is_known_of_it() -> None:
    figures = figures_of(RUN, HAPPENED)
    rows = list(csv.DictReader(io.StringIO(table.as_csv(figures))))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert (rows[5]["loss"], rows[5]["kl"], rows[4]["val_loss"], rows[0]["val_loss"]) == ("", "0.5", "0.5", "")
    document = json.loads(table.as_json(figures))
    assert [each["step"] for each in document["steps"]] == [1, 2, 3, 4, 5, 6]
    assert (document["job"], document["final_loss"], document["settings"]) == ("digits", 0.25, {"seed": 1})


class _Balanced(HTMLParser):
    """Fails at a tag that is not closed in its order, and at one that would run something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attributes if name.startswith("on")]
        self.links += [value or "" for name, value in attributes if name in ("href", "src", "xlink:href")]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attributes if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


QUOTES = '"\' onload="alert(1)" x="><svg/onload=alert(2)>\u2028</title></style>'


@pytest.mark.parametrize(
    "happened",
    [
        (),
        (started(),),
        HAPPENED[:3],
        HAPPENED,
        (started(), *(step(number, number + 1) for number in range(1, 9))),
        (started(), *(step(number, number + 1, loss=0.0) for number in range(1, 9))),
        (started(), *(step(number, number + 1, loss=-1e30 * number) for number in range(1, 5000))),
        (
            started("<script>alert(1)</script>"),
            protocol.RunFailed(seq=2, time=1.0, step=0, host="<b>", cause="<img src=x>", hint="<a href=y>"),
        ),
        (
            started(QUOTES),
            dataclasses.replace(step(1, 2), scalars={QUOTES: 1.0}),
            protocol.WorkerLost(seq=3, time=3.0, worker=QUOTES, host=QUOTES, device="cpu", step=1, cause=QUOTES),
            protocol.Evaluated(seq=4, time=4.0, step=1, epoch=1.0, metrics={QUOTES: 0.5}, samples=9, seconds=0.1),
        ),
    ],
    ids=["nothing", "no step", "one step", "whole", "constant", "zero", "long", "hostile", "quotes"],
)
def test_a_page_is_whole_loads_nothing_and_draws_within_its_frame(happened: tuple[protocol.Event, ...]) -> None:
    text = page(figures_of("<u>run</u>", happened, "finished"))
    parser = _Balanced()
    parser.feed(text)
    assert parser.open == []
    assert not parser.tags & {"script", "img", "b", "u", "a"}
    assert parser.links == ["data:,"]
    assert len(text) < 300_000
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = ElementTree.fromstring(drawing)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        for element in root.iter():
            placed = [(element.get("x"), element.get("y")), (element.get("cx"), element.get("cy"))]
            placed += [tuple(point.split(",")) for point in element.get("points", "").split()]  # type: ignore[misc]
            for x, y in placed:
                assert x is None or -1 <= float(x) <= width + 1
                assert y is None or -1 <= float(y) <= height + 1


def test_metrics_are_in_prometheus_own_format_and_answered_on_loopback_alone() -> None:
    state = initial("lab", (("fast", "a"), ('odd "name"', "b")))
    sample = protocol.HostSample(time=1.0, cpu_use=0.25, memory_used=None, memory_total=8, ray="running")
    state = apply(state, events.HostSampled(time=5.0, host="fast", sample=sample, round_trip_s=0.001))
    for event in HAPPENED[:6]:
        state = apply(state, events.RunProgressed(run=RUN, event=event))
    text = metrics(state, 6.0)
    for line in text.splitlines():
        assert re.fullmatch(
            r"# (HELP|TYPE) hetero_tui_\w+ .+|hetero_tui_\w+\{(\w+=\"([^\"\\]|\\.)*\",?)*\} \S+", line
        ), line
    assert 'hetero_tui_host_cpu_use_ratio{host="fast"} 0.25\n' in text
    assert "memory_used" not in text, "what is not known is not told"
    assert 'hetero_tui_run_step{run="digits-1"} 4.0\n' in text
    assert 'hetero_tui_run_state{run="digits-1",state="running"} 1.0\n' in text
    assert 'hetero_tui_worker_step_seconds{run="digits-1",worker="half/cpu",part="pull"} 0.125\n' in text
    with served(lambda: state, 0, lambda: 6.0) as address:
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as answer:
            assert answer.read().decode() == text
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "/no")
        port = int(address.rsplit(":", 1)[1].partition("/")[0])
        with pytest.raises(UsageError, match="--port"), served(lambda: state, port):
            pass


def test_metrics_of_what_is_over_or_silent_are_not_told_any_more() -> None:
    state = initial("lab", (("fast", "a"), ("half", "b")))
    sample = protocol.HostSample(time=1.0, cpu_use=0.25, memory_used=None, memory_total=8, ray="running")
    for host, when in (("fast", 5.0), ("half", 60.0)):
        state = apply(state, events.HostSampled(time=when, host=host, sample=sample, round_trip_s=0.001))
    for event in HAPPENED[:6]:
        state = apply(state, events.RunProgressed(run=RUN, event=event))
    assert state.run is not None
    worker = WorkerView(worker="fast/cpu", host="fast", device="cpu", samples=4, fraction=0.5)
    state = dataclasses.replace(state, run=dataclasses.replace(state.run, workers=(worker,)))
    live = ("run_samples_per_second", "run_step_seconds", "worker_up", "worker_samples", "worker_step_seconds")
    told = metrics(state, 61.0)
    assert [name for name in live if f"hetero_tui_{name}{{" not in told] == []
    for name in ("host_cpu_use_ratio", "host_memory_bytes", "host_round_trip_seconds"):
        assert re.findall(rf'hetero_tui_{name}{{host="(\w+)"}}', told) == ["half"], "the other was heard of long ago"
    assert 'host_last_seen_timestamp_seconds{host="fast"} 5.0' in told
    state = apply(state, events.HostLost(time=61.0, host="half", cause="no answer"))
    for event in HAPPENED[6:]:
        state = apply(state, events.RunProgressed(run=RUN, event=event))
    assert state.run is not None
    assert (state.run.state.final, len(state.run.workers), len(state.run.recent)) == (True, 1, 4)
    told = metrics(state, 61.0)
    assert not [name for name in (*live, "host_cpu_use_ratio") if f"hetero_tui_{name}{{" in told]
    assert "hetero_tui_run_loss{" in told


@pytest.fixture
async def session(short_folder: Path) -> AsyncIterator[Session]:
    """On a machine that has a run, and whose cluster is down."""
    async with EmbeddedMachines(short_folder, speeds=(1.0,)) as machines:
        path = machines.write_inventory()
        inventory = load(path)
        transport = open_transport(inventory.hosts[0], inventory)
        await agent.ship(transport, machines.cluster, sys.executable)
        await transport.close()
        place = machines.machines[0].home / agent.folder(machines.cluster) / "runs" / RUN
        write_run(place, "digits", host="fast", cluster=machines.cluster)
        (place / "events.jsonl").write_text("".join(protocol.encode(event) + "\n" for event in HAPPENED))
        sweep = place.parent / SWEEP
        write_run(sweep, "digits", host="fast", cluster=machines.cluster, script=True)
        before = [dataclasses.replace(event, time=event.time / 2) for event in HAPPENED]
        (sweep / "events.jsonl").write_text("".join(protocol.encode(event) + "\n" for event in before))
        async with Session(inventory, path, ledger_folder=short_folder / "laptop", log_errors=False) as session:
            yield session


async def test_a_run_is_written_to_a_file_or_to_stdout_while_the_cluster_is_down(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    output = Output(plain=True)
    assert await commanding.write_out(session, output, None, None, ".html", page) == 0
    assert capsys.readouterr().out == f"{RUN}: {RUN}.html\n"
    assert "digits, finished" in (tmp_path / f"{RUN}.html").read_text()
    assert await commanding.write_out(session, output, RUN, None, None, table.as_csv) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7
    with pytest.raises(UsageError, match="can't be written"):
        await commanding.write_out(session, output, RUN, tmp_path / "no" / "file", None, table.as_csv)
    with pytest.raises(RunError, match=RUN):
        await commanding.write_out(session, output, "digits-2", None, None, table.as_csv)
    with pytest.raises(RunError, match=f"it made no steps itself -> `hetero-tui logs {SWEEP}`"):
        await commanding.write_out(session, output, SWEEP, None, ".html", page)


def test_evaluations_that_were_made_again_count_once() -> None:
    def evaluated(number: int, seq: int) -> protocol.Evaluated:
        return protocol.Evaluated(
            seq=seq, time=1.0, step=number, epoch=None, metrics={"loss": 1.0}, samples=4, seconds=1.0, best=False
        )

    resumed = protocol.RunResumed(
        seq=11, time=3.0, step=3, host="fast", checkpoint="/c", samples=24, iterations=6, notes=(), cause=""
    )
    happened = [started(), step(3, 4), evaluated(3, 5), step(4, 6), evaluated(4, 7), resumed, evaluated(4, 12)]
    assert [each.step for each in figures_of(RUN, happened).evaluations] == [3, 4]


def test_states_are_codes_in_metrics_and_in_json() -> None:
    state = apply(initial("lab", (("nas", "10.0.0.2"),)), events.HostChanged(host="nas", state=HostState.RETURNING))
    assert 'hetero_tui_hosts{state="returning"} 1.0' in metrics(state, 0.0)
    attached = Recording(Path("a.jsonl"), 0.0, state, (), cut_off=False)
    document = recording_document(attached, state)
    assert (document["hosts"][0]["state"], document["cluster"]["state"]) == ("returning", None)
    assert all(" " not in each for kind in (HostState, ClusterState, RunState) for each in kind)
