"""Ray workers that start at once: forks of a process that has loaded torch, Ray and the engine, which takes seconds.

Ray starts a worker with the Python that it runs in itself. The nodes of the tests' cluster have :func:`stub` for it: a
small program that hands the worker's arguments, environment, folder and standard streams to the process that forks,
waits for the fork to end, and ends as it did. If it is killed, so is the fork. Whatever else Ray starts with its
Python, the stub becomes. A fork differs from a worker as Ray starts it in the loading alone. The tests of the lab, of
the demo, of the command line and of what ends a script have workers that Ray starts.

Ray reads some variables when it is loaded, so that is done with those of the first worker. They are the same for all
workers of a Ray but two, the number of their job and their raylet: the forks are workers of no job, as those that Ray
starts before it knows what they are for, and end with their raylet by other means.

``python -m tests.training.workers SOCKET MODULE ...`` is the process that forks.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from remote_agent import strategies

STUB = """#!{python} -IS
import json, os, socket, sys, time
words = sys.argv[1:]
if "default_worker.py" not in [os.path.basename(word) for word in words]:  # Ray's client server, its dashboard ...
    os.execv({python!r}, [{python!r}, *words])
with socket.socket(socket.AF_UNIX) as connection:
    ends = time.monotonic() + 60
    while not os.path.exists({socket!r}) and time.monotonic() < ends:
        time.sleep(0.01)  # it loads
    try:
        connection.connect({socket!r})
    except OSError:  # it is not there any more
        os.execv({python!r}, [{python!r}, *words])
    text = json.dumps([words, dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(text)
    code = connection.makefile().readline()
sys.exit(int(code or 1))
"""

MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_MMAP_MAX_": -4,
    "MALLOC_ARENA_MAX": -8,
}
"""Numbers of glibc's mallopt(3) for what it reads from the environment when a process starts."""

LOADED = (
    "ray._private.workers.default_worker",
    "remote_agent.training.server.actor",
    "remote_agent.training.worker.actor",
)
"""What the forks have loaded besides torch."""

NO_JOB = "ffffffff"
"""The number of a job for a worker that has none yet."""

START = "import runpy, sys; sys.executable = sys.argv.pop(1); {}"
"""Code that runs something as Python does, but for the Python that this starts others with."""


def ray(stub: Path) -> list[str]:
    """The command that is ``ray``."""
    return [sys.executable, "-c", START.format("from ray.scripts.scripts import main; main()"), str(stub)]


def script(stub: Path, file: str) -> list[str]:
    """The command that is ``python file``."""
    return [sys.executable, "-c", START.format(f"runpy.run_path({file!r}, None, '__main__')"), str(stub)]


def module(stub: Path, name: str) -> list[str]:
    """The command that is ``python -m name``."""
    return [sys.executable, "-c", START.format(f"runpy.run_module({name!r}, None, '__main__', True)"), str(stub)]


@contextlib.contextmanager
def forking(folder: Path, modules: Sequence[str] = ()) -> Iterator[Path]:
    """The stub: the Python to run one Ray with, so that its workers are forks.

    Args:
        folder: for the socket and the stub; its path is short.
        modules: what the workers have loaded besides torch, Ray and the engine.
    """
    where, stub = folder / "workers", folder / "python"
    stub.write_text(STUB.format(python=sys.executable, socket=str(where)))
    stub.chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.training.workers", str(where), *modules],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # as Ray has it for a worker without a CPU of its own
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield stub
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


# --- The process that forks ------------------------------------------------------------------------------------------


class _Worker(NamedTuple):
    """A worker that Ray wants to be started."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]


def main(where: Path, modules: Sequence[str]) -> None:
    """Fork for each connection, until stdin ends: then whoever started this is gone."""
    import safetensors.torch  # noqa: F401
    import torch.utils.data  # noqa: F401

    assert "ray" not in sys.modules
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    draft = where.with_name("workers-starting")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(draft))
        listening.listen(100)
        draft.rename(where)  # it answers
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            with connection:
                worker = _received(connection)
                if worker is None:
                    continue
                if "ray" not in sys.modules:
                    _load(worker.environment, modules)
                if os.fork() == 0:
                    listening.close()
                    _watch(connection, worker)
                for stream in worker.streams:
                    os.close(stream)


def _received(connection: socket.socket) -> _Worker | None:
    """What a stub has sent; None: it has ended."""
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size and (more := connection.recv(size - len(text))):
        text += more
    if len(head) < 8 or len(text) < size:
        return None
    words, environment, folder = json.loads(text)
    if Path(words[0]).name == "setup_worker.py":  # this is all that it does for a worker that has variables alone
        parser = argparse.ArgumentParser()
        parser.add_argument("--serialized-runtime-env-context", default="{}")
        parser.add_argument("--language")
        given, words = parser.parse_known_args(words[1:])
        environment |= json.loads(given.serialized_runtime_env_context).get("env_vars") or {}
    return _Worker(words, environment, folder, streams)


def _load(environment: dict[str, str], modules: Sequence[str]) -> None:
    """Load what the forks share, with the variables of the first of them."""
    os.environ.update(environment)
    os.environ["RAY_JOB_ID"] = NO_JOB
    os.environ["RAY_RAYLET_PID"] = str(os.getpid())  # :func:`_watch` looks at that of each worker
    for name in (*LOADED, *modules):
        importlib.import_module(name)
    for spec in strategies.SPECS.values():
        spec.engine()
    gc.freeze()  # the forks share these pages: a collection would write to them


def _watch(connection: socket.socket, worker: _Worker) -> None:
    """Fork the worker, and tell of its end; end it if its raylet or the stub ends. Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    raylet = os.pidfd_open(int(worker.environment["RAY_RAYLET_PID"]))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _work(worker)
    for stream in worker.streams:
        os.close(stream)
    ended = os.pidfd_open(pid)
    waited: list[int] = [ended, raylet, connection.fileno()]
    if ended not in select.select(waited, [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _work(worker: _Worker) -> None:
    """Become the worker. Never returns."""
    import numpy as np

    os.setpgid(0, 0)  # Ray kills the whole group of a worker that has ended
    for number, stream in enumerate(worker.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(worker.folder)
    os.environ.clear()
    os.environ.update(worker.environment)
    for name, number in MALLOPT.items():
        if name in os.environ:
            ctypes.CDLL(None).mallopt(number, min(int(os.environ[name]), (1 << 31) - 1))
    np.random.seed()  # Python's own is seeded anew by the fork
    sys.argv = worker.words
    runpy.run_path(worker.words[0], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
