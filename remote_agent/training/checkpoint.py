"""Checkpoints: the model as safetensors, and beside it a JSON document that says what it is.

Both are written under another name, flushed to the disk and then renamed, the document last: a checkpoint
whose document exists is whole. Nothing is pickled, so that a checkpoint can be read anywhere without trust.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from remote_agent.training.errors import StorageError


def portable_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's state dict on the CPU, each tensor with memory of its own (tied ones too)."""
    return {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor)
    }


def save(folder: Path, step: int, model: nn.Module, about: dict[str, Any]) -> tuple[Path, int]:
    """Write ``step-NNNNNNNN.safetensors`` and ``.json`` into ``folder``.

    Args:
        folder: made when it does not exist.
        step: the last step that is in the weights.
        model: whose state dict is written.
        about: further fields of the JSON document.

    Returns:
        The safetensors file's path and size in bytes.

    Raises:
        StorageError: the disk is full, or the folder can't be written; nothing half-written is left.
    """
    path = folder / f"step-{step:08d}.safetensors"
    document = path.with_suffix(".json")
    drafts = [path.with_suffix(".safetensors.part"), document.with_suffix(".json.part")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(portable_state(model), drafts[0], metadata={"format": "pt"})
        drafts[1].write_text(json.dumps({"step": step, "weights": path.name, **about}, indent=2) + "\n")
        for draft, final in zip(drafts, (path, document), strict=True):
            _flush(draft)
            draft.replace(final)
        return path, path.stat().st_size
    except (OSError, SafetensorError) as error:
        for draft in drafts:
            _discard(draft)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StorageError(
            f"can't save the checkpoint of step {step}: {reason}", hint=f"free space or correct the rights of {folder}"
        ) from error


def load(path: Path) -> dict[str, Tensor]:
    """The state dict in a checkpoint's safetensors file."""
    return safetensors.torch.load_file(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder itself is the problem, and that is already being reported
