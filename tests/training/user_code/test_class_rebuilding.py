"""Classes of a job that a base class of the user's registers work on workers as where the file ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

FILE = """
from torch import nn

KINDS, MADE = {}, []

class Named:
    def __init_subclass__(cls, **others):
        super().__init_subclass__(**others)
        if cls.name in KINDS:
            raise ValueError("twice")
        KINDS[cls.name] = cls

class Given:
    def __init_subclass__(cls, *, kind, **others):
        super().__init_subclass__(**others)
        MADE.append((kind, cls))

class Small(Named):
    name = "small"

class Net(Given, nn.Module, kind="net"):
    def __init__(self):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(nn.Linear(1, 1).weight)

class Mine:
    def create_model(self):
        class Later(Small):
            name = "later"
        assert sorted(KINDS) == ["later", "small"] and KINDS["small"] is Small, KINDS
        (kind, model), = MADE
        assert kind == "net" and model is Net
        return model()
    def create_data(self):
        return []
"""

ON_THE_HEAD = """
import sys
from pathlib import Path
from remote_agent.training import job
made = job.load("own.py:Mine", Path(sys.argv[1]).parent)
Path(sys.argv[1]).write_bytes(job.dumps(made.factory))
"""

ON_A_WORKER = """
import sys
from pathlib import Path
from remote_agent.training import job
print(type(job.create_model(job.loads(Path(sys.argv[1]).read_bytes()), 0)).__name__)
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_registers_subclasses_does_it_once_with_what_the_file_gave_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FILE)
    run(ON_THE_HEAD, str(tmp_path / "job"))
    assert run(ON_A_WORKER, str(tmp_path / "job")) == "Net"
