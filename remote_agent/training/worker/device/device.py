"""Implements training's operations on a device: check it, move a batch to it, wait for it, list its dtypes."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Mapping, MutableMapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn

from remote_agent.training.errors import DeviceMissing
from remote_agent.training.worker.device import backend

ANY_GPU = "gpu"
"""Asks for whatever accelerator the node has, the first kind of the table that is there."""


def find(name: str) -> torch.device:
    """The torch device of a name in the table of kinds, or ``gpu``; raises DeviceMissing if it is not there."""
    there = [each for kind in backend.kinds().values() for each in kind.names()]
    if name == ANY_GPU and len(there) > 1:
        name = there[0]
    name = next((each for each in there if each in (name, f"{name}:0")), name)
    if name not in there:
        raise DeviceMissing(
            f"there is no device {name!r} here; torch {torch.__version__} sees: {', '.join(there)}",
            hint="name one of these for the host, or install a torch build and driver for the device",
        )
    return torch.device(name)


def move(batch: Any, device: torch.device) -> Any:
    """``batch`` with all tensors in it on ``device``, of the same types as it is.

    What has a method ``to``, as tensors, graphs of PyTorch Geometric and encodings of Hugging Face have, is asked. Of
    an object without one, a copy has its attributes there.
    """
    return _moved(batch, device) if backend.of(device).own_memory else batch


def _moved(value: Any, device: torch.device, *, attribute: bool = False) -> Any:
    """As :func:`move`; objects that are an ``attribute`` of another one stay as they are: they may refer to it."""
    there = partial(_moved, device=device, attribute=attribute)
    if callable(getattr(value, "to", None)) and not isinstance(value, type):
        # Without non_blocking: MPS then reads memory that is already let go (pytorch/pytorch#189690).
        return value.to(device)
    if isinstance(value, Mapping):
        parts = {key: there(each) for key, each in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return parts
        value = copy.copy(value)
        value.update(parts)
    elif isinstance(value, tuple | list):
        items = map(there, value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    elif hasattr(value, "__dict__") and not (attribute or callable(value) or isinstance(value, ModuleType)):
        own = {name: _moved(each, device, attribute=True) for name, each in vars(value).items()}
        if any(own[name] is not each for name, each in vars(value).items()):
            value = copy.copy(value)
            vars(value).update(own)
    return value


def move_model(model: nn.Module, device: torch.device) -> None:
    """Have the model on ``device``. A buffer that modules share is one tensor there, too; torch makes several."""
    places = [module._buffers for module in model.modules()]  # noqa: SLF001 - the one way to put a buffer in a place
    there = [(buffers, name, each) for buffers in places for name, each in buffers.items()]
    model.to(device)
    moved: dict[int, torch.Tensor | None] = {}
    for buffers, name, each in there:
        buffers[name] = moved.setdefault(id(each), buffers[name])


def move_beside(factory: Any, model: nn.Module, device: torch.device) -> None:
    """Have the modules that the job keeps beside its model (a teacher, a loss with class weights) on ``device``.

    They are attributes of the job or of its class.
    """
    for holder in (factory, *type(factory).__mro__):
        for value in getattr(holder, "__dict__", {}).values():
            if isinstance(value, nn.Module) and value is not model:
                move_model(value, device)


def of_exchange(device: torch.device) -> torch.device:
    """Where tensors are that other threads send and receive while ``device`` computes."""
    return torch.device("cpu") if backend.of(device).one_thread else device


def select(device: torch.device) -> None:
    """Have ``.cuda()`` and the like in this thread mean ``device``, where the host has several of its kind."""
    backend.of(device).select(device)


def seed(device: torch.device, number: int) -> None:
    """Seed torch's random numbers on the CPU and on ``device``.

    ``torch.manual_seed`` does that for every kind of device, and formats the stack for those that are not in use: about
    a millisecond.
    """
    torch.default_generator.manual_seed(number)
    backend.of(device).seed(device, number)


def be_deterministic() -> None:
    """Have this process's devices compute the same bits each time, where torch can; before a device is used."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as torch.use_deterministic_algorithms asks for
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False  # it takes the quickest algorithm, which need not be the same one again


def synchronize(device: torch.device) -> None:
    """Return when all work given to ``device`` is done, so that a time taken next is honest."""
    backend.of(device).synchronize(device)


def autocast_dtype(device: torch.device, precision: str) -> tuple[torch.dtype | None, str]:
    """What forward and backward compute in on ``device``, and why, for the plan.

    Args:
        precision: what is asked for; one of the configuration's ``PRECISIONS``.

    Returns:
        The dtype to autocast to; None: float32, as the weights. And a sentence; empty when float32 was asked for.
    """
    if precision == "fp32":
        return None, ""
    kind = backend.of(device)
    if precision == "fp16" and device.type == kind.kind and not kind.has_fast_fp16:
        return torch.bfloat16, "autocast to bf16: a CPU has no fast fp16"
    if not torch.amp.is_autocast_available(device.type):
        return None, f"computes in fp32: torch {torch.__version__} has no autocast for {device.type}"
    if precision == "bf16" and not kind.has_bfloat16(device):
        return None, f"computes in fp32: {kind.title(device)} has no bf16; precision=fp16 may be faster there"
    if precision == "bf16":
        return torch.bfloat16, "autocast to bf16"
    return torch.float16, "autocast to fp16, with its own loss scaling"


def release_memory(device: torch.device) -> None:
    """Give back what is no longer in use: cycles of Python objects, and what torch keeps for later."""
    gc.collect()
    backend.of(device).release()
