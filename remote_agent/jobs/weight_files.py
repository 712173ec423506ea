"""The weights in the folder of a Hugging Face model: which files they are, and whether these are whole and fit.

Only the headers of the files are read.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from remote_agent.training.errors import JobError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

UNQUANTIZED = "name the folder of the model in float32 or bfloat16; quantize=nf4 makes four bits of it"

DAMAGED = "copy the folder again: a file of weights is cut off or damaged"

_INTEGERS = ("I", "U", "BOOL")
"""How safetensors begin the names of types that are no weights."""

_POINTER = b"version https://git-lfs"


def refuse_unfit(named: str, folder: Path) -> None:
    """Check the files that transformers reads.

    Args:
        named: the folder as the user named it.

    Raises:
        JobError: one is missing, damaged or a pointer of Git LFS, a tensor is in two of them, or they hold a form that
            would be taken for the values of weights (int8 without its scales).
    """
    holders: dict[str, str] = {}
    for path in _files(named, folder):
        if not path.is_file():
            raise JobError(f"{named}: {path.name} is missing", hint="copy the whole folder")
        try:
            with path.open("rb") as start:
                is_pointer = start.read(len(_POINTER)) == _POINTER
            if is_pointer:
                hint = "run `git lfs pull` in that folder, on each host"
                raise JobError(f"{named}: {path.name} is a pointer of Git LFS, and not the weights", hint=hint)
            with safe_open(path, "pt") as file:
                kinds = {name: str(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise JobError(f"{named}: its weights can't be read: {path.name}: {error}", hint=DAMAGED) from error
        wrong = [name for name, kind in kinds.items() if name.endswith("weight") and kind.startswith(_INTEGERS)]
        if wrong:
            cause = f"{wrong[0]} is {kinds[wrong[0]]} in {path.name}, a quantized form that is not known here"
            raise JobError(f"{named}: {cause}", hint=UNQUANTIZED)
        for name in sorted(holders.keys() & kinds.keys()):
            cause = f"{name} is in {holders[name]} and in {path.name}"
            raise JobError(f"{named}: {cause}", hint="the files are of two models: copy the whole folder anew")
        holders |= dict.fromkeys(kinds, path.name)


def _files(named: str, folder: Path) -> list[Path]:
    """The one file, or else those of the index, as transformers chooses."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if index.is_file():
        try:
            return [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            cause = f"its weights can't be read: {INDEX}: {type(error).__name__}: {error}"
            raise JobError(f"{named}: {cause}", hint=DAMAGED) from error
    if any(folder.glob("*.safetensors")):
        raise JobError(f"{named}: there is neither {WEIGHTS} nor {INDEX}", hint="copy the whole folder")
    others = sorted(
        path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
    )
    if others:
        hint = "save the model as safetensors (`save_pretrained` of transformers), or set from_scratch=true"
        raise JobError(f"{named}: {others[0]} is no safetensors", hint=hint)
    raise JobError(f"{named}: there are no weights ({WEIGHTS})", hint="from_scratch=true begins with random weights")
