"""Defines the errors of the exchange, as a branch of :class:`~remote_agent.training.errors.TrainingError`.

::

    ExchangeError
    ├── ConnectionRefused    the other side has another token, another protocol or another layout
    ├── MalformedFrame       bytes that the protocol does not allow; the connection is closed
    ├── ConnectionBroken     the network or the other process is gone; a client reconnects by itself
    ├── ShardUnreachable     a client could not reconnect in time
    ├── FellBehind           a worker missed weights, and has to fetch them whole
    ├── StepIncomplete       the step was not complete by its deadline (a slice is missing)
    └── NothingCounts        the samples of the step have no weight, so there is no mean gradient
"""

from __future__ import annotations

from remote_agent.training.errors import TrainingError


class ExchangeError(TrainingError):
    """Gradients or weights can't be exchanged."""


class ConnectionRefused(ExchangeError):
    """One side does not accept the other, and a retry would not help."""


class MalformedFrame(ExchangeError):
    """The received bytes are not a frame, or not one that is allowed now."""


class ConnectionBroken(ExchangeError):
    """The connection ended, or nothing arrived in time."""


class ShardUnreachable(ExchangeError):
    """A shard did not come back within the deadline."""


class FellBehind(ExchangeError):
    """The shard no longer holds the weights that this worker needs next."""


class StepIncomplete(ExchangeError):
    """Some chunks of the step did not arrive by the deadline."""


class NothingCounts(ExchangeError):
    """The samples of a step have no weight, so the step has no mean gradient."""

    @classmethod
    def of(cls, step: int) -> NothingCounts:
        """Make the error for ``step``."""
        return cls(
            f"no sample of step {step} counts: their weights are 0 together",
            hint="look at the labels: a batch whose labels are all ignored has no loss; use a larger batch_size",
        )
