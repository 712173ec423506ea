"""Do the tests notice when what is decided goes wrong? Pure modules are broken on purpose, one small change at a time.

    python -m benchmarks.mutation                 # every module of the table below, every change
    python -m benchmarks.mutation policy shares   # those
    python -m benchmarks.mutation --most 40       # so many changes of each

A change is killed when a test of the module fails with it, or no longer ends. Changes that lived are listed with their
line: each is a test that is lacking, or a change that means the same.

A change costs tens of milliseconds: the tests of a module are collected once, in one process; which functions each of
them calls is noted once; for each change that process forks, and the fork puts the changed code into the function's
place and runs the tests that call it, the likeliest first, until one fails. What runs at import stays as it is.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn

import hypothesis
import pytest

from benchmarks.mutants import Change, changes_of, compiled, first_line, outermost

ROOT = Path(__file__).resolve().parent.parent

CPU_S = 5
"""Processor time of a change, beside four times what its tests take without one: tests that no longer end fail."""

WALL_S = 120.0
"""Time for a change's tests, whatever they do: some may wait for what no longer comes."""

MEMORY_BYTES = 2 << 30
"""That a changed loop may fill, beside what is there before."""

PLANNING = "tests/agent/planning"
ENGINE = "remote_agent/training"
COORDINATOR, ITS_TESTS = f"{ENGINE}/coordinator", "tests/training/coordinator"
FOLD = ("tests/test_fold.py", "tests/test_narration.py")

MODULES = {
    # What is decided before a run, on the laptop and in the coordinator.
    **{
        name: (f"remote_agent/planning/{name}.py", tuple(f"{PLANNING}/test_{each}.py" for each in tests.split()))
        for name, tests in (
            ("blocks", "blocks"),
            ("channels", "exchange"),
            ("choice", "choice_by_hand"),
            ("cuts", "cuts"),
            ("exchange", "exchange simulator"),
            ("likely_cuts", "likely_cuts"),
            ("media", "media"),
            ("pipeline", "pipeline"),
            ("served_step", "served_step simulator predictions"),
            ("sharding", "sharding"),
            ("shares", "shares"),
            ("simulator", "simulator predictions"),
            ("sites", "sites"),
            ("stage_flow", "stage_flow"),
            ("units", "units"),
        )
    },
    **{
        name: (
            f"remote_agent/planning/{name}.py",
            tuple(f"{PLANNING}/test_{each}.py" for each in ("limits", "predictions", "sharding", "survey", "verdicts")),
        )
        for name in ("limits", "survey", "verdicts", "ways")
    },
    **{
        name: (f"hetero_tui/planning/{name}.py", (f"tests/planning/test_{name}.py",))
        for name in ("builds", "cluster", "cut_report", "failover", "reach", "what_if")
    },
    **{
        name: (f"hetero_tui/planning/{name}.py", (f"tests/planning/test_{name}.py", "tests/planning/test_what_if.py"))
        for name in ("catalogue", "fleet_file", "plan_report")
    },
    # What is decided during a run.
    "policy": (f"{COORDINATOR}/recovery/policy.py", (f"{ITS_TESTS}/recovery/test_policy.py",)),
    "copy_interval": (f"{COORDINATOR}/recovery/copy_interval.py", (f"{ITS_TESTS}/recovery/test_copy_interval.py",)),
    "culprit": (f"{COORDINATOR}/processes/culprit.py", (f"{ITS_TESTS}/processes/test_culprit.py",)),
    "balance": (
        f"{COORDINATOR}/plan/balance.py",
        (f"{ITS_TESTS}/plan/test_balance.py", f"{ITS_TESTS}/test_share_balancer.py"),
    ),
    "benched": (f"{COORDINATOR}/plan/benched.py", (f"{ITS_TESTS}/plan",)),
    "run_plan": (f"{COORDINATOR}/plan/run_plan.py", (f"{ITS_TESTS}/plan",)),
    "share_balancer": (f"{COORDINATOR}/share_balancer.py", (f"{ITS_TESTS}/test_share_balancer.py",)),
    "findings_of_runs": ("remote_agent/training/shared/findings.py", ("tests/training/shared/test_findings.py",)),
    "job_fingerprint": (
        "remote_agent/training/shared/job_fingerprint.py",
        ("tests/training/shared/test_job_fingerprint.py",),
    ),
    "search": ("remote_agent/search.py", ("tests/agent/test_search.py",)),
    "settings": ("remote_agent/settings.py", ("tests/test_settings.py", "tests/test_job_settings.py")),
    "goals": ("remote_agent/goals.py", ("tests/test_goals.py",)),
    "kinds": ("remote_agent/kinds.py", ("tests/test_settings.py", "tests/test_job_settings.py")),
    "checkpoint_timer": (
        f"{COORDINATOR}/recovery/checkpoint_timer.py",
        (f"{ITS_TESTS}/recovery/test_checkpoint_timer.py",),
    ),
    "worker_status": (
        f"{COORDINATOR}/recovery/takeover/worker_status.py",
        (f"{ITS_TESTS}/recovery/takeover/test_worker_status.py",),
    ),
    # Which samples count, and where: exactness.
    **{
        name: (f"{ENGINE}/data/{name}.py", tuple(f"tests/training/data/test_{each}.py" for each in tests.split()))
        for name, tests in (("order", "samplers record"), ("extent", "extent samplers record"), ("record", "record"))
    },
    "layout": (f"{ENGINE}/wire/layout.py", ("tests/training/wire/test_layout.py",)),
    "comparing": (f"{ENGINE}/worker/device/comparing.py", ("tests/training/worker/device/test_comparing.py",)),
    "schedule": ("remote_agent/training/shared/schedule.py", ("tests/training/shared/test_schedule.py",)),
    "assignments": ("remote_agent/training/worker/assignments.py", ("tests/training/worker/test_assignments.py",)),
    # What a user sees.
    "fold": ("hetero_tui/fold.py", FOLD),
    "run_fold": ("hetero_tui/run_fold.py", ("tests/test_run_fold.py", *FOLD)),
    "faults": ("hetero_tui/faults.py", ("tests/test_faults_of_runs.py", *FOLD)),
    "answers": ("hetero_tui/answers.py", ("tests/test_answers.py",)),
    "facts": (
        "hetero_tui/facts.py",
        ("tests/test_facts.py", "tests/fleet/test_preflight.py", "tests/test_device_kinds.py", "tests/planning"),
    ),
    "findings": ("hetero_tui/fleet/findings.py", ("tests/fleet/test_check.py",)),
    "preflight": ("hetero_tui/fleet/preflight.py", ("tests/fleet/test_preflight.py",)),
    "host_keys": ("hetero_tui/transport/host_keys.py", ("tests/transport/test_host_keys.py",)),
    "figures": ("hetero_tui/reporting/figures.py", ("tests/reporting",)),
    **{
        name: (f"hetero_tui/ui/{name}.py", (f"tests/ui/test_{name}.py",))
        for name in ("arrangement", "columns", "format")
    },
    "guards": ("hetero_tui/ui/guards.py", ("tests/ui/test_guards.py", "tests/ui/test_sentences.py")),
    "text": ("hetero_tui/text.py", ("tests/test_text.py",)),
    "sweeps": ("hetero_tui/runs/sweep.py", ("tests/runs/test_sweep.py",)),
}
"""Names of modules that decide or parse, without I/O: the file, and the tests that are its own. What only makes text or
pictures of what was decided is left out: accepted pictures hold that (``tests/ui/test_snapshots.py``)."""


@dataclass
class Measured:
    """What the tests do without any change.

    Attributes:
        calls: of each test (by its number) the functions that it calls, by their first lines.
        seconds: that each test takes, of the clock.
        cpu_s: of processor time.
        failed: the names of tests that fail.
    """

    calls: list[list[int]]
    seconds: list[float]
    cpu_s: list[float]
    failed: list[str]


class Breaking:
    """A plugin of pytest: instead of running the tests it has collected it breaks a module in forks that run them."""

    def __init__(self, file: str, most: int, seed: int, lanes: int) -> None:
        self._path, self._lanes = str(ROOT / file), lanes
        self._source = Path(self._path).read_text(encoding="utf-8")
        every = changes_of(self._source)
        chosen = every if len(every) <= most else random.Random(seed).sample(every, most)  # noqa: S311 - to repeat
        self._changes = sorted(chosen, key=lambda change: change.line)
        self._kills = Counter[tuple[int, int]]()  # by function and test: what killed there before is tried first
        self.tried, self.lived, self.failed = len(self._changes), list[str](), list[str]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        measured = self._measured(session)
        self.failed = measured.failed
        if measured.failed:
            return True
        functions = self._functions()
        waiting, running = list(reversed(self._changes)), dict[int, tuple[int, Change, float]]()
        kills = self._kills
        while waiting or running:
            while waiting and len(running) < self._lanes:
                change = waiting.pop()
                numbers = [number for number, calls in enumerate(measured.calls) if change.function in calls]
                if not numbers:
                    self.lived.append(f"{change.line}: {change.what}  (no test calls it)")
                    continue
                numbers.sort(key=lambda number: measured.seconds[number] / (1 + 10 * kills[change.function, number]))
                limit_s = CPU_S + 4 * sum(measured.cpu_s[number] for number in numbers)
                wall_s = WALL_S + 4 * sum(measured.seconds[number] for number in numbers)
                pid, pipe = _fork(lambda answer: self._try(session, change, functions, numbers, int(limit_s), answer))  # noqa: B023
                running[pipe] = (pid, change, time.monotonic() + wall_s)
            self._end_one(running)
        return True

    def _end_one(self, running: dict[int, tuple[int, Change, float]]) -> None:
        """Wait until a fork has ended, or end those that take too long."""
        if not running:
            return
        wait_s = min(deadline for _, _, deadline in running.values()) - time.monotonic()
        ended = select.select(list(running), [], [], max(0.0, wait_s))[0]
        for pipe in ended or [pipe for pipe, (_, _, deadline) in running.items() if deadline <= time.monotonic()]:
            pid, change, _ = running.pop(pipe)
            with suppress(ProcessLookupError):
                if not ended:
                    os.kill(pid, signal.SIGKILL)
            killer = os.read(pipe, 20) if ended else b""
            os.close(pipe)
            if killer:
                self._kills[change.function, int(killer)] += 1
            if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
                self.lived.append(f"{change.line}: {change.what}")

    def _measured(self, session: pytest.Session) -> Measured:
        """Run every test once, in a fork, and see which functions of the module it calls."""
        tree = compile(self._source, self._path, "exec", flags=0x400, dont_inherit=True)  # PyCF_ONLY_AST
        spans = [(first_line(each), each.end_lineno or 0) for each in outermost(tree)]  # type: ignore[arg-type]
        owner = {line: first for first, last in spans for line in range(first, last + 1)}

        def measure(answer: int) -> int:
            found, failed, loaded = list[tuple[list[int], float, float]](), list[str](), set(sys.modules)
            for item in session.items:
                called = set[int]()

                def note(frame: FrameType, event: str, _: Any, called: set[int] = called) -> None:
                    if event == "call" and frame.f_code.co_filename == self._path:
                        called.add(owner.get(frame.f_lineno, 0))

                began, used, failures = time.monotonic(), time.process_time(), session.testsfailed
                threading.settrace(note)
                sys.settrace(note)
                _run(session, [item])
                sys.settrace(None)
                found.append((sorted(called), time.monotonic() - began, time.process_time() - used))
                if session.testsfailed > failures:
                    failed.append(item.nodeid)
            with os.fdopen(answer, "w", encoding="utf-8") as stream:
                json.dump([found, failed, [name for name in sys.modules if name not in loaded]], stream)
            return 0

        pid, pipe = _fork(measure)
        with os.fdopen(pipe, "rb") as stream:
            text = stream.read()
        os.waitpid(pid, 0)
        found, failed, loaded = json.loads(text) if text else ([], ["the tests ended their process"], [])
        for name in loaded:  # what tests load when they run, so that not each fork does
            with suppress(Exception):
                importlib.import_module(name)
        calls, seconds, cpu_s = (list(each) for each in zip(*found, strict=True)) if found else ([], [], [])
        return Measured(calls, seconds, cpu_s, failed)

    def _functions(self) -> dict[tuple[str, int], list[FunctionType]]:
        """The module's functions that there are now, whoever holds them, by name and first line."""
        found = dict[tuple[str, int], list[FunctionType]]()
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename == self._path:
                found.setdefault((each.__code__.co_qualname, each.__code__.co_firstlineno), []).append(each)
        return found

    def _try(
        self,
        session: pytest.Session,
        change: Change,
        functions: dict[tuple[str, int], list[FunctionType]],
        numbers: list[int],
        limit_s: int,
        answer: int,
    ) -> int:
        """In the fork: break the module, run the tests; 0 if none of them notices."""
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform == "linux":
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES,) * 2)
        broken: dict[tuple[str, int], CodeType] = compiled(self._source, self._path, change)
        for key in functions.keys() & broken.keys():
            for function in functions[key]:
                function.__code__ = broken[key]
        killer = _run(session, [session.items[number] for number in numbers])
        if killer is None:
            return 0
        os.write(answer, str(session.items.index(killer)).encode())
        return 1


def _run(session: pytest.Session, items: list[pytest.Item]) -> pytest.Item | None:
    """Run tests until one fails, which is the answer."""
    before = session.testsfailed
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed > before:
            return item
    return None


def _fork(work: Callable[[int], int]) -> tuple[int, int]:
    """A fork that does something and ends with its answer, silent; its PID, and a pipe that closes with it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = work(writing)
    finally:
        os._exit(code)


def _of_module(name: str, most: int, seed: int, lanes: int, answer: Path) -> NoReturn:
    """In a process of its own, in which nothing of the product is loaded: break the module; its line as JSON."""
    file, tests = MODULES[name]
    slow = [hypothesis.HealthCheck.too_slow]
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # a failure is enough, however large it is
    hypothesis.settings.register_profile(
        "mutation", derandomize=True, deadline=None, suppress_health_check=slow, phases=phases
    )
    os.environ["HYPOTHESIS_PROFILE"] = "mutation"
    breaking = Breaking(file, most, seed, lanes)
    words = ["-q", "-p", "no:cacheprovider", "--capture=no", "--timeout=0", "-m", "not ray and not lab", *tests]
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    pytest.main(words, plugins=[breaking])
    answer.write_text(json.dumps([breaking.tried, breaking.lived, breaking.failed]), encoding="utf-8")
    os._exit(0)


def main() -> None:
    """Break what is named, and print what lived, then the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; default: all")
    parser.add_argument("--most", type=int, default=10_000, help="changes of each module, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=2, help="how many are tried at once")
    given = parser.parse_args()
    if unknown := set(given.modules) - set(MODULES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    os.chdir(ROOT)
    rows = list[tuple[str, int, int]]()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in given.modules or MODULES:
            answer = Path(folder) / name
            pid = os.fork()
            if pid == 0:
                _of_module(name, given.most, given.seed, given.lanes, answer)
            os.waitpid(pid, 0)
            tried, lived, failed = (
                json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else (0, [], [name])
            )
            if failed:
                sys.exit(f"{name}: these tests fail without any change: {', '.join(failed)}")
            rows.append((name, tried, tried - len(lived)))
            print(f"{name}: {tried - len(lived)} of {tried} killed", flush=True)
            for line in sorted(lived, key=lambda each: int(each.partition(":")[0])):
                print(f"  {MODULES[name][0]}:{line}", flush=True)
    rows.append(("all", sum(tried for _, tried, _ in rows), sum(killed for _, _, killed in rows)))
    print("\n| module | changes | killed | |\n|---|---|---|---|")
    for name, tried, killed in rows:
        print(f"| `{name}` | {tried} | {killed} | {killed / max(1, tried):.0%} |")


if __name__ == "__main__":
    main()
