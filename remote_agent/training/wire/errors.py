"""What can go wrong in the exchange, as a branch of :class:`~remote_agent.training.errors.TrainingError`.

::

    ExchangeError
    ├── ConnectionRefused    the other side has another token, another protocol or another layout
    ├── MalformedFrame       bytes that are not what the protocol allows: the connection is closed
    ├── ConnectionBroken     the network or the other process went away; a client connects again by itself
    ├── ShardUnreachable     a client could not connect again in time
    ├── FellBehind           a worker missed weights: it has to fetch them whole
    ├── StepIncomplete       the step was not whole by its deadline (a slice is missing)
    └── NothingCounts        all samples of the step weigh nothing: there is no mean gradient
"""

from __future__ import annotations

from remote_agent.training.errors import TrainingError


class ExchangeError(TrainingError):
    """Gradients or weights can't be exchanged."""


class ConnectionRefused(ExchangeError):
    """One side does not accept the other; trying again would not help."""


class MalformedFrame(ExchangeError):
    """What arrived is not a frame, or not one that may come now."""


class ConnectionBroken(ExchangeError):
    """The connection ended, or nothing came through it in time."""


class ShardUnreachable(ExchangeError):
    """A shard did not come back within the deadline."""


class FellBehind(ExchangeError):
    """The shard no longer holds the weights that this worker needs next."""


class StepIncomplete(ExchangeError):
    """Not all chunks of the step were there by the deadline."""


class NothingCounts(ExchangeError):
    """The samples of a step weigh nothing together, so that it has no mean gradient."""

    @classmethod
    def of(cls, step: int) -> NothingCounts:
        """The error for ``step``."""
        return cls(
            f"no sample of step {step} counts: their weights are 0 together",
            hint="look at the labels: a batch whose labels are all ignored has no loss; use a larger batch_size",
        )
