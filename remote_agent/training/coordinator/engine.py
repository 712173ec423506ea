"""Carries out one run, from a job and devices to a trained model: place, measure, plan, train, evaluate, save.

The coordinator (``main.py``) and the script API (``trainer.py``) use the same engine; both connect to Ray first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from remote_agent import protocol
from remote_agent.strategies import spec_of
from remote_agent.training import job
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.loop import Outcome, Progress, train
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.recovery import restart
from remote_agent.training.coordinator.recovery.reports import report_sent_back
from remote_agent.training.coordinator.recovery.takeover import takeover
from remote_agent.training.coordinator.reporting import loggers
from remote_agent.training.coordinator.reporting.callbacks import Callbacks
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.setup import session_of
from remote_agent.training.deadlines import JOINING_S, LOOK_S
from remote_agent.training.errors import (
    DeviceUnfit,
    JobError,
    LostAtStart,
    ServerGone,
    StateChanged,
    TrainingError,
    UsageChanged,
    WeightsGone,
    WorkersGone,
)
from remote_agent.training.shared import rpc


def run(
    request: Request,
    journal: Journal,
    stopping: Callable[[], bool] = lambda: False,
    callbacks: Sequence[Any] = (),
) -> Outcome:
    """Carry out a run and write all its events, including the final one.

    Args:
        stopping: returns True once the user wants the run to end early.
        callbacks: called with the events, in addition to the job's own callbacks.

    Raises:
        TrainingError: the run can't go on; ``run_failed`` is already written.
    """
    progress = Progress()
    with contextlib.ExitStack() as told:
        try:
            own = job.guard("create_callbacks", request.job.create_callbacks) if request.job.create_callbacks else ()
            asked = loggers.wanted(request.config.log_to)
            told.enter_context(Callbacks([*own, *asked, *callbacks], journal, request.folder, request.host))
            with Crashes(journal) as crashes:
                try:
                    return _started(request, journal, stopping, progress, crashes)
                except WorkersGone as error:
                    raise crashes.explained(error) from error
        except TrainingError as error:
            fail(journal, error, request.host, progress.step)
            raise
        except rpc.Unexpected as error:
            cause = f"Ray failed: {rpc.describe(error)}"
            known = TrainingError(cause, hint="check the cluster, then start the run again")
            fail(journal, known, request.host, progress.step)
            raise known from error


def fail(journal: Journal, error: TrainingError, host: str, step: int) -> None:
    """Write the events of a run that failed at ``step``; ``host`` is used if the error names no host."""
    where = error.host or host
    error.step = error.step or step
    # If the journal can't be written, that is the failure; the caller reports it on stderr.
    with contextlib.suppress(TrainingError):
        if isinstance(error, ServerGone):
            journal.write(protocol.ServerLost, host=where, step=step, cause=error.cause)
        journal.write(
            protocol.RunFailed, step=step, host=where, cause=error.cause, hint=error.hint, detail=error.detail
        )


def _started(
    request: Request, journal: Journal, stopping: Callable[[], bool], progress: Progress, crashes: Crashes
) -> Outcome:
    crashes.workers = len(request.devices)
    starts, again = _Starts(journal, crashes), False
    with contextlib.ExitStack() as stack:
        taken, request = takeover.attempt(stack, request, journal, stopping, crashes)
        if taken is not None:
            session, model = taken
            try:
                return train(request, model, session, progress)
            except WeightsGone as error:
                request, again = starts.after(error, request, progress), True
        elif request.follows and request.resume is None:
            # What the user has wanted of the run so far is carried out once more.
            request, again = dataclasses.replace(restart.from_newest(request), commands=request.commands or 0), True
            starts.report_sent_back(request, TrainingError("it lost its coordinator"))
    if request.resume is not None or request.follows:
        # A host that is away must not prevent a resume; if all are away, the error names them.
        request = restart.without_lost(request, (), _joined(request, journal.left)) or request
    while True:
        try:
            with session_of(request, journal, stopping, crashes, again=again) as (session, model):
                return train(request, model, session, progress)
        except (UsageChanged, StateChanged, WeightsGone, LostAtStart, DeviceUnfit, *rpc.Lost) as error:
            request = starts.after(error, request, progress)
            # The first model is made before the event that the run has started.
            again = again or not isinstance(error, DeviceUnfit) or journal.begun


class _Starts:
    """Decides how a run starts over after an error; ``crashes``: the record of the user's calls that killed workers."""

    def __init__(self, journal: Journal, crashes: Crashes) -> None:
        self._journal, self._crashes = journal, crashes
        self._lost: list[str] = []  # for each start that failed, the host that lost an actor
        self._furthest = 0  # the step at which all weights were lost
        self._lost_in_a_row = 0  # stages lost in a row before that step was reached again

    def after(self, error: Exception, request: Request, progress: Progress) -> Request:
        """The request with which the run starts over; raises ``error`` or its cause if it does not start over."""
        if isinstance(error, UsageChanged):
            onward = restart.unstreamed(request)
            if onward is None:
                raise error
            note = "gradients are reduced among the workers from now on: a parameter is used in some steps only"
            self.report_sent_back(onward, error, note)
        elif isinstance(error, StateChanged):
            onward = restart.moving(request, error)
            self.report_sent_back(onward, error, "all that is not trained travels with the weights from now on")
        elif isinstance(error, WeightsGone):
            blamed = self._crashes.explained(error)
            if error.fleet:
                request = dataclasses.replace(request, devices=error.fleet, away=(), commands=error.commands)
            onward = restart.without_lost(restart.from_newest(request), (), _living())
            self._lost_in_a_row = self._lost_in_a_row + 1 if progress.step <= self._furthest else 0
            at_most = restart.MAX_STAGES_IN_A_ROW if spec_of(request.config.strategy).split else 0
            if self._lost_in_a_row > at_most or onward is None or isinstance(blamed, JobError):
                raise blamed from error
            self._furthest = max(self._furthest, progress.step)
            self.report_sent_back(onward, error)
        elif isinstance(error, DeviceUnfit):
            if progress.step:
                raise error
            onward = restart.without_unfit(request, error) or restart.cut(request, error)
            if self._journal.begun:
                self.report_sent_back(onward, error)
        else:
            if progress.step:
                raise error
            return self._without_lost(error, request)
        progress.step = 0
        return onward

    def _without_lost(self, error: Exception, request: Request) -> Request:
        """Start over without an actor that was lost before the first step."""
        known = error if isinstance(error, TrainingError) else None
        blamed = self._crashes.explained(known) if known is not None else error
        if isinstance(blamed, JobError):
            raise blamed from error
        self._lost.append(known.host if known is not None else "")
        onward = restart.without_lost(request, self._lost, _living())
        if onward is None:
            raise blamed from error
        cause = known.cause if known is not None else rpc.describe(error)
        missed = restart.missed(request, onward, self._lost[-1])
        for name, spec in zip(placement.names(request.devices), request.devices, strict=True):
            if spec in missed:
                self._journal.write(
                    protocol.WorkerLost, worker=name, host=spec.host, device=spec.device, step=0, cause=cause
                )
        return onward

    def report_sent_back(self, request: Request, error: TrainingError, *notes: str) -> None:
        """Write that the run continues from its newest checkpoint, or from the beginning."""
        found = checkpoint.find(request.resume) if request.resume is not None else None
        report_sent_back(self._journal, request, found, error, *notes)


def _joined(request: Request, left: str) -> frozenset[str]:
    """The hosts with a living node; where the head ``left`` was lost, all others join now, and are waited for."""
    ends = time.monotonic() + (JOINING_S if left else 0.0)
    while not {spec.host for spec in request.devices} - {left} <= (living := _living()) and time.monotonic() < ends:
        time.sleep(LOOK_S)
    return living


def _living() -> frozenset[str]:
    return frozenset(node.host for node in placement.living_nodes())
