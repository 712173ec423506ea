"""An accelerator for computers that have none: a kind of device whose tensors are apart from the CPU's, as a GPU's are.

Importing this gives this process's torch the device ``twin:0``. Its memory is the host's, and the CPU computes for it,
but torch treats its tensors as another device's: an operation on tensors of both devices raises, as it does on a GPU,
and so does one in float64, as on Apple's GPUs.

By torch's Python backend for ``PrivateUse1`` (``torch.utils.backend_registration``), in torch 2.13.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import backend_registration, dlpack
from torch.utils._pytree import tree_map

from remote_agent.training.worker.device import backend

KIND = "twin"

TAKES_BOTH = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))
"""Operations that a GPU, too, lets have arguments (the indices) on the CPU."""

_CPU, _EXTENSION = 1, 12  # DLPack's kDLCPU and kDLExtDev


def on_cpu(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of the CPU."""
    return _renamed(tensor, _CPU)


def on_twin(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of this device."""
    return _renamed(tensor, _EXTENSION)


def _renamed(tensor: Tensor, device_type: int) -> Tensor:
    """By DLPack, whose ``DLTensor`` begins with the data's address and the device."""
    capsule = dlpack.to_dlpack(tensor.detach())  # type: ignore[attr-defined]
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_int32.from_address(address(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)).value = device_type
    renamed: Tensor = dlpack.from_dlpack(capsule)
    return renamed


def _computed_by_the_cpu(operation: Any, *arguments: Any, **named: Any) -> Any:
    """Any of torch's operations.

    Raises:
        RuntimeError: a tensor that is not a single number is the CPU's.
        TypeError: something is float64, which Apple's GPUs do not have.
    """
    schema = operation._schema  # noqa: SLF001 - it has no public name
    name = schema.name.partition("::")[2]
    own: dict[int, tuple[Tensor, Tensor]] = {}

    def given(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == KIND:
            return torch.device("cpu")
        if not isinstance(value, Tensor):
            return value
        if value.device.type == KIND:
            same = on_cpu(value)
            own[id(same)] = same, value
            return same
        if value.dim() and name not in TAKES_BOTH:
            shape = tuple(value.shape)
            raise RuntimeError(f"{name}: a tensor of shape {shape} is not on the same device as others, {KIND}")
        return value

    def place(value: Any) -> Any:
        """Of a result, which may be resized: memory that another tensor has can't be."""
        if not isinstance(value, Tensor):
            return given(value)
        empty = torch.empty(0, dtype=value.dtype)
        own[id(empty)] = empty, value
        return empty

    def taken(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.dtype is torch.float64:
            raise TypeError(f"{name}: a tensor of float64 can't be on {KIND}, which has no float64")
        if id(value) not in own:
            return on_twin(value)
        result, asked = own[id(value)]
        if result.shape != asked.shape:
            asked.data = on_twin(result)
        elif result.data_ptr() != asked.data_ptr():
            on_cpu(asked).copy_(result)
        return asked

    numbers = {number for number, argument in enumerate(schema.arguments) if str(argument.type) == "Tensor"}
    values = [
        torch.tensor(value) if number in numbers and isinstance(value, int | float) else value
        for number, value in enumerate(arguments)
    ]
    pinned = {"pin_memory": None} if "pin_memory" in named else {}
    others = tree_map(place if "out" in schema.overload_name else given, named) | pinned
    return tree_map(taken, operation(*tree_map(given, values), **others))


def _copied(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    del non_blocking
    first, second = (on_cpu(each) if each.device.type == KIND else each for each in (source, target))
    second.copy_(first)
    return target


def _number(tensor: Tensor) -> float:
    return on_cpu(tensor).item()


def _convolution(*arguments: Any) -> Any:
    return _computed_by_the_cpu(torch.ops.aten.convolution.default, *arguments)


def _convolution_backward(gradient: Tensor, inputs: Tensor, weight: Tensor, *others: Any) -> Any:
    *_, transposed, _, groups, _ = others
    biases = weight.shape[1] * groups if transposed else weight.shape[0]
    backward = torch.ops.aten.convolution_backward.default
    return _computed_by_the_cpu(backward, gradient, inputs, weight, [biases], *others)


_DATA: Any = Tensor.data


def _set_data(tensor: Tensor, value: Tensor) -> None:
    """Between the CPU and torch's own kinds of accelerators this is allowed, and for others not."""
    if tensor.device.type == value.device.type:
        _DATA.__set__(tensor, value)
        return
    other = value.detach()
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(other, requires_grad=tensor.requires_grad)
    torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]


OWN: Sequence[tuple[str, Callable[..., Any]]] = (
    ("_copy_from", _copied),
    ("_local_scalar_dense", _number),
    ("convolution_overrideable", _convolution),
    ("convolution_backward_overrideable", _convolution_backward),
)


class Twin(backend.Backend):
    """As the CPU, with memory of its own."""

    kind = KIND
    own_memory = True

    def names(self) -> list[str]:
        # A worker has this class alone, by value.
        importlib.import_module("benchmarks.compatible.accelerator").keep_parameters()
        return [f"{KIND}:0"]


class _Module(backend_registration._DummyBackendModule):  # noqa: SLF001 - torch has no public one
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


backend_registration._setup_privateuseone_for_python_backend(KIND, _Module())  # noqa: SLF001 - as above
_LIBRARY: Any = torch.library.Library
_LIBRARIES = _LIBRARY("_", "IMPL"), _LIBRARY("aten", "IMPL")
_LIBRARIES[0].fallback(_computed_by_the_cpu, "PrivateUse1")
for _name, _implementation in OWN:
    _LIBRARIES[1].impl(_name, _implementation, "PrivateUse1")


def keep_parameters() -> None:
    """Have a module's ``to`` keep its parameters, and which are tied, as with torch's own kinds: in all of a worker."""
    torch._has_compatible_shallow_copy_type = lambda *_: True  # noqa: SLF001 - it has no public name
    setattr(Tensor, "data", property(_DATA.__get__, _set_data))  # noqa: B010 - mypy takes it for an attribute


def register(*, one_thread: bool = False) -> None:
    """Have the jobs of this process train on it where a device is called so.

    With ``one_thread`` only the computing thread may use it, as with Apple's GPUs.
    """
    kind = Twin()
    kind.one_thread = one_thread
    backend.register(kind)
