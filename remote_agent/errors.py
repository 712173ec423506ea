"""Defines the base of the errors that end a run, and the error for invalid settings, without torch, for the laptop.

:mod:`remote_agent.training.errors` has the whole tree.
"""

from __future__ import annotations

from collections.abc import Iterator


class TrainingError(Exception):
    """An error that ends a run.

    Attributes:
        cause: what happened, in one sentence.
        hint: what the user can do next.
        host: the host it happened on; empty if it concerns no single host.
        detail: last output lines, for example of the user's own exception.
        step: the step in which it happened; 0: before the first one, or unknown.
    """

    step = 0

    def __init__(self, cause: str, *, hint: str = "", host: str = "", detail: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint
        self.host = host
        self.detail = detail

    def __str__(self) -> str:
        where = f"{self.host}: " if self.host else ""
        advice = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.cause}{advice}"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and those that it was raised from, each once: a user's chain may lead back to itself."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: BaseException) -> str:
    """The first line of what an error says, and the second if the first is a heading; its class if it says nothing."""
    first, *others = (str(error).strip() or type(error).__name__).splitlines()
    return f"{first.strip()} {others[0].strip()}" if others and first.endswith(":") else first.strip()


class ConfigError(TrainingError):
    """An error for invalid settings; ``mistakes`` has one sentence for each of them."""

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        super().__init__("; ".join(mistakes), hint="correct the settings named here and start the run again")
        self.mistakes = mistakes


class JobError(TrainingError):
    """The job's own code failed."""


def none_is_best() -> JobError:
    """The error where the best weights are asked for, and none were kept."""
    return JobError("no best checkpoint was kept", hint="set keep_best, for example keep_best=val_loss")


def no_average() -> JobError:
    """The error where the moving average of the weights is asked for, and there is none."""
    return JobError("no average of the weights was kept", hint="set ema_decay, for example ema_decay=0.999")
