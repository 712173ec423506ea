"""Measures devices and links for a plan: ``python -m remote_agent.training.coordinator.measuring DIR``.

It reads ``run.json`` from the folder as a coordinator does, stores the measurements in the file named there, prints
them as one line of JSON, and ends. Lines before it report the progress. Exit code 0: done; 1: it failed, and standard
error says why; 2: called wrongly.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path

from remote_agent import protocol
from remote_agent.planning.survey import Survey
from remote_agent.protocol import ProtocolError, RunSpec, decode
from remote_agent.strategies import AUTO, spec_of
from remote_agent.training import job
from remote_agent.training.coordinator import cluster, setup, trial
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.overseer import leave
from remote_agent.training.coordinator.plan import profiles, surveying
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.recovery import restart
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.session import Session
from remote_agent.training.coordinator.strategies import pipeline_plan
from remote_agent.training.deadlines import SERVER_S
from remote_agent.training.errors import DeviceUnfit, JobError, TrainingError
from remote_agent.training.shared import rpc, without_compiler


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
    without_compiler.install()
    loaded = job.load(spec.job, folder)
    config = job.configured(loaded, spec.config)
    cluster.connect(spec.ray_address, spec.node_address)
    request = Request.of(spec, loaded, config, folder)
    try:
        with contextlib.closing(Journal(folder / "events.jsonl")) as journal, Crashes(journal) as crashes:
            return _measured(request, journal, crashes)
    finally:
        cluster.disconnect()


def _measured(request: Request, journal: Journal, crashes: Crashes) -> Survey:
    """Measurements for a plan; a model that is too large for a device is handled as in a run."""
    while True:
        try:
            found = _tried(request, journal, crashes)
        except DeviceUnfit as error:
            fewer = restart.without_unfit(request, error)
            request = fewer or restart.cut(request, error)
            where = f"{error.host}: " if error.host else ""  # of several hosts the cause names each
            _tell(request.notes[-1] if fewer is None else f"left out: {where}{error.cause}")
        else:
            profiles.keep(request.profile, found)
            return found


def _tried(request: Request, journal: Journal, crashes: Crashes) -> Survey:
    config = request.config
    if config.strategy == AUTO:
        request = dataclasses.replace(request, config=dataclasses.replace(config, strategy="sync"))
    with setup.ready(request, journal, crashes, plans=True, tell=_tell) as known:
        settled, found = known.planned.config, known.planned.whole
        assert found is not None, "the fleet is known"
        split = spec_of(settled.strategy).split
        if config.strategy == AUTO:
            surveying.refuse_too_large(config, found)
        if split or trial.to_try(settled, found) is not None:
            with setup.opened(known, journal, lambda: False, crashes) as (session, _):
                found = _with_blocks(session) if split else trial.surveyed(session, _tell)
    return found


def _with_blocks(session: Session) -> Survey:
    survey, members = session.survey, list(session.members)
    assert survey is not None, "the fleet is known"
    try:
        costs = rpc.get_all([member.call("costs") for member in members], SERVER_S)
    except rpc.NoAnswer as error:
        cause = f"a worker was lost after it was measured: {rpc.describe(error)}"
        raise TrainingError(cause, hint="look at the hosts, then plan again") from error
    return pipeline_plan.with_blocks(survey, session.config, members, costs)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
