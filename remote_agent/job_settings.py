"""Settings that a job has beside the engine's, filled by the same ``--set name=value``.

A job declares them as a frozen dataclass whose fields are annotated as those of
:class:`~remote_agent.settings.TrainingConfig` are, and has an object of it as ``settings``::

    @dataclass(frozen=True)
    class Mine:
        depth: Annotated[int, Range(least=1)] = 4

    class Job:
        settings = Mine()

        def create_model(self):
            return model(self.settings.depth)

Every field has a default; one that has to be given says so (:class:`~remote_agent.kinds.Required`). Without torch: the
laptop checks those of ready jobs by their classes, here. Those of a file are checked by the head, which imports it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from remote_agent.kinds import Range, Required, convert

WHAT_A_JOB_IS = (
    "a job is a class with create_model() and create_data(), or a DistributedTrainer: docs/your-own-model.md says how"
    " to make one of a training loop, of a LightningModule or of a Trainer"
)
"""The hint where something else is named as a job."""


@dataclass(frozen=True)
class LanguageModel:
    """Settings of the job ``hf-lm``.

    Attributes:
        model: folder of a Hugging Face causal language model, at this path on every host; training starts from its
            weights (safetensors), see ``from_scratch``.
        data: a .jsonl or .txt file, or a folder of such files, on the head.
        tokenizer: folder of the tokenizer; empty: the model's.
        text_field: field of a .jsonl line that holds the text.
        context: tokens in a sample; the texts are joined, with the end-of-text token between them.
        validation_fraction: part of the samples, the last ones, that is kept for validation.
        from_scratch: start with random weights in the shapes of the model's config.json.
    """

    model: Annotated[str, Required("a folder with config.json and weights")] = ""
    data: Annotated[str, Required("a .jsonl or .txt file, or a folder of them")] = ""
    tokenizer: str = ""
    text_field: str = "text"
    context: Annotated[int, Range(least=2)] = 512
    validation_fraction: Annotated[float, Range(least=0, below=1)] = 0.05
    from_scratch: bool = False


READY: Mapping[str, type] = {"hf-lm": LanguageModel}
"""Those of ready jobs."""

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "digits": {"num_iterations": 150, "batch_size": 256, "learning_rate": 3e-3},
    "text": {"num_iterations": 200, "batch_size": 32, "learning_rate": 2e-3},
    "hf-lm": {
        "num_iterations": 200,
        "batch_size": 16,
        "learning_rate": 2e-4,
        "schedule": "cosine",
        "clip_norm": 1.0,
    },
}
"""Settings that ready jobs have in the place of the defaults, by name: these are all ready jobs."""

VALIDATED = frozenset({"hf-lm"})
"""Ready jobs with validation data."""

REQUIRED: Mapping[str, tuple[str, ...]] = {"hf-lm": ("transformers>=5.23,<6",)}
"""What ready jobs need installed on hosts beside the agent's packages."""


@dataclass(frozen=True, kw_only=True)
class OwnSetting:
    """One setting of a job: its name, what it has to be, its default as it is written, and a line of help."""

    name: str
    hint: Any
    default: str
    help: str


def of_class(settings: type) -> tuple[OwnSetting, ...]:
    """The settings that a dataclass declares."""
    hints, said = typing.get_type_hints(settings, include_extras=True), described(settings.__doc__ or "")
    return tuple(
        OwnSetting(
            name=field.name, hint=hints[field.name], default=written(field.default), help=said.get(field.name, "")
        )
        for field in dataclasses.fields(settings)
    )


def written(value: object) -> str:
    """A value as ``--set`` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def described(docstring: str) -> dict[str, str]:
    """The sentences that a class's docstring has for each of its attributes."""
    text = inspect.cleandoc(docstring).partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w+: )", f"\n{text}"):
        name, colon, said = entry.strip().partition(": ")
        if colon:
            found[name] = " ".join(said.replace("``", "").split())
    return found


def missing(own: Mapping[str, Any], given: Collection[str]) -> list[str]:
    """A sentence for each setting that has to be given and is not; ``own``: their hints by name."""
    return [
        f"{name}: {limit.mistake('')}"
        for name, hint in own.items()
        for limit in typing.get_args(hint)
        if isinstance(limit, Required) and name not in given
    ]


def filled(settings: Any, given: Mapping[str, Any]) -> Any:
    """``settings`` with the values that are ``given`` for it, which were checked; texts are read."""
    hints = typing.get_type_hints(type(settings), include_extras=True)
    names = [field.name for field in dataclasses.fields(settings)]
    values = {name: convert(hints[name], given[name], parse=True) for name in names if name in given}
    return dataclasses.replace(settings, **values)
