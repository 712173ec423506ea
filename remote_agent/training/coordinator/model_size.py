"""Refuses a model that the coordinator has no memory for, while it is made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from remote_agent.training.errors import JobError


@contextlib.contextmanager
def limited(host: str) -> Iterator[None]:
    """While the block makes a model.

    Args:
        host: this one's name, for the error.

    Raises:
        JobError: its parameters take more than the memory that was free when the block began.
    """
    free, taken = int(psutil.virtual_memory().available), 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal taken
        if parameter is None or parameter.device.type != "cpu":
            return  # what is on the device "meta" takes nothing
        taken += parameter.numel() * parameter.element_size()
        if taken > free:
            raise JobError(
                f"the model does not fit into {host}'s memory: its first {taken / 4e9:.1f} billion numbers take"
                f" {taken / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
                hint="strategy=pipeline cuts a model over several machines; else a smaller model, or more memory",
                host=host,
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
