"""The commands that README, CONTRIBUTING, docs/ and examples/ show."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

_COMMAND = re.compile(r"(?:hetero-tui|make|python -m)(?: .*)?")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of that language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def block_of(document: Path, language: str, beginning: str) -> str:
    """The one block of a document that begins so."""
    (found,) = [text for text in blocks(document.read_text("utf-8"), language) if text.startswith(beginning)]
    return found


def in_blocks(text: str) -> list[str]:
    """The commands of ours in fenced blocks, which a reader copies; without comments."""
    lines = [line.partition("#")[0].strip() for block in blocks(text, "sh") for line in block.splitlines()]
    return [line for line in lines if _COMMAND.fullmatch(line)]


def in_prose(text: str) -> list[str]:
    """Those between backticks, without line breaks."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    return [code for code in found if _COMMAND.fullmatch(code)]


def in_examples() -> list[str]:
    """Those that the examples begin with."""
    files = sorted((ROOT / "examples").glob("*.py"))
    return [
        line.strip()
        for file in files
        for line in re.findall("^    hetero-tui .*$", file.read_text("utf-8"), re.MULTILINE)
    ]


COPIED = sorted({*in_examples(), *(line for path in DOCUMENTS for line in in_blocks(path.read_text("utf-8")))})
NAMED = sorted({*COPIED, *(command for path in DOCUMENTS for command in in_prose(path.read_text("utf-8")))})
