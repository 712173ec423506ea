"""Says what is wrong with the files of an ``hf-lm`` job on this host, from their names and headers alone.

One file, sent on the command line and run by the Python that would train, before anything is started there:
``python -I -c ... '{"model": "~/m", "data": "~/d"}'`` prints one line of JSON, ``{"mistakes": [[cause, hint], ...]}``.
It needs nothing but the standard library. What it finds is refused for sure; the job's own check knows more.
"""

from __future__ import annotations

import difflib
import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 28
"""Of a file, or of a header, that is read whole."""

ENDINGS = (".jsonl", ".txt")

OTHER_FORMS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
"""Of weights."""

BYTES_TRAINED, BYTES_FP32, BYTES_NF4 = 16, 4, 0.5
"""Of a weight: with its gradient and the two moments of AdamW, and of a frozen one."""

Mistake = tuple[str, str]
"""What is wrong, and what to do."""


def mistakes(given: Mapping[str, Any]) -> Iterator[Mistake]:
    """What is wrong with the files that these settings of the job name."""
    named, folder = f"model={given['model']}", Path(given["model"]).expanduser()
    config = _json(folder / "config.json")
    if not (folder / "config.json").is_file():
        what = "no config.json" if folder.is_dir() else "not a folder on this host"
        hint = "name a folder of a Hugging Face model that every host has at this path"
        if (folder / "adapter_config.json").is_file():
            what, hint = "an adapter without its model", "export the run that made it with --format merged"
        yield f"{named}: {what}", hint
    elif not given.get("from_scratch"):
        files = sorted(folder.glob("*.safetensors"))
        others = sorted(path.name for path in folder.iterdir() if path.suffix in OTHER_FORMS)
        if not files and others:
            hint = "save the model as safetensors (`save_pretrained` of transformers), or set from_scratch=true"
            yield f"{named}: {others[0]} is no safetensors", hint
        elif not files:
            yield (
                f"{named}: there are no weights (model.safetensors)",
                "name a folder with weights in safetensors; from_scratch=true begins with random weights",
            )
        else:
            tables = [_header(file) for file in files]
            yield from _about_targets(given, tables)
            yield from _about_memory(given, tables)
    yield from _about_tokenizer(given, config if isinstance(config, dict) else {})
    yield from _about_data(str(given["data"]))


def _about_memory(given: Mapping[str, Any], tables: list[Mapping[str, Any] | None]) -> Iterator[Mistake]:
    """A model for which all memory is too little, though nothing but weights, gradients and AdamW's state was there."""
    numbers = sum(math.prod(map(int, _shape(each))) for table in tables for each in (table or {}).values())
    each = BYTES_TRAINED if not given.get("lora_rank") else BYTES_NF4 if given.get("quantize") == "nf4" else BYTES_FP32
    least, there = numbers * each / 1e9, float(given.get("memory", 0)) / 1e9
    if there and least > there:
        cause = f"its {numbers:,} weights take at least {least:,.3g} GB to train, and all machines have {there:,.3g} GB"
        hint = "add machines, take a smaller model, or set lora_rank=16 and quantize=nf4"
        yield f"model={given['model']}: {cause}: {least - there:,.3g} GB are missing", hint


def _shape(about: object) -> list[Any]:
    shape = about.get("shape") if isinstance(about, dict) else None
    return shape if isinstance(shape, list) else [0]


def _about_targets(given: Mapping[str, Any], tables: list[Mapping[str, Any] | None]) -> Iterator[Mistake]:
    """Adapters for layers that have no matrix in any of the files."""
    targets = [name for each in str(given.get("lora_targets", "")).split(",") if (name := each.strip())]
    if not targets or any(table is None for table in tables):
        return
    known = sorted({name.split(".")[-2] for table in tables for name in table or () if _is_matrix(name, table)})
    unknown = [target for target in targets if target not in known]
    if unknown and known:
        close = [difflib.get_close_matches(target, known, n=1, cutoff=0.66) for target in unknown]
        hint = f"did you mean {','.join(each[0] for each in close)}?" if all(close) else f"there are {', '.join(known)}"
        which = "of that name" if len(unknown) == 1 else "of these names"
        yield f"lora_targets={','.join(unknown)}: the model has no linear layer {which}", hint


def _is_matrix(name: str, table: Mapping[str, Any] | None) -> bool:
    return name.endswith(".weight") and len(_shape((table or {}).get(name))) == 2


def _header(file: Path) -> Mapping[str, Any] | None:
    """The table of tensors at the beginning of a safetensors file; None: it can't be read."""
    try:
        with file.open("rb") as start:
            (size,) = struct.unpack("<Q", start.read(8))
            table = json.loads(start.read(size)) if size < MOST_BYTES else None
    except (OSError, ValueError, struct.error):
        return None
    return table if isinstance(table, dict) else None


def _about_tokenizer(given: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Mistake]:
    """Numbers of tokens that the model does not know."""
    setting = "tokenizer" if given.get("tokenizer") else "model"
    named, folder = f"{setting}={given[setting]}", Path(given[setting]).expanduser()
    if setting == "tokenizer" and not folder.is_dir():
        yield f"{named}: not a folder", "it has to have tokenizer.json"
        return
    found, text = _json(folder / "tokenizer.json"), config.get("text_config")
    known = (text if isinstance(text, dict) else config).get("vocab_size")
    if not isinstance(found, dict) or not isinstance(known, int):
        return
    most = max(_numbers(found), default=-1)
    if most >= known:
        cause = f"its tokenizer does not fit the model: its numbers go up to {most:,}, the model knows {known:,}"
        yield f"{named}: {cause}", "name the tokenizer that the model was trained with: tokenizer=FOLDER"


def _numbers(tokenizer: Mapping[str, Any]) -> Iterator[int]:
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from (number for number in vocabulary.values() if isinstance(number, int))
    elif isinstance(vocabulary, list) and vocabulary:
        yield len(vocabulary) - 1
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            yield token["id"]


def _about_data(data: str) -> Iterator[Mistake]:
    hint, place = "name a .jsonl or .txt file, or a folder of them, on the head", Path(data).expanduser()
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    files = [path for path in files if path.suffix in ENDINGS]
    if not place.exists():
        yield f"data={data}: not there", hint
    elif not files:
        yield f"data={data}: no {' or '.join(ENDINGS)} file", hint
    elif all(_is_empty(path) for path in files):
        yield f"data={data}: there is no text in it", hint


def _is_empty(path: Path) -> bool:
    """Whether a file has nothing but blanks; a pipe is not waited for."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return not any(piece.strip() for piece in iter(lambda: file.read(1 << 20), b""))
    except OSError:
        return False


def _json(file: Path) -> object:
    """What a file holds; None: it can't be read, and the job's own check says why."""
    try:
        return json.loads(file.read_bytes()) if file.stat().st_size < MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None


if __name__ == "__main__":
    print(json.dumps({"mistakes": list(mistakes(json.loads(sys.argv[1])))}), flush=True)
