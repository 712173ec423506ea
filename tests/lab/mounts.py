"""What a machine of the lab sees of this computer's files: everything, except what a machine has to have for itself.

A machine has its own home folder, ``/tmp``, ``/run``, ``/dev/shm`` and ``/etc/hosts``. The Python that runs the tests
stays visible at its own path wherever it lies, because it stands in for the environment that a real machine would
have. This repository's packages do not: a host has only what the product sends it.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("hetero_tui", "remote_agent")
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/local/bin")


def script(
    *,
    folder: Path,
    home: Path,
    hostname: str,
    is_host: bool,
    has_python: bool = True,
    fresh_memory: bool = True,
    arrange: str = "",
) -> str:
    """A shell script that arranges a new mount and host name space and then runs its own arguments.

    Args:
        folder: The machine's folder, with ``home``, ``tmp``, ``empty`` and the file ``hosts`` in it.
        home: The login user's home folder, which the machine's own is laid over.
        hostname: The machine's name for itself.
        is_host: A host does not see this repository's packages; the laptop does.
        has_python: Whether any Python can be found on the machine.
        fresh_memory: ``/tmp``, ``/run`` and ``/dev/shm`` start empty and are gone with the machine. The laptop keeps
            its ``/tmp`` from one command to the next instead.
        arrange: Further commands, once all else is in place.
    """
    lines = ["set -eu", f"hostname {shlex.quote(hostname)}"]
    temporary = folder / "tmp"
    if fresh_memory:
        lines += [
            f"mount -t tmpfs -o mode=1777 tmpfs {_quoted(temporary)}",
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
            "mount -t tmpfs -o mode=755 tmpfs /run",
            "mkdir -m 755 /run/sshd",
        ]
    kept = _interpreter_folders() if has_python else ()
    lines += _lay_over(Path("/tmp"), temporary, kept)
    lines += _lay_over(home, folder / "home", kept)
    lines.append(f"mount --bind {_quoted(folder / 'hosts')} /etc/hosts")
    if is_host and has_python:
        lines += [f"mount --bind {_quoted(folder / 'empty')} {_quoted(REPOSITORY / name)}" for name in PACKAGES]
    if not has_python:
        lines += _hide_pythons(folder / "programs")
    lines += [arrange, 'cd "$HOME"', 'exec "$@"']
    return "\n".join(lines)


def _interpreter_folders() -> tuple[Path, ...]:
    """Folders that this Python needs, none of them inside another."""
    found = {Path(sys.prefix), Path(sys.base_prefix), REPOSITORY}
    return tuple(sorted(path for path in found if not any(other in path.parents for other in found)))


def _lay_over(target: Path, source: Path, kept: tuple[Path, ...]) -> Iterator[str]:
    """Show ``source`` at ``target``, with those of the ``kept`` folders that lie below ``target`` still in place."""
    for path in kept:
        if target in path.parents:
            inside = source / path.relative_to(target)
            yield f"mkdir -p {_quoted(inside)}"
            yield f"mount --bind {_quoted(path)} {_quoted(inside)}"
    yield f"mount --rbind {_quoted(source)} {_quoted(target)}"


def _hide_pythons(scratch: Path) -> Iterator[str]:
    """Show the computer's program folders with everything in them but Python."""
    for folder in _PROGRAM_FOLDERS:
        real, shown = scratch / folder[1:] / "real", scratch / folder[1:] / "shown"
        yield f"mkdir -p {_quoted(real)} {_quoted(shown)}"
        yield f"mount --bind {folder} {_quoted(real)}"
        yield f"ln -sf {_quoted(real)}/* {_quoted(shown)}/"
        yield f"rm -f {_quoted(shown)}/python* {_quoted(shown)}/pypy*"
        yield f"mount --rbind {_quoted(shown)} {folder}"


def _quoted(path: Path) -> str:
    return shlex.quote(os.fspath(path))
