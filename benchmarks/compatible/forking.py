"""Ray workers that start at once: forks of one process that has loaded torch, Ray and the engine.

Loading them takes each of a run's processes 2.6 s of a core, more than the rest of a small run. Ray starts a worker by
the command ``python setup_worker.py default_worker.py ...``; here its ``python`` is a script that hands arguments,
environment and descriptors to the process that forks, and waits. For benchmarks and tests alone.

``python -m benchmarks.compatible.forking SOCKET`` is the process that forks, until its input ends.
"""

from __future__ import annotations

import array
import contextlib
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
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

READY_S = 120.0

MODULES = (
    "ray._private.workers.default_worker",
    "ray._private.runtime_env.context",
    "remote_agent.training.worker.actor",
    "remote_agent.training.server.actor",
    "benchmarks.compatibility",
)
"""What the forks have loaded."""

_SCRIPT = """#!{python} -SEsI
import array, json, os, socket, sys
if len(sys.argv) < 2 or not sys.argv[1].endswith("setup_worker.py"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
connection = socket.socket(socket.AF_UNIX)
connection.connect({where!r})
ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
document = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode() + b"\\n"
sent = connection.sendmsg([document], ancillary)
connection.sendall(document[sent:])
while connection.recv(1):
    pass
"""


@contextlib.contextmanager
def forked_workers(folder: Path, modules: Sequence[str] = ()) -> Iterator[None]:
    """Within this, a Ray that is started here forks its workers.

    Args:
        folder: empty, its path is short.
        modules: what they have loaded besides torch, Ray and the engine.
    """
    where, script = folder / "forks", folder / "python"
    script.write_text(_SCRIPT.format(python=sys.executable, where=str(where)))
    script.chmod(0o700)
    command = [sys.executable, "-m", "benchmarks.compatible.forking", str(where), *modules]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    try:
        end = time.monotonic() + READY_S
        while not where.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the process that forks workers did not start")
            time.sleep(0.02)
        with mock.patch.object(sys, "executable", str(script)):
            yield
    finally:
        process.stdin.close()
        process.wait()


Command = tuple[list[str], dict[str, str], str]
"""Arguments, environment and folder of a process."""


def main(where: Path, modules: Sequence[str]) -> None:
    """Fork for each connection. What is needed is loaded at the first one: Ray reads its job's number then."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    loaded = False
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(where))
        listening.listen()
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            command, descriptors = _received(connection)
            if not loaded:
                os.environ.update(command[1])
                for name in (*MODULES, *modules):
                    importlib.import_module(name)
                gc.freeze()  # the forks share these pages: a collection would write to them
                loaded = True
            if os.fork() == 0:
                listening.close()
                _become(command, descriptors)
            connection.close()
            for descriptor in descriptors:
                os.close(descriptor)


def _received(connection: socket.socket) -> tuple[Command, array.array[int]]:
    """The command, and the descriptors of its input and outputs."""
    text, descriptors = b"", array.array("i")
    while not text.endswith(b"\n"):
        data, ancillary, _, _ = connection.recvmsg(1 << 16, socket.CMSG_LEN(12))
        text += data
        for _, _, sent in ancillary:
            descriptors.frombytes(sent)
    arguments, environment, folder = json.loads(text)
    return (arguments, environment, folder), descriptors


def _become(command: Command, descriptors: array.array[int]) -> None:
    """Become the worker that Ray's two scripts would make; the connection ends with this process. Never returns."""
    from ray._private.runtime_env.context import RuntimeEnvContext

    os.setsid()  # Ray ends a worker with its whole group
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    arguments, environment, folder = command
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    context, kind = "--serialized-runtime-env-context=", "--language="
    for entry in arguments:
        if entry.startswith(context):
            os.environ.update(RuntimeEnvContext.deserialize(entry.removeprefix(context) or "{}").env_vars)
    sys.argv = [entry for entry in arguments[1:] if not entry.startswith((context, kind))]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
