"""Which settings of a run do not go together. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from remote_agent.planning import units
from remote_agent.strategies import SPECS, spec_of


def pairs(config: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """The names of settings that do not go together, and a sentence; ``config`` has each setting as an attribute."""
    strategy = spec_of(config.strategy)
    if config.unit and config.micro_batch and config.batch_size and not strategy.split:
        largest = units.bounds(config.batch_size, config.unit)[1]
        if largest > config.micro_batch:
            yield (
                ("unit", "micro_batch", "batch_size"),
                f"micro_batch={config.micro_batch}: unit={config.unit} has {largest} samples computed together",
            )
    if config.early_stopping and not config.keep_best:
        yield ("early_stopping", "keep_best"), f"early_stopping={config.early_stopping}: needs keep_best=METRIC"
    if config.deterministic and strategy.rounds:
        exact = " or ".join(f"strategy={spec.name}" for spec in SPECS.values() if not spec.rounds)
        yield ("deterministic", "strategy"), f"strategy={config.strategy}: deterministic=true needs {exact}"
    if config.deterministic and config.codec != "fp32":
        yield ("deterministic", "codec"), f"codec={config.codec}: deterministic=true needs codec=fp32"
    if config.deterministic and config.precision == "fp16":
        yield (
            ("deterministic", "precision"),
            "precision=fp16: deterministic=true needs precision=fp32 or precision=bf16",
        )
    if config.quantize != "none" and not config.lora_rank:
        yield ("quantize", "lora_rank"), f"quantize={config.quantize}: frozen weights need adapters; set lora_rank=16"
    if config.lora_targets and not config.lora_rank:
        yield ("lora_targets", "lora_rank"), f"lora_targets={config.lora_targets}: needs adapters; set lora_rank=16"
    if config.precision == "fp16" and strategy.split:
        yield ("precision", "strategy"), "precision=fp16: strategy=pipeline needs precision=fp32 or precision=bf16"
    if config.codec != "fp32" and not strategy.servers and not strategy.split:
        yield ("codec", "strategy"), f"codec={config.codec}: strategy={config.strategy} sends fp32 only"
