"""Where the weights are with the workers alone, one that comes back takes them over from one that was not away.

Between two steps all workers have the same weights, buffers and optimizer state. One of them keeps a copy, which those
that come fetch from it; meanwhile the others wait, since the next step's weights would be different ones. That takes as
long as a checkpoint takes over the link between the two: for Adam three times the weights, where a step's reduction
sends them about twice.
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
    """Let ``newcomers`` be what ``giver`` is after ``step``, which it has applied.

    Returns:
        The workers that could not take it over, and why.
    """
    giver.call("snapshot")
    # Within a value Ray does not fetch them before the call: pings would have to wait for that, too.
    given = (giver.call("weights"), giver.call("snapshot_taken"))
    calls = [(member, member.call_in(REPAIR, "take_over", step, given)) for member in newcomers]
    failed: dict[WorkerHandle, Died] = {}
    for member, call in calls:
        try:
            answer = answer_of(member, call, heartbeat, TRANSFER_S)
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
            failed[member] = Died(f"it could not take over the weights: {rpc.describe(error)}")
        else:
            if answer is not None:
                failed[member] = Died(answer.cause)
    return failed
