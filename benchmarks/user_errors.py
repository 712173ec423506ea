"""What is shown for the mistakes that users make: the line, the exit code, and the seconds until it is shown.

``python -m benchmarks.user_errors [--only NAMES] [--markdown FILE]``

A mistake in a job is made by the script API on a local Ray with two workers; the line is what its error says, after the
time from ``train()`` on. A mistake on the command line or in a job's file is made by ``hetero-tui train`` in a process
of its own. A row is unclear, and the exit code 1, where the line lacks one of the words that it has to have (what is
wrong, and where), or where a traceback is shown.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.compatibility import ROOT, local_ray
from benchmarks.mistakes import jobs
from benchmarks.mistakes.commands import COMMANDS, Command
from remote_agent.training import DistributedTrainer, TrainingError

COMMAND_S = 60.0
"""Until a command must have ended."""

INVENTORY = "cluster: {name: user-errors}\nhosts:\n  laptop: {connection: local}\n"


@dataclass(frozen=True)
class Row:
    """What came of one mistake; ``lacks``: words that are not in the line."""

    name: str
    did: str
    line: str
    code: int
    seconds: float
    lacks: tuple[str, ...]


def of_job(mistake: jobs.Mistake, folder: Path) -> Row:
    """Make a mistake in a job."""
    began = time.monotonic()
    try:
        factory, data, config = mistake.make()
        DistributedTrainer(model_factory=factory, data_loader=data, config=config).train(folder=folder, progress=False)
        line, code = "(it was trained)", 0
    except TrainingError as error:
        line, code = str(error), 1
    except Exception as error:  # noqa: BLE001 - whatever is shown is what is measured
        line, code = f"Traceback: {type(error).__name__}: {error}", 1
    return _row(mistake.name, mistake.did, line, code, time.monotonic() - began, mistake.words)


def of_command(command: Command, folder: Path) -> Row:
    """Make a mistake on the command line."""
    folder.mkdir()
    (folder / "inventory.yaml").write_text(INVENTORY)
    (folder / "my_job.py").write_text(command.file)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "hetero_tui", "train", *command.arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    seconds = time.monotonic() - began
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    line = ("Traceback: " if "Traceback (most" in done.stderr else "") + " ".join(said)
    row = _row(command.name, command.did, line, done.returncode, seconds, command.words)
    if done.returncode == command.code:
        return row
    return replace(row, lacks=(*row.lacks, f"exit code {command.code}"))


def _row(name: str, did: str, line: str, code: int, seconds: float, words: Sequence[str]) -> Row:
    lacks = [word for word in words if word not in line]
    lacks += ["an error"] if not code else []
    lacks += ["a line without a traceback"] if line.startswith("Traceback") else []
    return Row(name, did, line, code, seconds, tuple(lacks))


def rows(names: Sequence[str]) -> Iterator[Row]:
    """Make the mistakes of these names; all, if there are none."""
    with tempfile.TemporaryDirectory(prefix="mistakes") as place:
        for command in COMMANDS:
            if not names or command.name in names:
                yield of_command(command, Path(place) / command.name)
        chosen = [mistake for mistake in jobs.MISTAKES if not names or mistake.name in names]
        if chosen:
            with local_ray():
                for mistake in chosen:
                    yield of_job(mistake, Path(place) / mistake.name)


def markdown(found: Sequence[Row]) -> str:
    """The table of the documentation."""
    lines = ["| what the user did | what is shown | exit code | seconds |", "|---|---|---|---|"]
    lines += [f"| {row.did} | {row.line.replace('|', '/')[:400]} | {row.code} | {row.seconds:.1f} |" for row in found]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the mistakes and print; exit code 1 when something is unclear."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.user_errors", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names, with commas between (default: all)")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    found = []
    for row in rows(list(filter(None, options.only.split(",")))):
        found.append(row)
        flag = f"   UNCLEAR, lacks: {', '.join(row.lacks)}" if row.lacks else ""
        print(f"{row.name:24} exit {row.code}  {row.seconds:5.1f} s  {row.line}{flag}", flush=True)
    unclear = [row.name for row in found if row.lacks]
    print(f"{len(found)} mistakes, {len(unclear)} unclear{': ' if unclear else ''}{', '.join(unclear)}")
    if options.markdown:
        options.markdown.write_text(markdown(found) + "\n")
    return 1 if unclear or not found else 0


if __name__ == "__main__":
    sys.exit(main())
