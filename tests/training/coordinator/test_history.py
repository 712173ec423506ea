"""What other hosts have of a run when it ends, and what is told when that can't be copied any more. No Ray here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_agent.protocol import CLUSTER_MARK, CheckpointSaved, RunStarted
from remote_agent.run_copy import RunCopy
from remote_agent.runs import newest_checkpoint
from remote_agent.training.coordinator import history
from remote_agent.training.coordinator.history import History
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.plan.placement import Node
from remote_agent.training.shared import rpc


class Here:
    """An actor whose calls are carried out at once, in this process."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._made, name)(*arguments)

    def kill(self) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that has begun."""
    folder = tmp_path / "here" / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "slices.jsonl").write_text('{"step":1}\n')
    return folder


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    journal = Journal(folder / "events.jsonl")
    yield journal
    journal.close()


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run on another host of the cluster."""
    monkeypatch.setenv(CLUSTER_MARK, str(tmp_path / "other"))
    monkeypatch.setattr(rpc, "start", lambda kind, options, *arguments: Here(kind(*arguments)))
    monkeypatch.setattr(rpc, "get", lambda value, seconds: value)
    monkeypatch.setattr(rpc, "get_all", lambda values, seconds: values)
    nodes = [Node(host=host, selector=("host", host), cpus=1, gpus=0) for host in ("a", "b")]
    monkeypatch.setattr(history.placement, "living_nodes", lambda: nodes)
    monkeypatch.setattr(history, "HISTORY_EVERY_S", 0.05)
    return tmp_path / "other" / "runs" / "run"


def save(folder: Path, step: int) -> None:
    (folder / "checkpoints" / f"step-{step:08d}.safetensors").write_bytes(b"weights" * 100)
    (folder / "checkpoints" / f"step-{step:08d}.json").write_text(json.dumps({"step": step}))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def begin(journal: Journal) -> None:
    journal.write(RunStarted, run="run", job="job", host="a", iterations=9, batch_size=1, parameters=1, config={})


def test_the_last_checkpoint_is_elsewhere_too_when_the_run_has_ended(
    folder: Path, journal: Journal, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "COPYING", 1e-9)  # the pause after the first one would last for ever
    monkeypatch.setattr(history, "LITTLE_S", 0.0)
    save(folder, 1)
    with History("run", folder, "a", 3, journal):
        begin(journal)
        until(lambda: newest_checkpoint(other) == 1)
        save(folder, 2)
    assert newest_checkpoint(other) == 2
    assert (other / "events.jsonl").read_bytes() == (folder / "events.jsonl").read_bytes()


def test_the_user_is_told_when_nothing_is_copied_any_more(
    folder: Path, journal: Journal, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: RunCopy, name: str, size: int) -> tuple[int, str]:
        raise KeyError("what nobody expects")

    monkeypatch.setattr(RunCopy, "known", fails)
    with History("run", folder, "a", 3, journal):
        begin(journal)
        until(lambda: "notice" in journal.path.read_text())
    assert "this run is not copied to other hosts any more: KeyError: 'what nobody expects'" in journal.path.read_text()


def say_saved(journal: Journal, step: int) -> None:
    """As the loop does, after the step in which a checkpoint became whole."""
    journal.write(CheckpointSaved, step=step, path="p", host="a", size=1, hosts=("a",))


def holders(journal: Journal) -> list[tuple[int, list[str]]]:
    """The step and the hosts of each event about a checkpoint."""
    events = map(json.loads, journal.path.read_text().splitlines())
    return [(event["step"], event["hosts"]) for event in events if event["kind"] == "checkpoint_saved"]


def test_a_checkpoint_that_was_copied_within_the_step_is_told_once_with_all_hosts(
    folder: Path, journal: Journal, other: Path
) -> None:
    with History("run", folder, "a", 3, journal):
        begin(journal)
        save(folder, 1)
        until(lambda: holders(journal) == [(1, ["a", "b"])])
        say_saved(journal, 1)
    assert holders(journal) == [(1, ["a", "b"])]


def test_no_event_names_fewer_hosts_of_a_checkpoint_than_one_before(journal: Journal) -> None:
    def copied(step: int, *hosts: str) -> None:
        journal.write(CheckpointSaved, step=step, path="p", host="a", size=1, hosts=("a", *hosts))

    say_saved(journal, 1)
    copied(1, "b", "c")
    copied(1, "b", "d")
    copied(1, "b", "d")
    say_saved(journal, 2)
    copied(1, "e")
    copied(3, "b")
    say_saved(journal, 3)
    say_saved(journal, 4)
    told = [(step, " ".join(hosts)) for step, hosts in holders(journal)]
    assert told == [(1, "a"), (1, "a b c"), (1, "a b c d"), (2, "a"), (1, "a b c d e"), (3, "a b"), (4, "a")]
