"""Another program on the terminal while the app stands back: an editor, a shell on a machine."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import App, SuspendNotSupported


def run(app: App[Any], command: Sequence[str]) -> str:
    """Run a program on the app's terminal, and draw the app again; the answer says why that failed, or is empty."""
    try:
        with app.suspend():
            subprocess.run(list(command), check=False)
    except SuspendNotSupported:
        return "this terminal can't be handed to another program"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    app.refresh(layout=True)
    return ""


def editor(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The user's editor as a command's words."""
    words = environment.get("VISUAL") or environment.get("EDITOR") or "vi"
    try:
        return shlex.split(words)
    except ValueError:
        return [words]
