"""Defines the result that ``train()`` returns to a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from remote_agent import protocol
from remote_agent.errors import none_is_best
from remote_agent.training import job
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.wording import number

Rows = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult:
    """The result of a run.

    Attributes:
        state_dict: the trained weights, on the CPU, for ``model.load_state_dict``.
        metrics: one row a step: ``step, loss, samples, seconds, bytes_pushed, bytes_pulled, workers``; and ``metrics``
            with the validation metrics if the step was evaluated.
        evaluations: one row an evaluation: ``step, epoch, samples, seconds, best``, and each metric by its name.
        evaluation: the final metrics: those of the last step's evaluation, which a stopped run has not, and those of
            the factory's ``evaluate``.
        final_loss: mean loss of the last step's samples, before its update.
        checkpoint: the safetensors file with these weights.
        best: the safetensors file of the best evaluation, if ``config.keep_best`` is set.
        stopped: Ctrl-C ended the run; ``train(resume=...)`` with its folder continues it.
        reason: why the run ended before its last step: early stopping, or the end of the data; empty: it did not, or
            Ctrl-C ended it.
        events: the run's ``events.jsonl``.
        factory: the job's model factory.
    """

    state_dict: dict[str, Tensor]
    metrics: Rows
    final_loss: float
    checkpoint: Path
    events: Path
    evaluations: Rows = ()
    evaluation: Mapping[str, float] = field(default_factory=dict)
    best: Path | None = None
    stopped: bool = False
    reason: str = ""
    factory: Any = None

    def model(self, *, best: bool = False) -> nn.Module:
        """Make a model with the trained weights, or those of the best evaluation; it is in eval mode.

        Raises:
            JobError: the factory raised, or no best checkpoint was kept.
        """
        if not best:
            return self._with(self.state_dict)
        if self.best is None:
            raise none_is_best()
        return self._with(checkpoint.load(self.best))

    def ema_model(self) -> nn.Module:
        """Make a model with the exponential moving average of the weights; it is in eval mode.

        Raises:
            JobError: no average was kept, or its checkpoint can't be read.
        """
        model = self._with(self.state_dict)
        checkpoint.find(self.checkpoint).average_into(model)
        return model

    def __repr__(self) -> str:
        parts = [f"{len(self.metrics):,} steps", f"loss {number(self.final_loss, 4)}"]
        parts += [f"{name} {number(value, 4)}" for name, value in self.evaluation.items()]
        parts += [f"{sum(tensor.numel() for tensor in self.state_dict.values()):,} numbers", str(self.checkpoint)]
        parts += [f"best {self.best}"] if self.best is not None else []
        parts += [self.reason] if self.reason else []
        return f"TrainingResult({', '.join(parts)})"

    def _with(self, state: Mapping[str, Tensor]) -> nn.Module:
        found = checkpoint.find(self.checkpoint)
        names = ("quantize", "lora_rank", "lora_alpha", "lora_targets")
        config = TrainingConfig(**{name: found.config[name] for name in names if name in found.config})
        with torch.random.fork_rng(devices=[]):
            model = job.create_model(self.factory, found.seed, config, trains=False)
        model.load_state_dict(state, strict=False)  # values that are not tensors stay as the factory made them
        return model.eval()


def rows_of(path: Path) -> tuple[Rows, Rows]:
    """Read a run's steps and evaluations as rows; of a step that was repeated after a resume, only the last is kept."""
    steps: dict[int, dict[str, Any]] = {}
    evaluations: dict[int, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        match protocol.decode_event(line):
            case protocol.Step() as event:
                steps[event.step] = dataclasses.asdict(event)
            case protocol.Evaluated() as event:
                row = dataclasses.asdict(event)
                evaluations[event.step] = row | row.pop("metrics")
                if event.step in steps:
                    steps[event.step]["metrics"] = dict(event.metrics)
            case protocol.RunResumed() as event:
                steps = {step: row for step, row in steps.items() if step <= event.step}
                evaluations = {step: row for step, row in evaluations.items() if step <= event.step}
    return tuple(steps.values()), tuple(evaluations.values())
