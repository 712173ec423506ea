"""Imports a job on the head and prints what it is, before anything of a run is started.

::

    python -m remote_agent.describe FOLDER  < JobQuestion, one line, and the archive    -> JobDescription, one JSON line

``FOLDER`` is the cluster's. What the file prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from remote_agent import protocol
from remote_agent.host.processes import absolute_path
from remote_agent.protocol import JobDescription, JobQuestion, JobSetting


def describe(folder: Path, question: JobQuestion) -> JobDescription:
    """Import the job from ``folder``, as a run does, and check it with each trial's settings."""
    from remote_agent import job_settings, kinds
    from remote_agent.settings import names, with_whole_names
    from remote_agent.training import job
    from remote_agent.training.errors import ConfigError, JobError

    try:
        loaded = job.load(question.job, folder)
        settings = getattr(loaded.factory, "settings", None)
        mistakes: dict[str, None] = {}
        for trial in question.trials or ({},):
            try:
                job.check(loaded, job.configured(loaded, {**question.settings, **trial}))
            except ConfigError as error:
                mistakes |= dict.fromkeys(error.mistakes)
    except JobError as error:
        return JobDescription(failure=error.cause, hint=error.hint, detail=error.detail)
    own = job_settings.of_class(type(settings)) if settings is not None else ()
    config = loaded.config
    return JobDescription(
        job=loaded.name.partition(":")[2],
        settings=with_whole_names(question.settings, [each.name for each in own]),
        own=tuple(
            JobSetting(
                name=each.name,
                kind=kinds.words(each.hint),
                default=job_settings.written(getattr(settings, each.name)),
                help=each.help,
            )
            for each in own
        ),
        config={name: job_settings.written(getattr(config, name)) for name in names() if config and config.gives(name)},
        mistakes=tuple(mistakes),
    )


def main(arguments: list[str]) -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    question = protocol.decode(JobQuestion, sys.stdin.buffer.readline().decode())
    archive = sys.stdin.buffer.read()
    plans = absolute_path(arguments[0]) / protocol.PLANS
    plans.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=plans) as folder, contextlib.redirect_stdout(sys.stderr):
        if archive:
            (Path(folder) / protocol.JOB_ARCHIVE).write_bytes(archive)
        found = describe(Path(folder), question)
        os.chdir(plans)
    print(protocol.encode(found), flush=True)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # whatever threads the job's file has started
