"""A frozen model in four bits, kept on its host: it is quantized once, and each later start reads what it uses of it.

The file is named by the contents of the files that the model was made from. It holds all tensors but the adapters, by
the names that they have without these; they are mapped into memory, so a pipeline's stage reads its own blocks' alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from remote_agent.models.adapters import LoraLinear

MAX_KEPT = 2
"""Models that a host keeps; older ones are removed."""

_ABANDONED_S = 3600.0
_PIECE = 1 << 22
_FORM = "nf4-1"


def key_of(files: Iterable[Path], folder: Path, *others: str) -> str:
    """A name for what is made from ``files``, by their contents, and from ``others``.

    Contents are read once; as long as a file's size and times stay, they are known from ``folder``.

    Raises:
        OSError: a file can't be read.
    """
    digest = hashlib.blake2b(repr((_FORM, *others)).encode(), digest_size=16)
    for path in sorted(files):
        status = path.stat()
        about = repr((str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        known = folder / f"{hashlib.blake2b(about.encode(), digest_size=16).hexdigest()}.contents"
        found = known.read_text() if known.is_file() else ""
        if not found:
            contents = hashlib.blake2b(digest_size=16)
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    contents.update(piece)
            found = contents.hexdigest()
            folder.mkdir(parents=True, exist_ok=True)
            draft = _draft_of(known)
            draft.write_text(found)
            draft.replace(known)
        digest.update(f"{path.name} {found}".encode())
    return digest.hexdigest()


def _draft_of(final: Path) -> Path:
    """A name that no other process uses: a file is there whole or not at all."""
    return final.with_name(f"{final.name}.{secrets.token_hex(4)}.part")


def _remove_abandoned(folder: Path) -> None:
    """Remove drafts of processes that have ended; they were not written to for long."""
    for draft in folder.glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > _ABANDONED_S:
                draft.unlink()


def keep(model: nn.Module, folder: Path, key: str) -> None:
    """Write the model for later starts; where the disk has no room for it, it is made anew each time."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, _, tensor in _tensors(model):
        if id(tensor) not in seen:  # a tied one is there once
            seen.add(id(tensor))
            tensors[name] = tensor.detach().contiguous()
    final = folder / f"{key}.safetensors"
    draft = _draft_of(final)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        save_file({name: _apart(tensor) for name, tensor in tensors.items()}, draft)
        draft.replace(final)
        others = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for old in others[MAX_KEPT:]:
            old.unlink(missing_ok=True)
    except (OSError, SafetensorError):
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def load(outline: Callable[[], nn.Module], folder: Path, key: str, seed: int) -> nn.Module | None:
    """The model as it was kept, with new adapters; None: it was not kept, or ``outline`` gives another model.

    Args:
        outline: makes the model with its adapters on the device ``meta``, without memory.
        seed: of the adapters' first numbers.
    """
    path = folder / f"{key}.safetensors"
    if not path.is_file():
        return None
    model = outline()
    found: dict[int, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            there = set(file.keys())
            for name, place, tensor in list(_tensors(model)):
                module, last = place
                if id(tensor) not in found:
                    if name not in there:
                        return None
                    value = file.get_tensor(name)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    found[id(tensor)] = nn.Parameter(value, requires_grad=False) if is_parameter else value
                if found[id(tensor)].shape != tensor.shape:
                    return None
                setattr(module, last, found[id(tensor)])
    except (OSError, SafetensorError):
        return None
    torch.manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, LoraLinear):
            layer.begin()
    return None if any(map(_has_no_memory, model.modules())) else model


def _tensors(model: nn.Module) -> Iterator[tuple[str, tuple[nn.Module, str], Tensor]]:
    """All tensors but adapters: their names as without adapters, and their modules with their names there."""
    for path, module in model.named_modules():
        named = ".".join(part for part in path.split(".") if part != "base")
        for last, tensor in (*module._parameters.items(), *module._buffers.items()):  # noqa: SLF001 - tied ones, too
            if tensor is not None and not (isinstance(module, LoraLinear) and last.startswith("lora_")):
                yield f"{named}.{last}" if named else last, (module, last), tensor


def _has_no_memory(module: nn.Module) -> bool:
    values = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())  # noqa: SLF001
    return any(isinstance(each, Tensor) and each.is_meta for each in values)


def _apart(tensor: Tensor) -> Tensor:
    """With memory of its own, as safetensors wants it."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
