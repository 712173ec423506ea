"""Tensors that lie in files: the system takes their memory for something else when it is short, and reads them again.

So a process can hold a model that its host has no memory for, as long as it uses a part of it at a time: a pipeline's
workers hold the whole model until it is known which blocks each has. The files have no names, and are gone with the
process. Where the disk has no room, tensors lie in memory as usual.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from remote_agent.protocol import CLUSTER_MARK

SMALLEST = 1 << 20
"""Bytes of the smallest tensor that is worth a file."""

_UNFILLED = torch.empty


class _Making(TorchFunctionMode):
    """Has ``torch.empty`` make large tensors in files: layers make their weights so, and fill them afterwards."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if function is _UNFILLED and str(given.get("device") or torch.get_default_device()) == "cpu":
            outline = function(*args, **{**given, "device": "meta"})
            if outline.nbytes >= SMALLEST and outline.is_contiguous():
                made = like(outline)
                return made.requires_grad_(True) if given.get("requires_grad") else made
        return function(*args, **given)


@contextlib.contextmanager
def making(*, wanted: bool) -> Iterator[Callable[[nn.Module], None]]:
    """Have a model that is made in the block lie in files, where that is ``wanted``.

    Yields:
        What brings the rest of a model there, too: tensors that were made in another way.
    """
    if not wanted:
        yield lambda model: None
        return
    with _Making():
        yield _spill


def _spill(model: nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            storage = tensor.untyped_storage()
            is_whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
            if tensor.device.type == "cpu" and tensor.nbytes >= SMALLEST and is_whole and storage.filename is None:
                tensor.data = like(tensor).copy_(tensor)


def like(outline: Tensor) -> Tensor:
    """A tensor in a file, not filled, of the shape and dtype of ``outline``; in memory where the disk has no room."""
    size = outline.nbytes
    folder = os.environ.get(CLUSTER_MARK)
    try:
        descriptor, name = tempfile.mkstemp(prefix="weights-", dir=folder if folder and Path(folder).is_dir() else None)
    except OSError:
        return torch.empty_like(outline, device="cpu")
    try:
        _reserve(descriptor, size)
        storage: Any = torch.UntypedStorage.from_file(name, shared=True, nbytes=size)
    except (OSError, RuntimeError):
        return torch.empty_like(outline, device="cpu")
    finally:
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)
    return torch.empty(0, dtype=outline.dtype).set_(storage, 0, outline.shape, outline.stride())


def _reserve(descriptor: int, size: int) -> None:
    """Have the disk keep room: without it, a full disk would end the process while it writes to the memory."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    room = os.fstatvfs(descriptor)
    if room.f_bavail * room.f_frsize < 2 * size:
        raise OSError("no room")
    os.truncate(descriptor, size)
