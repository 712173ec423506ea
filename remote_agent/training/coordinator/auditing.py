"""Audits a job: on the head before workers start, and on every worker now and then in the run."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import stat
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from remote_agent import protocol
from remote_agent.strategies import spec_of
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery.liveness import answer_of
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.session import Session, StepReport
from remote_agent.training.coordinator.sources import Source
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.deadlines import EXCHANGE_S
from remote_agent.training.shared import audit, rpc
from remote_agent.training.shared.audit import (
    AGAIN,
    FREE_STEPS,
    HEAD_S,
    IN_RUN,
    PART,
    ROOM,
    SAMPLE_S,
    Audit,
    Finding,
    Sketch,
    compared,
    is_due,
)
from remote_agent.training.shared.messages import AuditTask, Failed
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code import losses
from remote_agent.training.worker.device import backend
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device.audit import Auditor
from remote_agent.training.worker.device.compute import SliceComputer

LOG = logging.getLogger(__name__)


def on_head(
    request: Request, model: nn.Module, source: Source, order: SampleOrder, config: TrainingConfig
) -> Audit | None:
    """Audit the job in a copy of this process, which may crash or hang; returns None where that can't be done.

    Args:
        model: with the run's first weights, on the CPU.
    """
    weights = sum(each.nbytes for each in model.parameters())
    room = backend.CPU.free_bytes(torch.device("cpu")) > ROOM * weights + (1 << 30)
    if not sys.platform.startswith("linux") or spec_of(config.strategy).split or source.size is None or not room:
        return None
    data, indices = source.for_workers(), order.step(order.done + 1)
    context = multiprocessing.get_context("fork")  # it has the job, the data and torch already
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_audit, args=(sending, request, model, data, indices, config), daemon=True)
    process.start()
    sending.close()
    try:
        found = receiving.recv() if receiving.poll(HEAD_S) else None
    except EOFError:
        found = None
    finally:
        process.kill()
        process.join()
        receiving.close()
    return found if isinstance(found, Audit) else None


def _audit(
    sending: Connection, request: Request, model: nn.Module, data: Any, indices: Indices, config: TrainingConfig
) -> None:
    """Audit in a process of its own, whose prints nobody sees; what goes wrong is for the workers to report."""
    _close_sockets()
    silent = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(silent, number)
    with contextlib.suppress(Exception):
        torch.set_num_threads(1)
        losses.install()
        losses.at_step(1)
        cpu = torch.device("cpu")
        dtype, _ = devices.autocast_dtype(cpu, config.precision)
        model.train()
        computer = SliceComputer(model, job.loss_function(request.job.factory), data, cpu, config.seed, None, dtype)
        computer.unit = config.unit
        auditor = Auditor(model, computer)
        began = time.perf_counter()
        auditor.sketch(indices, 0, min(2, len(indices)))
        if time.perf_counter() - began < SAMPLE_S:
            sending.send(auditor.alone(indices, place=request.host))


def _close_sockets() -> None:
    """Close the connections that this fork shares with its parent.

    Data in Ray would be read over the parent's connection, and two processes on one connection crash Ray's node. With
    it closed, reading such data fails here, and the workers audit the job.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                os.close(int(entry.name))


class RunAudits:
    """Audits a run between two steps; :meth:`after` is called after each.

    Args:
        host: of this process, for notices.
    """

    def __init__(self, session: Session, host: str) -> None:
        self._host, self._spent_s, self._begun, self._turn = host, 0.0, time.monotonic(), 0
        self._possible = session.source.size is not None and not spec_of(session.config.strategy).split
        self.plan(session, session.order.done)

    def after(self, session: Session, report: StepReport) -> None:
        """Audit the job if it is due after this step.

        Raises:
            JobError: a difference was found as often as it was looked for.
        """
        if report.step != session.keeping.audit_due:
            if session.keeping.audit_due is None or session.keeping.audit_due < report.step:
                self.plan(session, report.step)
            return
        began = time.monotonic()
        slices = [session.order.take(each.begin, each.end) for each in report.slices]
        taken = np.concatenate([np.empty(0, np.int64), *slices])
        found = seen = None
        for turn in range(1 + AGAIN):
            samples = np.roll(taken, turn)[:IN_RUN]
            found = self._look(session, report.step, samples, noise=turn > 0) if len(samples) else None
            if found is None:
                break
            seen = found
        self._spent_s += time.monotonic() - began
        self.plan(session, report.step)
        if seen is None or not audit.is_refused(seen, session.config):
            return
        error = audit.refusal(seen, session.config.batch_size)
        if found is not None:
            error.cause = f"after step {report.step:,}: {error.cause}"
            raise error
        text = f"an audit differed {turn} of {turn + 1} times, and the run goes on: {error.cause} ({error.hint})"
        session.journal.write(protocol.Notice, step=report.step, host=self._host, text=text)

    def plan(self, session: Session, step: int) -> None:
        """Decide after which step the next audit is."""
        due = session.soonest(step)
        while not is_due(due):
            due += 1
        late = due > FREE_STEPS and self._spent_s > PART * (time.monotonic() - self._begun)
        session.keeping.audit_due = due if self._possible and not late else None

    def _look(self, session: Session, step: int, samples: Indices, *, noise: bool) -> Finding | None:
        """Let one worker audit the samples, and compare all others' numbers with its own; None: they agree."""
        self._turn += 1
        members = list(session.members)
        if not members:
            return None
        first = members[self._turn % len(members)]
        known = session.joining.audit
        compares = known is not None and known.comparable
        evaluating = known is not None and known.evaluating
        task = AuditTask(indices=samples, evaluating=evaluating, noise=noise, in_run=True, step=step)
        asked = members if compares else [first]
        tasks = [(each, dataclasses.replace(task, alone=each is first)) for each in asked]
        calls = [(each, each.actor.call("audit", its)) for each, its in tasks]
        answers: list[tuple[WorkerHandle, Any]] = []
        with Heartbeat() as heartbeat:
            heartbeat.watch([member.actor for member in members])
            for member, call in calls:
                try:
                    answers.append((member, answer_of(member, call, heartbeat, EXCHANGE_S)))
                except rpc.NoAnswer:
                    return None  # the strategy notices that it is lost
        for member, answer in answers:
            if isinstance(answer, Failed):
                raise answer.error(member.host)
        found = next((answer for _, answer in answers if isinstance(answer, Audit)), None)
        if found is None:
            return None
        found = dataclasses.replace(found, place=first.host)
        others = [(each.name, answer) for each, answer in answers if isinstance(answer, Sketch)]
        return found.finding or (compared(found, others) if found.evaluating == evaluating else None)
