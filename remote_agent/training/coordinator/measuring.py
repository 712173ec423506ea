"""Measures devices and links for a plan: ``python -m remote_agent.training.coordinator.measuring DIR``.

It reads ``run.json`` from the folder as a coordinator does, stores the measurements in the file named there, prints
them as one line of JSON, and ends. Lines before it report the progress. Exit code 0: done; 1: it failed, and standard
error says why; 2: called wrongly.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from pathlib import Path

from remote_agent import protocol
from remote_agent.planning.survey import Survey
from remote_agent.protocol import ProtocolError, RunSpec, decode
from remote_agent.strategies import AUTO
from remote_agent.training import job
from remote_agent.training.coordinator import cluster, setup, trial
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.plan import profiles
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.request import Request
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.user_code import inert


def main(arguments: list[str]) -> int:
    """Measure for the order in the folder that the only argument names; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m remote_agent.training.coordinator.measuring DIR", file=sys.stderr)
        return 2
    try:
        print(protocol.encode(_survey(Path(arguments[0]).resolve())), flush=True)
    except TrainingError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    return 0


def _tell(text: str) -> None:
    print(f"{protocol.MEASURING}{text}", flush=True)


def _survey(folder: Path) -> Survey:
    try:
        spec = decode(RunSpec, (folder / "run.json").read_text())
    except (OSError, ProtocolError) as error:
        raise JobError(f"can't read run.json: {error}", hint="plan again") from error
    os.environ["RAY_ADDRESS"] = spec.ray_address
    loaded = job.load(spec.job, folder)
    inert.from_now_on()
    config = job.configured(loaded, spec.config)
    cluster.connect(spec.ray_address, spec.node_address)
    request = Request.of(spec, loaded, config, folder)
    try:
        with contextlib.closing(Journal(folder / "events.jsonl")) as journal, Crashes(journal) as crashes:
            return _measured(request, journal, crashes)
    finally:
        cluster.disconnect()


def _measured(request: Request, journal: Journal, crashes: Crashes) -> Survey:
    if request.config.strategy == AUTO:
        request = dataclasses.replace(request, config=dataclasses.replace(request.config, strategy="sync"))
    with setup.session_of(request, journal, lambda: False, crashes, plans=True, tell=_tell) as (session, _):
        found = trial.surveyed(session, _tell)
        profiles.keep(request.profile, found)
        return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
