"""Settings that have no effect beside others are named."""

from __future__ import annotations

from typing import Any

import pytest

from remote_agent.idle_settings import idle
from remote_agent.settings import TrainingConfig


@pytest.mark.parametrize(
    ("given", "name", "is_idle"),
    [
        ({"strategy": "allreduce"}, "shards", True),
        ({"strategy": "pipeline"}, "shards", True),
        ({"strategy": "local_sgd"}, "shards", False),
        ({"strategy": "auto"}, "shards", False),
        ({"strategy": "sync"}, "allow", True),
        ({"strategy": "pipeline"}, "allow", False),
        ({"strategy": "auto"}, "allow", False),
        ({"outer": "none"}, "outer_momentum", True),
        ({"outer": "nesterov"}, "outer_momentum", False),
        ({"lora_rank": 0}, "lora_alpha", True),
    ],
)
def test_what_counts_only_with_another_value_of_another_setting_is_idle(
    given: dict[str, Any], name: str, is_idle: bool
) -> None:
    assert (name in dict(idle(vars(TrainingConfig(**given))))) is is_idle
