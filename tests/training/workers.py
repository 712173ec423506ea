"""Ray workers that start fast: forks of one process that has loaded torch, which takes a core more than a second.

Ray starts a worker with the Python that it runs in itself. The nodes of the tests' cluster have :func:`stub` for it: a
small program that hands the worker's arguments, environment, folder and standard streams to the process that forks,
waits for the fork to end, and ends as it did. If it is killed, so is the fork. Whatever else Ray starts with its
Python, the stub becomes. A fork differs from a worker as Ray starts it in the loading alone. Ray itself is loaded by
the fork, as it reads its environment then. The tests of the lab, of the demo, of the command line and of what ends a
script have workers that Ray starts.

``python -m tests.training.workers SOCKET`` is the process that forks.
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
from collections.abc import Iterator
from pathlib import Path

STUB = """#!{python} -IS
import json, os, socket, sys
words = sys.argv[1:]
if "default_worker.py" not in [os.path.basename(word) for word in words]:  # Ray's client server, its dashboard ...
    os.execv({python!r}, [{python!r}, *words])
with socket.socket(socket.AF_UNIX) as connection:
    try:
        connection.connect({socket!r})
    except OSError:  # it is not there yet, or not any more
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

OF_RAY = ("google.protobuf.descriptor_pool", "jsonschema", "msgpack", "psutil", "requests", "yaml")
"""What Ray loads first of all: more than half of what loading it takes, and nothing in them depends on a process."""

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
def forking(folder: Path) -> Iterator[Path]:
    """The stub: the Python to run Ray with, so that its workers are forks.

    Args:
        folder: for the socket and the stub; its path is short.
    """
    where, stub = folder / "workers", folder / "python"
    stub.write_text(STUB.format(python=sys.executable, socket=str(where)))
    stub.chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.training.workers", str(where)],
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


def main(where: Path) -> None:
    """Fork for each connection, until stdin ends: then whoever started this is gone."""
    import safetensors.torch  # noqa: F401
    import torch.utils.data  # noqa: F401

    for name in OF_RAY:
        importlib.import_module(name)
    assert "ray" not in sys.modules
    gc.freeze()  # the forks share these pages: a collection would write to them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    draft = where.with_name("workers-starting")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(draft))
        listening.listen(100)
        draft.rename(where)  # it answers
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _watch(connection)
            connection.close()


def _watch(connection: socket.socket) -> None:
    """Fork the worker, and tell of its end; end it if the stub ends. Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        text += connection.recv(size - len(text))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _work(streams, *json.loads(text))
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(pid)
    waited: list[int] = [ended, connection.fileno()]
    if ended not in select.select(waited, [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _work(streams: list[int], words: list[str], environment: dict[str, str], folder: str) -> None:
    """Become the worker. Never returns."""
    import numpy as np

    os.setpgid(0, 0)  # Ray kills the whole group of a worker that has ended
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if Path(words[0]).name == "setup_worker.py":  # this is all that it does for a worker that has variables alone
        parser = argparse.ArgumentParser()
        parser.add_argument("--serialized-runtime-env-context", default="{}")
        parser.add_argument("--language")
        given, words = parser.parse_known_args(words[1:])
        os.environ.update(json.loads(given.serialized_runtime_env_context).get("env_vars") or {})
    for name, number in MALLOPT.items():
        if name in os.environ:
            ctypes.CDLL(None).mallopt(number, min(int(os.environ[name]), (1 << 31) - 1))
    np.random.seed()  # Python's own is seeded anew by the fork
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
