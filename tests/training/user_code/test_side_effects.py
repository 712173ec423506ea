"""What a job's file does beside its definitions holds on workers as well, though they never run the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

FILE = """
import functools, os, torch
from torch import nn
from torch.nn import functional

gelu, forward = functional.gelu, nn.Linear.forward

def louder(x):
    return 10 * gelu(x)

def doubled(self, x):
    return 2 * forward(self, x)

class Zero(nn.Module):
    def forward(self, x):
        return 0 * x

functional.gelu = louder
nn.Linear.forward = doubled
nn.Tanh = Zero
functools._CacheInfo.share = lambda self: self.hits / 4  # named otherwise where it is defined
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
torch.set_default_dtype(torch.float64)
os.environ["OF_THE_FILE"] = "set"
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
os.environ.pop("LEFT_OUT", None)

class Mine:
    def create_model(self):
        return nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    def create_data(self):
        return []
"""

ON_A_WORKER = """
import functools, os, sys, torch
from pathlib import Path
from remote_agent.training import job
before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
factory = job.loads(Path(sys.argv[1]).read_bytes())
factory = job.loads(Path(sys.argv[1]).read_bytes())  # as when a process was warmed up: the patches do not add up
x = torch.ones(1)
model = job.create_model(factory, 0)
print(float(torch.nn.functional.gelu(x)), float(model(x)))
linear = torch.nn.Linear(1, 1)
print(float(linear(x)) == 2 * float(linear.weight + linear.bias))
print(functools._CacheInfo(1, 2, 3, 4).share() if hasattr(functools._CacheInfo, "share") else None)
print(before, torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, x.dtype)
print(os.environ.get("OF_THE_FILE"), os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("LEFT_OUT"))
"""

ON_THE_HEAD = """
import sys
from pathlib import Path
from remote_agent.training import job
made = job.load("own.py:Mine", Path(sys.argv[1]).parent)
made.factory.create_model()
Path(sys.argv[1]).write_bytes(job.dumps(made.factory))
"""


def run(code: str, *arguments: str) -> list[str]:
    environment = {"PATH": "/usr/bin:/bin", "LEFT_OUT": "of the host", "CUDA_VISIBLE_DEVICES": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_patches_of_libraries_flags_and_environment_hold_on_workers(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FILE)
    run(ON_THE_HEAD, str(tmp_path / "job"))
    gelu, linear, share, flags, environment = run(ON_A_WORKER, str(tmp_path / "job"))
    assert gelu.split()[0].startswith("8.413")  # 10 * gelu(1)
    assert gelu.split()[1] in ("0.0", "-0.0")
    assert linear == "True"
    assert share == "0.25"
    assert flags == "('highest', False) high True torch.float64"
    assert environment == "set 7 None"


def test_what_create_model_replaces_is_left_to_create_model(tmp_path: Path) -> None:
    """Every worker calls it: what it wraps would be wrapped twice."""
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "from torch.nn import functional\n"
        "class Mine:\n"
        "    def create_model(self):\n"
        "        gelu = functional.gelu\n"
        "        functional.gelu = lambda x: 10 * gelu(x)\n"
        "        return nn.Linear(1, 1)\n"
        "    def create_data(self):\n"
        "        return []\n"
    )
    run(ON_THE_HEAD, str(tmp_path / "job"))
    assert run(ON_A_WORKER, str(tmp_path / "job"))[0].startswith("8.413")


def test_nothing_is_noted_of_a_job_that_replaces_nothing(tmp_path: Path) -> None:
    code = (
        "import torch, ray, numpy, remote_agent.training, remote_agent.training.coordinator.engine, sys, time\n"
        "from remote_agent.training.user_code import side_effects\n"
        "side_effects.note_patches()\n"
        "print(side_effects.patches())\n"
    )
    assert run(code) == ["()"]
