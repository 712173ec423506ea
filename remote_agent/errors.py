"""The base of what can end a run, and the error for settings that are not valid: without torch, for the laptop too.

:mod:`remote_agent.training.errors` has the whole tree.
"""

from __future__ import annotations


class TrainingError(Exception):
    """A run can't go on.

    Attributes:
        cause: what happened, in one sentence.
        hint: what the user can do next.
        host: the host it happened on; empty when it concerns no single host.
        detail: last output lines, for example of the user's own exception.
        step: that was under way; 0: it was before the first one, or it is not known.
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


class ConfigError(TrainingError):
    """Settings that are not valid; ``mistakes`` holds one sentence for each of them."""

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        super().__init__("; ".join(mistakes), hint="correct the settings named here and start the run again")
        self.mistakes = mistakes
