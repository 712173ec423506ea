"""The reference pages of the documentation, from the docstrings: ``python -m benchmarks.reference`` writes them.

``docs/settings.md`` has every setting with an example, ``docs/api.md`` what ``remote_agent.training`` exports.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from remote_agent import training
from remote_agent.settings import OF_ORDERS, TrainingConfig

DOCS = Path(__file__).resolve().parents[1] / "docs"

EXAMPLES: dict[str, str] = {
    "num_iterations": "500",
    "epochs": "3",
    "batch_size": "256",
    "micro_batch": "16",
    "in_flight": "6",
    "learning_rate": "0.003",
    "schedule": "cosine",
    "warmup_steps": "100",
    "clip_norm": "1.0",
    "ema_decay": "0.999",
    "precision": "bf16",
    "loss_reduction": "mean",
    "unit": "32",
    "deterministic": "true",
    "activation_checkpointing": "true",
    "quantize": "nf4",
    "lora_rank": "16",
    "lora_alpha": "16",
    "lora_targets": "q_proj,v_proj",
    "seed": "7",
    "strategy": "local_sgd",
    "allow": "inexact",
    "shards": "2",
    "checkpoint_every": "100",
    "checkpoint_seconds": "120",
    "keep_checkpoints": "5",
    "evaluate_every": "100",
    "keep_best": "max:accuracy",
    "early_stopping": "5",
    "measure_seconds": "2",
    "rebalance": "false",
    "slice_deadline_s": "300",
    "stream": "network",
    "codec": "int8",
    "local_steps": "50",
    "local_batch": "8",
    "overlap": "true",
    "outer": "nesterov",
    "outer_learning_rate": "0.5",
    "outer_momentum": "0.8",
    "log_to": "csv",
    "num_gpu_workers": "2",
    "num_cpu_workers": "2",
}
"""A value for each setting, as ``--set`` takes it."""


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Each page's text by its name."""
    return {"settings.md": settings(), "api.md": api()}


def settings() -> str:
    """Every field of :class:`TrainingConfig`."""
    about = attributes(inspect.getdoc(TrainingConfig) or "")
    lines = [
        "# Settings",
        "",
        "These are the fields of `TrainingConfig`: in a script `TrainingConfig(batch_size=256)`, on the command line",
        "`--set batch_size=256`. All unknown names and invalid values are reported at once.",
        "",
        "| setting | default | example | meaning |",
        "|---|---|---|---|",
    ]
    for field in dataclasses.fields(TrainingConfig):
        default = "none" if field.default in (None, "") else str(field.default).lower()
        if field.name in OF_ORDERS:
            default = f"{OF_ORDERS[field.name]}; in a script {default}"
        example = f"`--set {field.name}={EXAMPLES[field.name]}`"
        if field.name.endswith("_workers"):
            example = f"`TrainingConfig({field.name}={EXAMPLES[field.name]})`"
        lines.append(f"| `{field.name}` | {default} | {example} | {_inline(about[field.name])} |")
    return "\n".join(lines) + "\n"


def api() -> str:
    """What :mod:`remote_agent.training` exports, with public methods."""
    lines = ["# Python API", "", "Import these from `remote_agent.training`. The page is made from the docstrings.", ""]
    for name in training.__all__:
        thing = getattr(training, name)
        lines += [f"## {name}", "", *_about(thing), ""]
        if name == "TrainingConfig":
            lines += ["Every field: [settings.md](settings.md).", ""]
            continue
        for method, function in vars(thing).items():
            if not method.startswith("_") and inspect.isfunction(function):
                lines += [f"### `{name}.{method}{_signature(function)}`", "", *_about(function), ""]
    return "\n".join(lines).rstrip() + "\n"


def attributes(doc: str) -> dict[str, str]:
    """The entries of a docstring's section ``Attributes``, by name."""
    section = doc.split("Attributes:\n", 1)[1].split("\n\n", 1)[0]
    entries: dict[str, str] = {}
    for entry in re.split(r"\n    (?=\S)", "\n" + section)[1:]:
        name, _, text = entry.partition(":")
        entries[name.strip()] = " ".join(text.split())
    return entries


def _about(thing: Any) -> list[str]:
    """A docstring as Markdown: its sections become lists."""
    doc = inspect.getdoc(thing) or ""
    if thing is TrainingConfig:
        doc = doc.split("\n\nAttributes:")[0]
    lines: list[str] = []
    for block in doc.split("\n\n"):
        head, _, rest = block.partition("\n")
        if head in ("Args:", "Attributes:", "Raises:", "Returns:"):
            entries = re.split(r"\n    (?=\S)", "\n" + rest)[1:]
            lines += [f"{head}", "", *(f"- {_entry(entry)}" for entry in entries), ""]
        else:
            lines += [_inline(" ".join(block.split())), ""]
    return lines[:-1]


def _entry(text: str) -> str:
    name, colon, rest = " ".join(text.split()).partition(": ")
    return f"`{name}`: {_inline(rest)}" if colon and re.fullmatch(r"\w+", name) else _inline(" ".join(text.split()))


def _inline(text: str) -> str:
    """ReStructuredText's marks as Markdown's."""
    text = re.sub(r":\w+:`~?([^`<]*?)`", lambda found: f"`{found.group(1).rsplit('.', 1)[-1]}`", text)
    return text.replace("``", "`").replace("|", "\\|")


def _signature(function: Any) -> str:
    text = str(inspect.signature(function)).replace("'", "")
    return re.sub(r"\(self(, )?", "(", text, count=1)


if __name__ == "__main__":
    main()
