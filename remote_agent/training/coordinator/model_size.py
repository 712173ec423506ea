"""Refuses a model that does not fit into the coordinator's memory, while it is made."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import psutil
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from remote_agent.training.errors import CUT_HINT, TooLarge


@contextlib.contextmanager
def limited(host: str) -> Iterator[None]:
    """Limit the memory of a model that the block makes.

    Args:
        host: this one's name, for the error.

    Raises:
        TooLarge: its parameters take more than the memory that was free when the block began.
    """
    free, registered = int(psutil.virtual_memory().available), list[weakref.ref[nn.Parameter]]()
    at_most = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        # What is on the device "meta" takes nothing, nor does a lazy one before its first batch.
        if parameter is None or parameter.device.type != "cpu" or is_lazy(parameter):
            return
        nonlocal at_most
        registered.append(weakref.ref(parameter))
        at_most += parameter.nbytes
        if at_most <= free:
            return
        # Tied ones count once, and those that were thrown away not at all.
        living = {each.data_ptr(): each.nbytes for ref in registered if (each := ref()) is not None}
        taken = at_most = sum(living.values())
        if taken > free:
            raise TooLarge(
                f"the model does not fit into {host}'s memory: its first {taken / 4e9:.1f} billion numbers take"
                f" {taken / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
                hint=CUT_HINT,
                host=host,
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
