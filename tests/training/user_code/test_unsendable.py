"""A message about what can't be sent names the attribute or the variable that is to blame."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from ray import cloudpickle

from remote_agent.training import job
from remote_agent.training.errors import JobError
from remote_agent.training.user_code.unsendable import install, refusal


@pytest.fixture
def opened() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection


class Holder:
    def __init__(self, held: Any) -> None:
        self.name, self.held = "x", held


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda file: Holder(file), "self.held"),
        (lambda file: Holder({"log": [1, file]}), "self.held['log'][1]"),
        (lambda file: Holder(Holder(file)), "self.held.held"),
        (lambda file: Holder(functools.partial(print, file=file)), "self.held"),
        (lambda file: Holder(lambda: file.commit()), "file"),
        (lambda file: Holder(Holder(file).__init__), "self.held.held"),
        (lambda file: type("Job", (), {"__module__": "__main__", "log": file})(), "Job.log"),
        (lambda file: Holder(row for row in [file]), "self.held"),
        (lambda file: Holder(torch.compile(lambda x: x, backend="eager")), "self.held"),
    ],
)
def test_what_can_not_be_sent_is_named(make: Any, path: str, opened: sqlite3.Connection) -> None:
    error = refusal("the job", "self", make(opened), TypeError("cannot pickle"))
    assert error.cause.startswith(f"the job can't be sent to the workers: {path}: TypeError: "), error.cause


def test_a_job_that_holds_a_connection_is_refused_by_its_attribute(opened: sqlite3.Connection) -> None:
    with pytest.raises(JobError, match=r"self\.held: TypeError: cannot pickle") as caught:
        job.dumps(Holder(opened))
    assert "where it is used first" in caught.value.hint


class Around:
    """Stands for what it holds."""

    __slots__ = ("__dict__", "base", "unset")

    def __init__(self, base: Any) -> None:
        self.base, self.me = base, self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)


class Config(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class Word(str):
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def test_objects_with_a_getattr_of_the_users_are_sent_without_a_call_of_it() -> None:
    install()
    around, config, word = cloudpickle.loads(cloudpickle.dumps((Around([1]), Config(rate=0.1), Word("x"))))
    assert around.base == [1]
    assert around.me is around
    assert around.index(1) == 0
    assert not hasattr(around, "unset")
    assert (config.rate, dict(config), word) == (0.1, {"rate": 0.1}, "x")
    assert [type(each) for each in (around, config, word)] == [Around, Config, Word]
