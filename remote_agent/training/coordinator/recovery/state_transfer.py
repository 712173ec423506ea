"""Gives a returning worker the state of another worker, if no server holds the weights.

Between two steps all workers have the same weights, buffers and optimizer state. One of them keeps a copy, and the
returning workers fetch it. The others wait, since the next step would change the weights. This takes as long as sending
a checkpoint over the link: for Adam three times the weights, while a step's reduction sends them about twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery.liveness import answer_of
from remote_agent.training.coordinator.recovery.policy import Died
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import REPAIR


def hand_over(
    step: int, giver: WorkerHandle, newcomers: Sequence[WorkerHandle], heartbeat: Heartbeat
) -> dict[WorkerHandle, Died]:
    """Give ``newcomers`` the state of ``giver`` after ``step``, which it has applied.

    Returns:
        The workers that could not load the state, and why.
    """
    giver.call("snapshot")
    # Inside a value Ray does not fetch them before the call; otherwise pings would wait for that.
    given = (giver.call("weights"), giver.call("snapshot_taken"))
    calls = [(member, member.call_in(REPAIR, "take_over", step, given)) for member in newcomers]
    failed: dict[WorkerHandle, Died] = {}
    for member, call in calls:
        try:
            answer = answer_of(member, call, heartbeat, TRANSFER_S)
        except rpc.NoAnswer as error:
            failed[member] = Died(f"it could not take over the weights: {rpc.describe(error)}")
        else:
            if answer is not None:
                failed[member] = Died(answer.cause)
    return failed
