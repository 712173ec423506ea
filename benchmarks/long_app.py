"""Whether the laptop's memory stays flat while it shows a run of thousands of tiny steps.

``python -m benchmarks.long_app [--steps N] [--csv FILE]``

Three hosts of the lab (``tests/lab``), the product from ``up`` to ``down``: on its laptop the app on a terminal of
120x40 cells, and ``train --json`` beside it, both following the run to its end. Their resident memory is read and
judged as :mod:`benchmarks.long_run` does it with the processes on the hosts. That the app has shown the run is seen by
what it wrote to its terminal meanwhile. Linux and root.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil

from benchmarks import long_run
from benchmarks.faulty import stage
from benchmarks.faulty.stage import Stage
from benchmarks.long_run import Series
from remote_agent.protocol import RunFinished, Step
from tests.lab.following import END_S, Following, RunError
from tests.lab.network import LabError
from tests.lab.product import setting

COLUMNS, LINES = 120, 40
SECONDS_A_STEP = 0.1
"""Most that a step may take on average, for the run's deadline."""

ON_A_TERMINAL = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"


class App:
    """``hetero-tui`` on a terminal of the laptop; a context manager, which ends it.

    Attributes:
        process: the app's own.
        written: bytes that it has written to its terminal.
    """

    def __init__(self, fleet: Stage) -> None:
        product = fleet.product
        self._terminal = product.laptop.popen(
            [sys.executable, "-c", ON_A_TERMINAL, *product.command()],
            TERM="xterm-256color",
            COLUMNS=COLUMNS,
            LINES=LINES,
        )
        assert self._terminal.stdout is not None
        self.written = 0
        self._reader = threading.Thread(target=self._read, args=(self._terminal.stdout,), daemon=True)
        self._reader.start()
        self.process = self._child()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self._terminal.wait(END_S)
        self._reader.join(END_S)

    def _child(self) -> psutil.Process:
        terminal, end = psutil.Process(self._terminal.pid), time.monotonic() + END_S
        while not (children := terminal.children()):
            if self._terminal.poll() is not None or time.monotonic() > end:
                raise RunError("the app did not start")
            time.sleep(0.05)
        return children[0]

    def _read(self, pipe: IO[str]) -> None:
        while said := pipe.read(4096):
            self.written += len(said)


def measure(fleet: Stage, steps: int) -> tuple[list[Series], float]:
    """One run of ``steps`` steps: what the laptop's processes take, and the bytes a step that the app wrote.

    Raises:
        RunError: the run or the app failed.
    """
    settings = {"num_iterations": steps, "batch_size": long_run.BATCH, "checkpoint_every": max(1, steps // 10)}
    with Following(fleet.product, "train", f"{long_run.JOB}:Tiny", *setting(settings)) as train:
        train.until(Step, stage.STARTED_S)
        with App(fleet) as app:
            processes = {"app": app.process, "train --json": psutil.Process(train.pid)}
            over = threading.Event()
            found: list[Series] = []
            watching = threading.Thread(target=lambda: found.extend(long_run.watch(processes, over.wait)), daemon=True)
            watching.start()
            try:
                finished = train.until(RunFinished, steps * SECONDS_A_STEP + stage.STOP_S)
            finally:
                over.set()
                watching.join(END_S)
            if not app.process.is_running():
                raise RunError("the app ended before the run")
            return found, app.written / finished.steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 when something is not flat."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_app", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=long_run.STEPS, help=f"default: {long_run.STEPS}")
    parser.add_argument("--csv", type=Path, help="write what was read to this file")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        with stage.opened(3) as fleet:
            series, written = measure(fleet, options.steps)
    except (LabError, RunError) as error:
        print(f"benchmarks.long_app: {error}", file=sys.stderr)
        return 1
    print("\n".join((long_run.HEAD, *long_run.lines("laptop", series))))
    print(
        f"{options.steps:,} steps, {written:.0f} bytes a step to the app's terminal; {time.monotonic() - began:.0f} s"
    )
    if options.csv:
        long_run.write(options.csv, {"laptop": series})
    return 0 if all(each.flat for each in series) else 1


if __name__ == "__main__":
    sys.exit(main())
