"""Writes the events of workers that leave a run, or stay."""

from __future__ import annotations

from remote_agent.protocol import Notice, RunResumed, WorkerLost, WorkerStarting
from remote_agent.strategies import spec_of
from remote_agent.training.checkpoint.checkpoint import Checkpoint
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.members import Rejoining, WorkerHandle
from remote_agent.training.coordinator.recovery.policy import Decision, Evidence, Restart, Silent
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.session import Session
from remote_agent.training.errors import TrainingError, WeightsGone


def report_lost(
    session: Session, step: int, member: WorkerHandle | Rejoining, evidence: Evidence, decision: Decision
) -> None:
    """Write that ``member`` left the run, or failed on its way back."""
    session.journal.write(
        WorkerLost,
        worker=member.name,
        host=member.host,
        device=member.device,
        step=step,
        cause=decision.cause,
        retry_s=(decision.after_s or None) if isinstance(decision, Restart) else None,
        silent_s=evidence.seconds if isinstance(evidence, Silent) and not evidence.hangs else None,
    )


def report_starting(session: Session, away: Rejoining) -> None:
    """The process of a worker that takes no part is being started."""
    session.journal.write(WorkerStarting, worker=away.name, host=away.host, device=away.device)


def report_who_stays(session: Session, step: int) -> None:
    """Write which hosts stay if the user has drained every host."""
    membership = session.membership
    if not all(member.host in membership.draining for member in session.members):
        return
    leaving = [] if spec_of(session.config.strategy).split else membership.to_leave()  # no stage can leave alone
    hosts = list(dict.fromkeys(member.host for member in session.members if member not in leaving))
    if hosts:
        text = f"every host was told to leave: the run goes on with {', '.join(hosts)} until others take part"
        session.journal.write(Notice, step=step, host=hosts[0], text=text)


def report_sent_back(
    journal: Journal, request: Request, found: Checkpoint | None, error: TrainingError, *notes: str
) -> None:
    """Write that the run continues from the checkpoint ``found`` (None: from its beginning), because of ``error``."""
    if found is not None and found.missing:
        notes = (*notes, f"the optimizer starts afresh: {found.missing}")
    journal.write(
        RunResumed,
        step=found.step if found is not None else 0,
        host=request.host,
        checkpoint=str(found.path) if found is not None else "",
        samples=found.position if found is not None else 0,
        iterations=request.config.num_iterations,
        cause=error.cause,
        notes=notes,
        went_back=True,
        lost=error.host if isinstance(error, WeightsGone) else "",
    )
