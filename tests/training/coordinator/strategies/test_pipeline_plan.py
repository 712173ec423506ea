"""Stages are sent those of their own weights that they do not have, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from remote_agent.training.coordinator.strategies.pipeline_plan import differing
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat

TIED = torch.randn(4, 3)
WEIGHTS = {"embed": TIED, "first": torch.randn(3), "second": torch.ones(2, 2, dtype=torch.bfloat16), "head": TIED}


def _there(**tensors: Tensor) -> dict[str, str]:
    return {name: flat.fingerprint(each) for name, each in tensors.items()}


def test_nothing_is_sent_where_all_is_there() -> None:
    own = [_there(embed=TIED, first=WEIGHTS["first"]), _there(embed=TIED, second=WEIGHTS["second"])]
    assert differing(WEIGHTS, own) == [{}, {}]


def test_what_differs_is_sent_to_those_who_use_it() -> None:
    moved = TIED + 1
    own = [_there(embed=moved, first=WEIGHTS["first"].flip(0)), _there(embed=TIED, second=WEIGHTS["second"].float())]
    first, second = differing(WEIGHTS, own)
    assert sorted(first) == ["embed", "first"]
    assert list(second) == ["second"]
    dtype, numbers = second["second"]
    assert dtype == "torch.bfloat16"
    assert torch.equal(flat.from_bytes(numbers.copy(), torch.bfloat16), WEIGHTS["second"].reshape(-1))


@pytest.mark.parametrize("own", [{"embed": TIED, "other": TIED}, {"embed": TIED, "first": WEIGHTS["first"]}])
def test_another_model_is_refused_by_name(own: dict[str, Tensor]) -> None:
    with pytest.raises(JobError, match=r"another model .*: (other|second|first) is in one of them only"):
        differing(WEIGHTS, [_there(**own)])
