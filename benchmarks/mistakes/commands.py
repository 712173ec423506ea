"""Mistakes on the command line and in a job's file."""

from __future__ import annotations

from dataclasses import dataclass

JOB = """
import torch
from torch import nn


class Job:
    def create_model(self):
        return nn.Linear(4, 2)

    def create_data(self):
        return torch.zeros(64, 4), torch.zeros(64, dtype=torch.long)
"""


@dataclass(frozen=True, kw_only=True)
class Command:
    """``hetero-tui train ARGUMENTS`` with ``file`` as my_job.py; ``words`` have to be shown."""

    name: str
    did: str
    arguments: tuple[str, ...] = ("my_job.py:Job",)
    file: str = JOB
    words: tuple[str, ...] = ()
    code: int = 2


COMMANDS = (
    Command(
        name="unknown-setting",
        did="`--set learning_rte=0.1`",
        arguments=("my_job.py:Job", "--set", "learning_rte=0.1"),
        words=("learning_rte", "learning_rate"),
    ),
    Command(
        name="setting-of-a-kind",
        did="`--set batch_size=many`",
        arguments=("my_job.py:Job", "--set", "batch_size=many"),
        words=("batch_size", "many"),
    ),
    Command(
        name="setting-out-of-range",
        did="`--set num_iterations=2.5`",
        arguments=("my_job.py:Job", "--set", "num_iterations=2.5"),
        words=("num_iterations", "2.5"),
    ),
    Command(
        name="setting-without-value",
        did="`--set seed`",
        arguments=("my_job.py:Job", "--set", "seed"),
        words=("seed",),
    ),
    Command(name="no-such-file", did="`train other.py:Job`", arguments=("other.py:Job",), words=("other.py",)),
    Command(name="no-such-name", did="`train my_job.py:Jab`", arguments=("my_job.py:Jab",), words=("Jab", "Job")),
    Command(name="no-such-ready-job", did="`train digit`", arguments=("digit",), words=("digit", "digits")),
    Command(
        name="syntax-error",
        did="a job's file that does not parse",
        file=JOB.replace("class Job:", "class Job"),
        words=("my_job.py", "6"),
    ),
    Command(
        name="no-create-data",
        did="a job without `create_data`",
        file=JOB.replace("create_data", "make_data"),
        words=("create_data",),
    ),
)
