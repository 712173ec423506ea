"""Optimizers do not load torch's compiler in a run's processes; a job that compiles its model gets it."""

from __future__ import annotations

import subprocess
import sys

from tests.training.loopback import ROOT

SCRIPT = """
import sys

import torch

from remote_agent.training.shared import without_compiler

without_compiler.install()


def step():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        (parameter * parameter).sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.46))


step()
assert "torch._dynamo.eval_frame" not in sys.modules, "an optimizer asks for more than the stand-in has"
layer = torch.nn.Linear(3, 2)
compiled = torch.compile(layer, backend="eager")
torch.testing.assert_close(compiled(torch.ones(1, 3)), layer(torch.ones(1, 3)))
assert torch._dynamo.utils.counters["frames"]["ok"] == 1, "it was not compiled"
assert sys.modules["torch._dynamo"] is torch._dynamo
step()
"""


def test_optimizers_step_without_the_compiler_and_who_compiles_gets_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
