"""A user's own script with a ``DistributedTrainer`` in it, in a process and on a Ray of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.training import workers
from tests.training.loopback import ROOT

SCRIPT_S = 200.0

ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "RAY_AUTH_MODE": "disabled",
    "RAY_ADDRESS": "local",
    "RAY_prestart_worker_first_driver": "0",  # these have no environment of their own: our actors can't use them
}


def run_script(folder: Path, text: str, stub: Path | None = None) -> tuple[int, dict[str, Any]]:
    """Run ``text`` in ``folder``; its exit code, and the JSON document in the last line that it prints.

    With the ``stub`` of :mod:`tests.training.workers` its Ray's workers start at once.
    """
    (folder / "script.py").write_text(text)
    done = subprocess.run(
        workers.script(stub, "script.py") if stub else [sys.executable, "script.py"],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-3000:]
    return done.returncode, json.loads(lines[-1])
