"""What fits into memory is found without filling it, and memory that is full all the same is no end."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.training.worker.device import backend
from remote_agent.training.worker.device.memory import MIB, SIGNAL, Need, need, next_size

CPU = torch.device("cpu")
sizes = st.integers(1, 1 << 12)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 30), sizes, sizes)
def test_two_sizes_give_the_fixed_and_the_single_cost(fixed: int, each: int, one: int, other: int) -> None:
    found = need([(size, fixed + size * each) for size in (one, other)])
    if one == other:
        assert found is None
    else:
        assert found is not None
        assert found.fixed == pytest.approx(fixed, rel=1e-6, abs=1e4 * each * 1e-6)
        assert found.each == pytest.approx(each, rel=1e-9)


def test_noise_in_the_place_of_growth_gives_no_limit() -> None:
    assert need([(2, 1000), (16, 990)]) is None
    assert need([(2, 1000)]) is None


@given(st.integers(0, 1 << 36), st.integers(1, 1 << 28), st.integers(0, 1 << 36))
def test_the_most_that_fits_does_and_one_more_does_not(fixed: int, each: int, room: int) -> None:
    budget = fixed + room
    most = Need(fixed, each).most(budget)
    assert most == 1 or fixed + most * each <= budget
    assert fixed + (most + 1) * each > budget


@given(st.integers(0, 1 << 34), st.integers(0, 1 << 32), st.integers(1, 1 << 26), sizes, st.integers(1 << 20, 1 << 36))
def test_no_size_is_tried_that_would_not_fit(before: int, fixed: int, each: int, largest: int, room: int) -> None:
    budget = before + room
    points = [(size := min(2, largest), before + fixed + size * each)]
    while (size := next_size(points, before, budget, largest) or 0) > points[-1][0]:
        points.append((size, before + fixed + size * each))
        assert points[-1][1] <= budget
    assert points[-1][0] <= largest
    assert len(points) <= 14


def test_sizes_grow_until_the_growth_is_seen() -> None:
    assert next_size([(2, 5 * MIB)], 0, 100 * MIB, 1000) == 16
    assert next_size([(2, 5 * MIB), (16, 20 * MIB)], 0, 100 * MIB, 1000) == 64
    assert next_size([(2, 5 * MIB), (16, 20 * MIB)], 0, 100 * MIB, 40) == 40
    assert next_size([(2, 5 * MIB), (16, 60 * MIB)], 0, 100 * MIB, 1000) is None
    assert next_size([(2, 5 * MIB), (16, 6 * MIB + SIGNAL)], 0, 1000 * MIB, 1000) is None
    assert next_size([(2, 5 * MIB), (16, 20 * MIB)], 0, 1000 * MIB, 16) is None


def test_what_a_sample_takes_is_measured_on_this_computer(tmp_path: Path) -> None:
    taken = run(
        tmp_path,
        """
        tried = []

        def compute(size):
            tried.append(size)
            torch.ones(size * MIB // 4)  # a MiB for each sample

        limit = memory.find(torch.device("cpu"), compute, 2, lambda: 4096, 1 << 30)
        print(limit.each / MIB, limit.budget / MIB, limit.most, max(tried))
        """,
    )
    each, budget, most, largest = map(float, taken.split())
    assert 0.9 < each < 1.2
    assert 0.8 * budget < most < 1.2 * budget
    assert largest <= 256, "it was measured with little memory"


def test_a_limited_process_keeps_below_its_limit(tmp_path: Path) -> None:
    """The limit is found from a part of it, and a whole batch, which would be 3 GiB, is computed within it."""
    taken = run(
        tmp_path,
        LIMITED
        + """
        profiler = Profiler(computer, model, FlatTensors(model, CPU), CPU, np.arange(len(x)))
        measured = profiler.measure((2, 64), 0.0, 1024)  # 2 to 8 would grow by less than malloc's own
        found = computer.most
        computer(1, Slice.whole(np.arange(1024)))
        print(found, computer.most, *measured.notes)
        """,
    )
    found, kept, note = taken.split(maxsplit=2)
    assert int(found) == int(kept) < 512
    assert re.match(rf"at most {found} samples at a time: a sample takes [2-4]\.\d MiB, \d+ MiB may be used", note)


def test_memory_that_is_full_halves_the_parts_until_they_fit(tmp_path: Path) -> None:
    taken = run(
        tmp_path,
        LIMITED
        + """
        loss = computer(1, Slice.whole(np.arange(1024))).loss
        print(computer.reduced(), model.weight.grad.isfinite().all().item(), loss)
        """,
    )
    most, finite, _ = taken.split()
    assert 1 <= int(most) <= 512
    assert finite == "True"


@pytest.mark.parametrize(
    ("membership", "files", "rooms"),
    [
        ("0::/box\n", {"box/memory.max": "max", "box/memory.current": "5", "memory.max": "90"}, []),
        ("0::/box\n", {"box/memory.max": "100", "box/memory.current": "40"}, [60]),
        ("0::/a/box\n", {"a/memory.max": "70", "a/memory.current": "40", "memory.max": "max"}, [30]),
        ("0::/elsewhere\n", {"memory.max": "90", "memory.current": "40"}, [50]),
        (
            "4:memory:/box\n1:cpu:/\n",
            {"memory/memory.limit_in_bytes": "90", "memory/memory.usage_in_bytes": "20"},
            [70],
        ),
    ],
)
def test_the_limit_of_a_control_group_counts(
    tmp_path: Path, membership: str, files: dict[str, str], rooms: list[float]
) -> None:
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert list(backend.rooms_of_control_groups(tmp_path / "membership", tmp_path / "groups")) == rooms


def test_a_computer_without_control_groups_has_no_such_limit(tmp_path: Path) -> None:
    assert list(backend.rooms_of_control_groups(tmp_path / "none", tmp_path)) == []


LIMITED = """
        CPU = torch.device("cpu")
        model = torch.nn.Linear(1, 1)
        x = torch.zeros(1024, 1)

        def loss(model, batch):  # 2 MiB for each sample, kept for backward
            return (model(batch).expand(-1, MIB // 4) * 2.0).exp().mean()

        computer = SliceComputer(model, loss, x, CPU, 0)
        limit = psutil.Process().memory_info().vms + 512 * MIB
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


def run(folder: Path, source: str) -> str:
    """What a fresh process prints: its memory is its own."""
    head = """
        import resource
        import numpy as np
        import psutil
        import torch
        from remote_agent.training.worker.device import backend, memory
        from remote_agent.training.worker.device.compute import SliceComputer
        from remote_agent.training.shared.flat import FlatTensors
        from remote_agent.training.shared.messages import Slice
        from remote_agent.training.worker.device.memory import MIB
        from remote_agent.training.worker.device.profiling import Profiler
        torch.set_num_threads(1)
    """
    path = folder / "script.py"
    path.write_text(textwrap.dedent(head) + textwrap.dedent(source))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
