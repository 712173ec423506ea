"""What commands print of a run that they follow."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from hetero_tui import commanding
from hetero_tui.cli import application
from hetero_tui.errors import HostKeyUnknown
from hetero_tui.events import RunChanged, RunProgressed
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fold import apply
from hetero_tui.inventory import Host
from hetero_tui.launcher import FAILED, INTERRUPTED
from hetero_tui.narration import Output
from hetero_tui.runs.serving import Service
from hetero_tui.session import Session
from hetero_tui.state import initial
from hetero_tui.text import HostText
from remote_agent import protocol
from remote_agent.protocol import RunFailed, Serving
from remote_agent.states import RunState
from tests.specs import run_step


class Serves:
    """A session that serves a model of language, or one whose inputs only its job knows."""

    def __init__(self, examples: dict[str, str]) -> None:
        about = Serving(port=1, step=3, device="cpu", paths=("/predict", "/generate"), examples=examples)
        self._service = Service("text-1", "nas", about, "http://127.0.0.1:5", "secret", self._lines())

    async def _lines(self) -> AsyncIterator[HostText]:
        for line in ():
            yield line

    @asynccontextmanager
    async def serve(self, *_: object) -> AsyncIterator[Service]:
        yield self._service


async def test_requests_that_are_shown_for_a_served_model_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    body = """{"prompt": "it's"}"""
    session = cast("Session", Serves({"/generate": body}))
    assert await commanding.serve(session, Output(), None, "", 0, "", protocol.Choice.NEWEST) == FAILED
    said = capsys.readouterr()
    _, predict, generate = said.out.splitlines()
    begin = ["curl", "-H", "Authorization: Bearer secret"]
    assert shlex.split(generate) == [*begin, "http://127.0.0.1:5/generate", "-d", body]
    assert shlex.split(predict) == [*begin, "http://127.0.0.1:5/predict", "-d", "@inputs.json"]
    assert "inputs.json: " in said.err, "what the file is to hold"


class BehindAGate:
    """A session with two hosts behind one jump host, of which no key was ever seen."""

    def __init__(self) -> None:
        self.known = set[str]()

    async def look(self) -> None:
        pass

    @property
    def probed(self) -> list[Any]:
        return [SimpleNamespace(host=host, error=self.error(host)) for host in ("nas", "pi")]

    def error(self, host: str) -> HostKeyUnknown | None:
        server = next((each for each in ("gate", host) if each not in self.known), None)
        return (
            None if server is None else HostKeyUnknown(host, "", step="", fingerprint=f"of-{server}", endpoint=server)
        )

    def accept_host_key(self, host: str) -> None:
        error = self.error(host)
        self.known |= {error.endpoint} if error is not None and host == "nas" else set()


async def test_the_question_about_a_key_names_the_server_that_shows_it_and_each_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions = list[str]()

    def yes(question: str) -> bool:
        questions.append(question)
        return True

    monkeypatch.setattr(commanding, "asks", yes)
    await commanding.probe(cast("Session", BehindAGate()), Output())
    assert questions == [
        "nas: gate was never seen; its key is of-gate. Trust it?",
        "nas: nas was never seen; its key is of-nas. Trust it?",
        "pi: pi was never seen; its key is of-pi. Trust it?",
    ]


class Resumed:
    """A session whose run was resumed after its event number 4, its failure, and is stopped."""

    def __init__(self) -> None:
        self.state = apply(
            initial("lab", ()),
            RunChanged(time=9.0, run="digits-1", job="digits", state=RunState.STARTING, history=4),
        )

    async def events_of(self, _: str | None) -> AsyncIterator[Any]:
        happened = (
            protocol.RunStarted(
                seq=1, time=1.0, run="digits-1", job="digits", host="nas", iterations=9, batch_size=8, parameters=1
            ),
            run_step(1, seq=2),
            run_step(2, seq=3),
            protocol.RunResumed(seq=4, time=900.0, step=2, host="nas", checkpoint="/c"),
            run_step(3, seq=5, time=909.0),
            RunFailed(seq=6, time=910.0, step=3, host="nas", cause="no"),
        )
        for event in happened:
            self.state = apply(self.state, RunProgressed(run="digits-1", event=event))
            yield HostText(protocol.encode(event)), event


@pytest.mark.parametrize("as_json", [False, True])
async def test_of_a_resumed_run_people_read_what_is_new_and_scripts_all(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await commanding.follow(cast("Session", Resumed()), Output(as_json, True), "digits-1") == FAILED
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert len(lines) == 6
    else:
        assert [line.partition("  ")[0] for line in lines] == ["resumed after step 2", "step 3/9"]


@pytest.mark.parametrize("command", ["down", "up", "bootstrap", "stop", "status", "plan", "train", "resume"])
def test_a_command_that_is_interrupted_says_which_one_finishes_what_it_left_half_done(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()

    def interrupted_at_once(*_: object, interrupted: str) -> int:
        told.append(interrupted)
        return INTERRUPTED

    monkeypatch.setattr(commanding, "run_to_end", interrupted_at_once)
    words = [command, "digits"] if command in ("plan", "train") else [command]
    assert CliRunner().invoke(application, words).exit_code == INTERRUPTED
    (said,) = told
    assert f"`hetero-tui {command}`" in said
    assert ("goes on" in said) is (command == "status"), "what these end, or start, is half-done"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "digits", "--from-laptop"), "--from-laptop goes with --bootstrap: without it nothing is installed"),
        (("check", "--from-laptop"), "--from-laptop goes with --fix"),
        (
            ("up", "--bootstrap", "--torch-index", "whl", "--python-mirror", "http://"),
            "--torch-index whl: is no URL, such as https://mirror.example/simple; --python-mirror http://: is no URL",
        ),
        (("add", "me@nas", "--identity-file", "/no/such"), "add: --identity-file /no/such: there is no such file"),
        (
            ("plan", "digit", "--allow", "x", "--set", "seed=z", "--fleet", "f", "--measure"),
            "--measure looks at the machines that are there, not at those of --fleet\n  no job",
        ),
        (("plan", "digits", "--race"), "plan --race was removed"),
    ],
)
def test_options_that_can_not_be_meant_are_refused_before_anything_is_contacted(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("hosts: {x: {address: 127.0.0.1, port: 1}}\n")
    done = CliRunner().invoke(application, ["-i", str(inventory), *words])
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert said in done.stderr
    assert "refused the connection" not in done.stderr


@pytest.mark.parametrize("command", ["runs", "status"])
def test_hosts_that_were_taken_out_of_the_inventory_are_named_while_something_may_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("cluster: {name: lab}\nhosts:\n")
    Ledger("lab").intend(Host(name="gone", connection="local"), "node")
    done = CliRunner().invoke(application, ["-i", str(inventory), command])
    said = "hetero-tui: something of ours may still be on gone (this computer), which the inventory no longer has"
    assert f"{said} -> `hetero-tui down` takes it away" in done.stderr, done.output


def test_a_machine_is_taken_out_of_the_inventory_at_a_terminal_only_once_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "inventory.yaml"
    asked, answer = list[str](), False

    def asks(question: str) -> bool:
        asked.append(question)
        return answer

    def remove(*words: str) -> int:
        path.write_text("hosts:\n  laptop: {connection: local}\n  nas: {address: nas.local}\n")
        return CliRunner().invoke(application, ["--inventory", str(path), "remove", "nas", *words]).exit_code

    monkeypatch.setattr(commanding, "can_ask", lambda: True)
    monkeypatch.setattr(commanding, "asks", asks)
    assert remove() == 2
    assert "nas" in path.read_text()
    assert asked == [f"Take nas out of {path}?"]
    answer = True
    assert remove() == 0
    assert "nas" not in path.read_text()
    answer = False
    assert remove("--yes") == 0
    monkeypatch.setattr(commanding, "can_ask", lambda: False)
    assert remove() == 0, "a script says what it wants"
    assert len(asked) == 2
