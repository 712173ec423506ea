"""The peers' own environment: ``python -m benchmarks.peers.environment`` makes it, the benchmarks find it.

It holds the extras ``node`` and ``bench`` (the same torch, torchft, hivemind, matplotlib) and lies outside of the
repository, where the lab's hosts see it: ``/var/tmp/hetero-tui-benchmarks/environment``, or where
``HETERO_TUI_BENCH_ENVIRONMENT`` says. The project's own environment stays as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
VARIABLE = "HETERO_TUI_BENCH_ENVIRONMENT"
COMMAND = "python -m benchmarks.peers.environment"

CHECK_DEADLINE = 60.0
INSTALL_DEADLINE = 1800.0


def folder() -> Path:
    """Where the environment is, or would be."""
    return Path(os.environ.get(VARIABLE) or "/var/tmp/hetero-tui-benchmarks/environment")  # noqa: S108 - shown to hosts


def python_with(package: str) -> tuple[str, str]:
    """A Python that can run a peer, and why there is none.

    Args:
        package: what the peer imports beside torch; "" for a peer that this very Python can run.

    Returns:
        Its path and "", or "" and the reason in words.
    """
    if not package:
        return sys.executable, ""
    python = folder() / "bin/python"
    if not python.exists():
        return "", f"not installed: run {COMMAND}"
    check = [str(python), "-c", f"import torch, {package}"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=CHECK_DEADLINE)
    if done.returncode:
        return "", f"{package} can't be imported: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
    return str(python), ""


def main() -> int:
    """Make the environment, or bring it up to date; returns pip's exit code."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["optional-dependencies"]["node"], *project["optional-dependencies"]["bench"]]
    python = folder() / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder())], check=True, timeout=INSTALL_DEADLINE)
    install = [str(python), "-m", "pip", "install", "-c", str(REPOSITORY / "constraints.txt"), *wanted]
    print(f"installing {', '.join(wanted)} into {folder()}", file=sys.stderr)
    return subprocess.run(install, timeout=INSTALL_DEADLINE).returncode


if __name__ == "__main__":
    sys.exit(main())
