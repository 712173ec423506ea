"""An exception of the user's code as a :class:`JobError`: which function of theirs, in which line, and what it says.

What a user looks for is a line of their own. A traceback ends in torch's or Python's code as a rule, so only frames of
the user's own files are shown; where there are none (the default loss, a model of a library's), the layer is named.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

import torch

from remote_agent.current_call import HERE
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.user_code import job_code, names
from remote_agent.training.user_code.ownership import is_users_own

LOSS = "loss"
"""The place of whatever happens while a slice is computed: the data, the model and the loss are the user's there."""

MAX_FRAMES = 6
"""Of one exception that are shown: the innermost."""

MAX_CHAINED = 3
"""Exceptions of a chain, and of a group, that are shown."""

MAX_TEXT = 300
"""Characters of an exception's first line that are shown."""

MAX_LINES = 12
"""Of one exception's text that are shown in the detail."""

HINT = "correct the job's code"

LOADING = "loading the job"
"""Workers and servers get it from the coordinator, where it was loaded before."""

HINTS = {
    LOADING: "it worked on the head: have Python and the libraries in the same versions on all hosts, and what the file"
    " reads when it is imported; or read that in create_data",
    "the optimizer's step": "the engine calls step() alone, when the gradients are there: without a closure (SAM and"
    " LBFGS need one), and without train() of the optimizer (call that in create_optimizer)",
}
"""Others in its place, by the function that was called."""

ARGUMENTS = (
    "a job's file is imported without a command line: give all arguments a default, make them the job's own settings"
    ' (--set), or parse them under `if __name__ == "__main__":`'
)

ENDS = "a job's code must not end its process: raise an exception that says what is wrong"

CREATING = "creating the job"

INSTALLED = (
    "have it on all hosts: name a package in the job's `requirements` and start with --bootstrap, put a module of your"
    " own beside the job's file"
)

INSTALLED_FOR_SCRIPT = (
    "have it on all nodes of the cluster: install it there, or put a module of your own beside the script"
)

NEEDS_ARGUMENTS = (
    "a class that is named as the job is called without arguments: give them defaults, or make the object in the file,"
    " as in job = Mine(128), and name that"
)

FIRST = (
    "create_model is called before create_data, and on each machine: make {name} in __init__, which is called once, on"
    " the head, before both"
)

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


@dataclass(frozen=True)
class Frame:
    """One call: ``function`` as Python qualifies it, ``Net.forward``; ``file`` as a path, or a notebook's cell."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """``my_job.py:31``."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def name(self) -> str:
        return self.function.rpartition(".")[2]

    @property
    def words(self) -> str:
        """The function as a message names it: ``forward of Net``; empty for a module's own lines."""
        owner = self.function.rpartition("<locals>.")[2].rpartition(".")[0]
        if self.name == "<module>":
            return ""
        return f"{self.name} of {owner}" if owner else self.name

    @property
    def source(self) -> str:
        """The line itself; empty where the file can't be read here."""
        return linecache.getline(self.file, self.line).strip()


def frames_of(trace: TracebackType | None) -> list[Frame]:
    """The calls of a traceback, the outermost first."""
    return _frames(traceback.walk_tb(trace))


def frames_of_stack(frame: FrameType | None) -> list[Frame]:
    """The calls that a thread is in, the outermost first."""
    return _frames(traceback.walk_stack(frame))[::-1]


def _frames(calls: Iterable[tuple[FrameType, int]]) -> list[Frame]:
    return [Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname) for frame, line in calls]


def _own_lines_of(frames: list[Frame]) -> list[str]:
    """The user's own calls among ``frames``; else the layer of a library's that was computed, if there is one."""
    if any(is_users_own(frame.file) for frame in frames):
        return lines_of(frames)
    layers = [frame.words for frame in frames if frame.name == "forward" and frame.words != "forward"]
    return [f"in {layers[-1]}; no line of the job's own code was running"] if layers else []


def lines_of(frames: list[Frame]) -> list[str]:
    """The user's own calls among ``frames``, each with its line; else the last others."""
    own = [frame for frame in frames if is_users_own(frame.file)] or frames[-3:]
    lines = []
    for frame in own[-MAX_FRAMES:]:
        lines.append(f"{frame.place} in {frame.function.rpartition('<locals>.')[2]}")
        lines += [f"    {frame.source}"] if frame.source else []
    return lines


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that a device's or the host's memory is full."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The CPU's allocator and MPS raise a plain RuntimeError.
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _FULL)


_FULL = (
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "out of memory",
)


def is_device_failure(error: BaseException) -> bool:
    """Whether a device has failed, so that every further call on it fails in this process.

    A device-side assertion has the same effect, but it is the job's mistake: a target or an index that is too large.
    """
    text = _text(error)
    return isinstance(error, RuntimeError) and text.startswith(DEVICE_FAILURES) and "device-side assert" not in text


DEVICE_FAILURES = ("CUDA error", "HIP error")


_MIXED = re.compile(r"\bfloat\b.*\bdouble\b|\bdouble\b.*\bfloat\b", re.IGNORECASE)
"""What torch says where float32 meets float64."""

_CALLS = {
    LOSS: "loss(model, batch), where a batch is a tuple (x, y, ...); a criterion of outputs and targets is named, as in"
    " loss = torch.nn.MSELoss()",
    **{name: names.call(name) for name in names.ARGUMENTS if name != LOSS},
}

_NO_TENSOR = "must be Tensor, not"

_WRONG_CALL = re.compile(r"(\w+)\(\) (?:takes|missing|got)")
"""What Python says of a call with other arguments than a function has."""

_OWN_DEVICE = re.compile(r"not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs|not linked with support for mps")
"""What torch says where the code asks for a GPU that the host does not have."""

_DEVICES = re.compile(r"same device|on cpu but expected|Placeholder storage|Passed CPU tensor|Tensor\) should be")
"""What torch says where a tensor is on the CPU and others on a GPU: of CUDA, and of MPS."""


_ON_CPU = re.compile(r"should be a 1D CPU|device type tensor to numpy")
"""What torch says where a tensor is on a GPU and has to be on the CPU."""


def as_job_error(where: str, error: BaseException) -> JobError:
    """``error`` of the user's code, called for ``where``, with the lines that the user wrote.

    If a worker's device has failed, this does not return: the process ends. A new one may be able to use the device.

    Args:
        where: the job's function that was called, or what was done, in words; :data:`LOSS`: computing a slice, and the
            function is the user's outermost one.
        error: what it raised; a ``JobError`` stays as it is.
    """
    if isinstance(error, JobError):
        return error
    if is_device_failure(error) and not is_out_of_memory(error):
        calls = [(frame.file, frame.line, frame.function) for frame in frames_of(error.__traceback__)]
        HERE.end(str(error).splitlines()[0][:MAX_TEXT], calls)
    own = [frame for frame in frames_of(error.__traceback__) if is_users_own(frame.file)]
    return JobError(
        f"{_place(where, own)}: {headline(error)}", hint=_hint(where, error, own), detail="\n".join(_detail(error))
    )


def _hint(where: str, error: BaseException, own: Sequence[Frame]) -> str:
    """What to do next."""
    if hint := _hint_of(error, own):
        return hint
    in_model = any(frame.name == "forward" for frame in frames_of(error.__traceback__))
    if where == LOSS and not (own or in_model) and _NO_TENSOR in _text(error):  # loss = functional.mse_loss
        return f"the engine calls it as {_CALLS[LOSS]}"
    if isinstance(error, SystemExit):
        return ARGUMENTS if _is_of_argparse(error) else ENDS
    if where == CREATING and isinstance(error, TypeError) and error.__traceback__ and not error.__traceback__.tb_next:
        return NEEDS_ARGUMENTS
    if where == "create_model" and isinstance(error, AttributeError) and hasattr(error.obj, "create_data"):
        return FIRST.format(name=error.name)
    if advice := job_code.advice(error):
        return advice
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] not in sys.modules:
        return INSTALLED if job_code.source() is not None else INSTALLED_FOR_SCRIPT
    return HINTS.get(where) or HINT


def _hint_of(error: BaseException, own: Sequence[Frame]) -> str:
    """What to do about what the exception says, wherever it was raised; empty: that is not known."""
    if isinstance(error, TypeError) and (call := _CALLS.get(_called_otherwise(error, own))):
        return f"the engine calls it as {call}"
    if is_out_of_memory(error):
        return "the device's memory is full: lower batch_size, or set max_batch for the host"
    if isinstance(error, RuntimeError) and _MIXED.search(str(error)):
        return "the data is float64, as numpy has it, and the model float32: x.astype('float32') makes them alike"
    if isinstance(error, TypeError) and "float64" in _text(error):
        return "this device has no float64: have data and model in float32, as x.astype('float32') makes them"
    if isinstance(error, RuntimeError) and _DEVICES.search(_text(error)):
        return (
            "make tensors where the batch's (or the parameter's) are, as in torch.arange(n, device=x.device), or as"
            " buffers of the model"
        )
    if isinstance(error, RuntimeError | TypeError) and _ON_CPU.search(_text(error)):
        return "all of a batch is on the device: take back what has to be on the CPU, as in lengths.cpu()"
    if _OWN_DEVICE.search(_text(error)):
        return "leave .cuda(), .to(device) and set_device out: the engine puts model and batches on the worker's device"
    if "backward through the graph a second time" in _text(error):
        return "leave backward() to the run, and detach what is kept from one call to the next"
    if "rocess group has not been initialized" in _text(error):
        return "leave DistributedDataParallel and torch.distributed out: the engine itself adds up all gradients"
    return ""


def _called_otherwise(error: TypeError, own: Sequence[Frame]) -> str:
    """Which function takes other arguments than it gets, by its name, as far as that can be told."""
    if own:
        return own[-1].name if _NO_TENSOR in _text(error) else ""
    found = _WRONG_CALL.search(_text(error))
    return found[1] if found else ""


def _is_of_argparse(error: SystemExit) -> bool:
    """Whether an argument parser ends the process, since the command line is not what it expects."""
    return any(Path(frame.file).name == "argparse.py" for frame in frames_of(error.__traceback__))


def headline(error: BaseException) -> str:
    """``RuntimeError: mat1 and mat2 shapes cannot be multiplied``, in one line."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({'' if error.code is None else repr(error.code)[:MAX_TEXT]})"
    text = _text(error).splitlines()
    said = type(error).__name__ + (f": {text[0][:MAX_TEXT]}" if text else "")
    if isinstance(error, BaseExceptionGroup):
        said += ": " + "; ".join(headline(each) for each in error.exceptions[:MAX_CHAINED])
    return said


def clean(text: str) -> str:
    """``text`` without escape sequences and control characters: it may come from a file that the job reads."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in _ESCAPES.sub("", text))


def _place(where: str, own: list[Frame]) -> str:
    """``loss, in forward of Net (my_job.py:12)``."""
    if not own:
        return where
    outer, inner = own[0], own[-1]
    if where == LOSS:
        where = LOSS if outer.name == LOSS else outer.words or where
    within = f", in {inner.words}" if len(own) > 1 and inner.words and inner.function != outer.function else ""
    return f"{where}{within} ({inner.place})"


def _detail(error: BaseException) -> Iterator[str]:
    """The user's calls and the text of the exception, after those that led to it."""
    for number, each in enumerate(_chain(error)):
        if number:
            yield "which led to:"
        yield from _own_lines_of(frames_of(each.__traceback__))
        yield from _said(each)
        if isinstance(each, BaseExceptionGroup):
            for member in each.exceptions[:MAX_CHAINED]:
                yield "of which:"
                yield from _own_lines_of(frames_of(member.__traceback__))
                yield from _said(member)


def _said(error: BaseException) -> list[str]:
    if isinstance(error, SyntaxError):
        lines = clean("".join(traceback.format_exception_only(error))).splitlines()
    else:
        lines = [f"{type(error).__name__}: {_text(error)}".rstrip(": ")]
        lines = lines[0].splitlines()
    return [line[:MAX_TEXT] for line in lines[:MAX_LINES]]


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and those that it was raised from, the first one first; ours are left out."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain and len(chain) < MAX_CHAINED:
        if not isinstance(each, TrainingError):
            chain.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return chain[::-1]


def _text(error: BaseException) -> str:
    """What the exception says; its own code may fail at that."""
    try:
        return clean(str(error)).strip()
    except Exception as failure:  # noqa: BLE001 - the user's code can raise anything
        return f"(its text can't be shown: {type(failure).__name__})"
