"""States and commands on the wire between a laptop and its machines; the app's first picture needs no more of it."""

from enum import StrEnum


class RayState(StrEnum):
    """How Ray stands on a host."""

    NONE = "none"  # never started
    STARTING = "starting"  # its processes are there, and it has not joined the cluster yet
    RUNNING = "running"
    RESTARTING = "restarting"  # it ended, and the machine's supervisor is bringing it back
    STOPPED = "stopped"  # it has ended
    FAILED = "failed"  # it could not be started


class RunState(StrEnum):
    """Where a training run stands."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"  # its coordinator is gone without a last event

    @property
    def final(self) -> bool:
        """Whether nothing more will happen."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.LOST)


def stands_at(state: RunState, step: int) -> str:
    """Where a run is, or was as it ended: ``at step 155``, ``after step 11``, ``before its first step``.

    ``step``: the last one that was made. That of an event of a failure is the one that was under way, which is another.
    """
    if not step:
        return "before its first step"
    return f"{'after' if state in (RunState.FAILED, RunState.LOST) else 'at'} step {step:,}"


class ControlCommand(StrEnum):
    """What a user wants of a run while it is on."""

    DRAIN = "drain"  # the host's workers leave after their step, and nothing is lost
    # A worker is started on each device, once its host has a living node; one that pauses tries at once.
    ADD = "add"
