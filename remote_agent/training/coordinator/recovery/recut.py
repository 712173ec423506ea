"""Returns a pipeline to its newest checkpoint when a stage was lost, or another cut of the model is wanted.

The remaining workers keep their processes and what they measured; the strategy starts again with the returned session,
and cuts the model again over them. Without a checkpoint, the run returns to its beginning.
"""

from __future__ import annotations

import dataclasses

from torch import nn

from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import TrainingState
from remote_agent.training.coordinator import resuming
from remote_agent.training.coordinator.recovery import restart
from remote_agent.training.coordinator.recovery.backups import is_sent_back
from remote_agent.training.coordinator.recovery.reports import report_sent_back
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.session import KeepSchedule, Session
from remote_agent.training.errors import StageLost


def go_back(request: Request, session: Session, model: nn.Module, lost: StageLost) -> Session:
    """Return the coordinator's part to the newest checkpoint; no checkpoint may be in progress.

    Args:
        session: the run's, whose strategy has ended with ``lost``.
        model: the coordinator's, whose tensors the session's first weights are.

    Returns:
        The session to continue with.

    Raises:
        StageLost: ``lost``, if all has to be measured again, or data that was read is gone.
        JobError: the checkpoint can't be read.
    """
    can_read = session.source.size is not None
    if lost.unmeasured if can_read else not is_sent_back(session):
        raise lost  # the run starts again as a whole
    found = resuming.find(restart.from_newest(request).resume, request.folder)
    if found is not None:
        resuming.into_model(found, model)
        state = resuming.usable(session.config, found)
        order = session.order.going_on(found.step, found.position)
    else:
        fresh = job.create_model(request.job.factory, session.config.seed, session.config)
        model.load_state_dict(fresh.state_dict())
        state, order = TrainingState(), session.order.going_on(0, 0)
    report_sent_back(session.journal, request, found, lost)
    return dataclasses.replace(session, order=order, first_state=state, keeping=KeepSchedule())
