"""A request gets an answer whatever the job's code gives or raises, and a lost device ends the server."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from remote_agent.serve import Server
from remote_agent.serving import Served, _plain, chosen_device
from remote_agent.training.errors import JobError
from remote_agent.training.worker.device import backend


class Ending(Server):
    """Notes its end instead of ending this process."""

    ended = ""

    def end(self, cause: str) -> None:
        self.ended = cause


class Answers:
    """What is served: what ``predict`` gives or raises."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def predict(self, inputs: Any) -> Any:
        if isinstance(self._given, Exception):
            raise self._given
        return _plain(self._given)

    def generate(self, asked: Any) -> Iterator[str]:
        yield "a"
        raise self._given


@contextmanager
def serving(given: Any) -> Iterator[Ending]:
    server = Ending(0, "token", cast("Served", Answers(given)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server: Server, path: str = "/predict", body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request("POST", path, json.dumps(body or {"inputs": [1]}), {"Authorization": "Bearer token"})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (np.arange(3), 200, "[0, 1, 2]"),
        ({"a": [np.float32(0.5)]}, 200, '{"a": [0.5]}'),
        ({1, 2}, 500, "no JSON"),
        (float("nan"), 500, "not finite"),
        (IndexError("planted"), 500, "IndexError: planted"),
        (JobError("planted"), 500, "planted"),
    ],
    ids=["array", "scalar", "set", "nan", "error of python", "error of the job"],
)
def test_whatever_predict_gives_is_answered(given: Any, status: int, said: str) -> None:
    with serving(given) as server:
        found = ask(server)
    assert found[0] == status
    assert said in found[1]
    assert server.ended == ""


class Gpus(backend.Backend):
    def names(self) -> list[str]:
        return ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("wanted", "chosen"), [("", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")]
)
def test_a_device_is_chosen_by_its_name_or_kind(monkeypatch: pytest.MonkeyPatch, wanted: str, chosen: str) -> None:
    monkeypatch.setattr(backend, "BACKENDS", {"cuda": Gpus(), "cpu": backend.CPU})
    assert chosen_device(wanted) == chosen


def _caused(kind: type[Exception], cause: Exception) -> Exception:
    error = kind("of its cause")
    error.__cause__ = cause
    return error


LOST = RuntimeError("CUDA error: device-side assert triggered")


CAUSED = [LOST, _caused(ValueError, LOST), _caused(JobError, LOST)]


@pytest.mark.parametrize("error", CAUSED, ids=["itself", "caused", "job"])
def test_a_lost_device_ends_the_server_after_its_answer(error: Exception) -> None:
    with serving(error) as server:
        assert ask(server)[0] in (400, 500)
        assert ask(server, "/generate", {"prompt": "x", "stream": True})[0] == 200
        assert server.ended


def test_an_error_amid_a_stream_is_its_last_event() -> None:
    with serving(IndexError("planted")) as server:
        assert "IndexError: planted" in ask(server, "/generate", {"prompt": "x", "stream": True})[1]
