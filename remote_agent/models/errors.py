"""Why a model can't be cut or quantised."""

from __future__ import annotations

from remote_agent.errors import TrainingError

LAYERS_HINT = (
    "give the job a layers(model) that returns the modules that the model calls one after the other, each once, and"
    " each with the tensors that the one before gave"
)


class CannotCut(TrainingError):
    """The model can't be cut into parts for several devices."""

    def __init__(self, cause: str, *, hint: str = LAYERS_HINT) -> None:
        super().__init__(cause, hint=hint)
