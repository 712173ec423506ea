"""Settings that count only with certain values of another one, or where the job's own functions ask for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from remote_agent.strategies import AUTO, SPECS

NEEDED: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "shards": ("strategy", (*(spec.name for spec in SPECS.values() if spec.servers), AUTO)),
    "allow": ("strategy", (AUTO, "pipeline")),
    "in_flight": ("strategy", ("pipeline", AUTO)),
    **dict.fromkeys(("local_steps", "local_batch", "overlap", "outer"), ("strategy", ("local_sgd", AUTO))),
    **dict.fromkeys(("outer_learning_rate", "outer_momentum"), ("outer", ("nesterov",))),
}
"""Settings that count only with certain values of another one."""

ASKED_BY: Mapping[str, str] = {
    "learning_rate": "create_optimizer",
    "schedule": "create_scheduler",
    "warmup_steps": "create_scheduler",
}
"""Settings that a job's own function may leave out, and that function."""


def idle(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings without effect beside these ``values``, and why; a value that is not known is not among them."""
    for name, (other, counts) in NEEDED.items():
        if other in values and values[other] not in counts:
            yield name, f"it counts with {other}={counts[0]}"
    if not values.get("lora_rank", True):
        yield from ((name, "it counts with lora_rank=16 or another") for name in ("lora_alpha", "lora_targets"))


def not_asked_for(name: str) -> str:
    """Why a setting of :data:`ASKED_BY` has no effect with a job's own function that does not ask for it."""
    return f"the job's {ASKED_BY[name]} does not use config.{name}"
