"""What an object of the user's holds, in little memory: to see whether its code changes that beside the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.training.shared import flat


def values(path: str, value: object, depth: int = 2) -> Iterator[tuple[str, object]]:
    """Numbers and tensors in ``value``, each with its ``path``; containers are entered ``depth`` deep."""
    if isinstance(value, bool | int | float):
        yield path, value
    elif isinstance(value, Tensor | np.ndarray):
        yield path, flat.digest(torch.as_tensor(value))
    elif isinstance(value, nn.Module):
        for name, tensor in value.state_dict().items():
            if isinstance(tensor, Tensor):
                yield f"{path}.{name}", flat.digest(tensor)
    elif isinstance(value, Mapping) and depth:
        for key, entry in list(value.items())[:100]:
            yield from values(f"{path}[{key!r}]", entry, depth - 1)


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """The path of a value that is not what it was; empty: all are."""
    return next((name for name, value in after.items() if name in before and before[name] != value), "")
