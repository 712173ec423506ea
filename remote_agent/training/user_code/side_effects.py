"""What a job's file does beside defining the job, done again on the workers, which get the job by value, not its file.

It is what shows in the process before ``create_model`` is called: functions and classes of libraries that the user's
code has replaced (``modeling_llama.apply_rotary_pos_emb = mine``), torch's global flags, and variables of the
environment. What a file registers within a library does not show; a worker misses it with an error, and a hint.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from remote_agent.training.user_code.ownership import is_of_users, is_users_own
from remote_agent.training.user_code.user_errors import HINTS

THERE = (
    "it worked on the coordinator, which alone runs the job's file: do within create_model what the file does beside"
    " its definitions, as registering classes or operators"
)

_OURS = re.compile(r"VISIBLE_DEVICES$|^RAY_|^HETERO_TUI|^PYTHON")
"""Variables that say what a worker's process is."""

_cuda, _cudnn = torch.backends.cuda, torch.backends.cudnn

_FUNCTIONS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (_cuda.flash_sdp_enabled, _cuda.enable_flash_sdp),
    (_cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp),
    (_cuda.math_sdp_enabled, _cuda.enable_math_sdp),
    (_cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp),
)

_ATTRIBUTES: tuple[tuple[object, str], ...] = (
    *((_cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")),
    (_cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (_cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    *((getattr(_cudnn, name, None), "fp32_precision") for name in ("conv", "rnn")),  # torch's newer names of allow_tf32
)

FLAGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    *_FUNCTIONS,
    *((functools.partial(getattr, *each), functools.partial(setattr, *each)) for each in _ATTRIBUTES),
)
"""For each of torch's flags what reads it, and what sets it."""


@dataclass(frozen=True)
class State:
    """Flags of torch by their place in :data:`FLAGS`, and variables of the environment; None: it is not set."""

    flags: Mapping[int, Any]
    environment: Mapping[str, str | None]


@dataclass(frozen=True)
class Patch:
    """A function or class of the user's in the place of a library's: the ``name`` of a module, or of a class in it.

    ``owner`` is the class's name in the module, which need not be the one that it was defined with; "": none.
    """

    module: str
    owner: str
    name: str
    value: Any


_environment: dict[str, str | None] = {}
_patches: tuple[Patch, ...] = ()


@contextlib.contextmanager
def noting_environment() -> Iterator[None]:
    """What the block does to the variables of the environment is done in the workers, too."""
    before = dict(os.environ)
    try:
        yield
    finally:
        names = sorted(name for name in before.keys() | os.environ.keys() if not _OURS.search(name))
        _environment.update({n: os.environ.get(n) for n in names if os.environ.get(n) != before.get(n)})


def note_patches() -> None:
    """Have the workers begin with what the user's code has replaced by now, before ``create_model``."""
    global _patches
    _patches = tuple(_found())


def patches() -> tuple[Patch, ...]:
    """What was noted."""
    return _patches


def state() -> State:
    """The flags as they are now, and what the job's file did to the environment."""
    flags: dict[int, Any] = {}
    for number, (read, _) in enumerate(FLAGS):
        with contextlib.suppress(AttributeError, RuntimeError):  # not in this torch, or set by its newer name
            flags[number] = read()
    return State(flags, dict(_environment))


def restore(state: State) -> None:
    """Have flags and environment so in this process, a worker's or a server's."""
    HINTS["create_model"] = THERE
    for number, value in state.flags.items():
        read, write = FLAGS[number]
        with contextlib.suppress(AttributeError, RuntimeError):
            if read() != value:
                write(value)
    for name, text in state.environment.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


def put(patches: Sequence[Patch]) -> None:
    """Replace the same in this process, where it has the library."""
    for patch in patches:
        with contextlib.suppress(ImportError, AttributeError):
            module = importlib.import_module(patch.module)
            setattr(getattr(module, patch.owner) if patch.owner else module, patch.name, patch.value)


def _found() -> Iterator[Patch]:
    for path, module in tuple(sys.modules.items()):
        if not _is_library(path, module):
            continue
        for name, value in tuple(vars(module).items()):
            if _is_users(value):
                yield Patch(path, "", name, value)
            elif issubclass(type(value), type) and value.__module__ == path:
                yield from (Patch(path, name, n, each) for n, each in tuple(vars(value).items()) if _is_users(each))


def _is_library(path: str, module: object) -> bool:
    if path.partition(".")[0] in ("remote_agent", "__main__", "__mp_main__", "sys") or not hasattr(module, "__dict__"):
        return False
    file = vars(module).get("__file__")
    return vars(module).get("__name__") == path and not (isinstance(file, str) and _is_own(file))


def _is_users(value: object) -> bool:
    """Whether it is a function or a class of the user's own; no attribute of other values is asked for."""
    while type(value) in (staticmethod, classmethod, property, functools.partial):
        value = (
            value.fget if type(value) is property else getattr(value, "func", None) or getattr(value, "__func__", None)
        )
    if type(value) is FunctionType:
        return _is_own(value.__code__.co_filename) and is_of_users(value.__globals__.get("__name__"))
    if not issubclass(type(value), type):
        return False
    module = sys.modules.get(value.__module__)
    file = getattr(module, "__file__", None)
    return value.__module__ == "__main__" or (isinstance(file, str) and _is_own(file))


_is_own = functools.cache(is_users_own)
