"""The text that a language model is trained on: a .jsonl or .txt file, or a folder of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from remote_agent.errors import first_line
from remote_agent.training.errors import JobError

_UTF8 = "utf-8-sig"  # Windows' programs write a mark before the text


def texts(data: str, field: str) -> Iterator[str]:
    """The texts of ``data``, file by file; of a .jsonl line its ``field``. Raises JobError."""
    place = Path(data).expanduser()
    files = [place]
    if place.is_dir():
        files = sorted(path for path in place.rglob("*") if path.suffix in (".jsonl", ".txt") and path.is_file())
    hint = "name a .jsonl or .txt file, or a folder of them, on the head"
    if not place.exists():
        raise JobError(f"data={data}: not there", hint=hint)
    if not place.is_dir() and not place.is_file():
        raise JobError(f"data={data}: neither a file nor a folder", hint=hint)
    if not files or files[0].suffix not in (".jsonl", ".txt"):
        raise JobError(f"data={data}: no .jsonl or .txt file", hint=hint)
    found = False
    for path in files:
        for text in _texts_of(path, field):
            if text.strip():
                found = True
                yield text
    if not found:
        raise JobError(f"data={data}: there is no text in it", hint=hint)


def _texts_of(path: Path, wanted: str) -> Iterator[str]:
    try:
        if path.suffix == ".txt":
            if "\0" in (text := path.read_text(encoding=_UTF8)):
                raise JobError(f"data: {path} has zero bytes", hint="it has to be text in UTF-8")
            yield text
            return
        with path.open(encoding=_UTF8) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                entry = json.loads(line)
                if not isinstance(entry, dict) or not isinstance(entry.get(wanted), str):
                    there = ", ".join(map(str, entry)) if isinstance(entry, dict) else f"a {type(entry).__name__}"
                    if isinstance(entry, dict) and wanted in entry:
                        there = json.dumps(entry[wanted])[:40]
                    hint = "say which field has the text with text_field=NAME"
                    raise JobError(f"{path.name}, line {number}: no text in {wanted!r}; it has {there}", hint=hint)
                entry[wanted].encode()
                yield entry[wanted]
    except UnicodeEncodeError as error:
        raise JobError(f"{path.name}, line {number}: its text has half a character: {error.reason}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"data: {path} can't be read: {error}", hint="it has to be text in UTF-8") from error
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else first_line(error)
        hint = "each line of a .jsonl file is a JSON object with a text"
        raise JobError(f"{path.name}, line {number}: it is no JSON: {said}", hint=hint) from error
