"""Classes of a job that a base class of the user's registers work on workers as where the file ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

FILE = """
import abc, enum
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

class Meta(abc.ABCMeta):
    def __new__(kind, name, bases, given, **others):
        made = super().__new__(kind, name, bases, given)
        if bases:
            MADE.append((given["name"], others["size"], made))
        return made
    def __init__(made, name, bases, given, **others):
        super().__init__(name, bases, given)

class Abstract(metaclass=Meta):
    @abc.abstractmethod
    def made(self): ...

class Concrete(Abstract, size=3):
    name = "concrete"
    def made(self): return self.name

class Act(enum.Enum):
    RELU = "relu", 1
    GELU = "gelu", 2
    def __init__(self, label, scale):
        self.label, self.scale = label, scale

class Mine:
    act = Act.GELU
    def create_model(self):
        (name, size, made), = MADE[1:]
        assert (name, size, made().made()) == ("concrete", 3, "concrete") and made is Concrete
        class Part(Abstract, size=4):
            name = "part"
        assert MADE.pop()[:2] == ("part", 4) and MADE.pop()[2] is Concrete
        try:
            Part()
        except TypeError:
            pass
        else:
            raise AssertionError("it is abstract")
        assert self.act is Act(("gelu", 2)) and (self.act.label, Act.RELU.scale) == ("gelu", 1)
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


def test_what_registers_classes_does_it_once_with_what_the_file_gave_it_and_members_keep_attributes(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(FILE)
    run(ON_THE_HEAD, str(tmp_path / "job"))
    assert run(ON_A_WORKER, str(tmp_path / "job")) == "Net"
