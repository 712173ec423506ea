"""A machine's node through its commands, with real Ray on loopback addresses: what `up` and `down` rely on."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from remote_agent import runs
from remote_agent.host import layout, node, process_table, processes, ray_command, supervision, teardown
from remote_agent.protocol import NodeReport, NodeSpec, StopReport, decode, encode
from tests.specs import give_certificate, node_spec, write_run

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="macOS has one loopback address")
FIRST = supervision.Supervision(phase=supervision.WATCHING, since=0.0)
TOKEN = secrets.token_hex(32)


def _free_port() -> int:
    """A port for the head that lies outside Ray's worker ports (10002-19999)."""
    for port in range(6500, 6600):
        with socket.socket() as candidate:
            try:
                candidate.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., NodeSpec]]:
    """Make the folder and the specification of one machine, with its secrets in place as the laptop leaves them."""
    folders: list[Path] = []

    def make(host: str, role: str, address: str, port: int, *, short: bool = False) -> NodeSpec:
        base = Path(tempfile.mkdtemp(prefix="ht")) if short else tmp_path / "a-long-name-for-the-home-of-a-host"
        folder = base / host
        folder.mkdir(mode=0o700, parents=True)
        folders.append(folder)
        processes.write_private(layout.token_path(folder), TOKEN)
        places = {"folder": str(folder), "node_address": address, "head_address": "127.0.0.2", "gcs_port": port}
        spec = node_spec(host, role, cluster="test", labels={"tier": "test"}, cpus=1, **places)
        give_certificate(spec)
        return spec

    yield make
    for folder in folders:
        processes.stop_marked(folder, 1)
        shutil.rmtree(ray_command.short_folder(folder), ignore_errors=True)
        if not folder.is_relative_to(tmp_path):
            shutil.rmtree(folder.parent, ignore_errors=True)


@pytest.fixture
def start(agent) -> Callable[[NodeSpec], NodeReport]:
    def run(spec: NodeSpec) -> NodeReport:
        done = agent("host.node", "start", stdin=encode(spec) + "\n", seconds=150)
        report = decode(NodeReport, done.stdout)
        assert done.returncode == (1 if report.state == "failed" else 0), done.stderr
        return report

    return run


@pytest.fixture
def stop(agent) -> Callable[[NodeSpec], StopReport]:
    def run(spec: NodeSpec) -> StopReport:
        done = agent("host.node", "stop", "--folder", spec.folder, "--run-grace", "2")
        report = decode(StopReport, done.stdout)
        assert done.returncode == (1 if report.leftovers else 0), done.stderr
        return report

    return run


def _listening(folder: Path) -> set[tuple[str, int]]:
    """What the cluster's processes listen on."""
    pids = {process.pid for process in process_table.find_marked(folder)}
    return {
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid in pids
    }


def _assert_nothing_left(spec: NodeSpec) -> None:
    folder = Path(spec.folder)
    assert process_table.find_marked(folder) == ()
    assert not folder.exists() or [path.name for path in folder.iterdir()] == ["logs"]
    assert not ray_command.short_folder(folder).exists()


@linux_only
@pytest.mark.ray
def test_a_machine_that_is_being_taken_down_has_no_node_that_anything_may_be_built_on(
    machine: Callable[..., NodeSpec],
) -> None:
    spec = machine("a", "head", "127.0.0.2", 6500)
    folder = Path(spec.folder)
    processes.write_private(layout.spec_path(folder), encode(spec))
    assert node.status(folder).spec == spec
    layout.stop_flag(folder).touch()
    assert (node.status(folder).state, node.status(folder).spec) == ("stopped", None)


@pytest.mark.long
def test_a_cluster_of_two_machines_comes_up_keeps_together_and_goes_without_a_trace(
    machine, start, stop, agent, tmp_path, wait_until
):
    port = _free_port()
    head = machine("mercer", "head", "127.0.0.2", port, short=True)
    worker = machine("crosby", "worker", "127.0.0.3", port)
    other_home = Path(tempfile.mkdtemp(prefix="ho"))
    other_log = (tmp_path / "other.log").open("wb")
    other = subprocess.Popen(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--include-dashboard=false"),
            *("--node-ip-address=127.0.0.9", f"--port={port + 1}", f"--temp-dir={other_home}/ray", "--num-cpus=1"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=other_log,
        stderr=other_log,
        env=os.environ | {"RAY_AUTH_MODE": "disabled"},
        start_new_session=True,
    )
    try:
        with ThreadPoolExecutor(2) as both:
            head_report, worker_report = both.map(start, (head, worker))
        assert (head_report.state, head_report.cause) == ("running", "")
        assert (worker_report.state, worker_report.cause) == ("running", "")

        # Each node has its own folder, its token by file only, and no port that gives figures to the network.
        assert (Path(head.folder) / "ray").is_dir()
        assert ray_command.short_folder(Path(worker.folder)).stat().st_mode & 0o777 == 0o700
        for spec in (head, worker):
            assert TOKEN not in (Path(spec.folder) / "logs" / "ray.log").read_text()
            for process in process_table.find_marked(Path(spec.folder)):
                for part in ("cmdline", "environ"):
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
                        assert TOKEN not in Path(f"/proc/{process.pid}/{part}").read_text()
        public = [entry for entry in _listening(Path(head.folder)) if entry[0] in {"0.0.0.0", "::"}]
        assert len(public) == 3, "the GCS and the raylet's two, each under the token; metrics are off"

        again = start(head)
        assert (again.already, again.pid) == (True, head_report.pid)
        status = decode(NodeReport, agent("host.node", "status", "--folder", worker.folder).stdout)
        assert (status.state, status.pid, status.spec) == ("running", worker_report.pid, worker)

        # A node whose Ray was killed is back by itself, without what the old one left; `up` has nothing to do.
        assert worker_report.pid is not None
        os.kill(worker_report.pid, signal.SIGKILL)
        worker_folder = Path(worker.folder)
        wait_until(lambda: (supervision.read(worker_folder) or FIRST).restarts == 1, 90)
        back = start(worker)
        assert (back.state, back.already) == ("running", True)
        assert back.pid != worker_report.pid
        sessions = {process.session for process in process_table.find_marked(worker_folder)}
        assert sessions == {back.pid, processes.find_named(worker_folder, layout.SUPERVISOR).pid}

        # A stop that comes while it is joining again finds all of it: what was left, and what is new.
        assert back.pid is not None
        os.kill(back.pid, signal.SIGKILL)
        wait_until(lambda: processes.read_record(worker_folder, layout.RAY).pid != back.pid, 60)
        for spec in (worker, head):
            report = stop(spec)
            assert report.leftovers == ()
            _assert_nothing_left(spec)
        assert "ray" in report.stopped
        assert not _accepts(port)

        assert other.poll() is None, (tmp_path / "other.log").read_text()[-2000:]
        assert _accepts(port + 1, "127.0.0.9")
        living = {process.name() for process in psutil.Process(other.pid).children(recursive=True)}
        assert {"gcs_server", "raylet"} <= living
    finally:
        other.terminate()
        other.wait(30)
        other_log.close()
        shutil.rmtree(other_home, ignore_errors=True)


def _accepts(port: int, host: str = "127.0.0.2") -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


@linux_only
def test_a_stop_ends_a_start_that_still_waits_for_its_head(machine, stop, agent_environment, wait_until):
    spec = machine("crosby", "worker", "127.0.0.3", _free_port())
    command = [sys.executable, "-m", "remote_agent.host.node", "start"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=agent_environment, text=True
    ) as waiting:
        assert waiting.stdin is not None
        waiting.stdin.write(encode(spec) + "\n")
        waiting.stdin.flush()
        wait_until(processes.lock_path(Path(spec.folder)).exists, 60)
        assert waiting.poll() is None
        stop(spec)
        assert waiting.wait(30) == 1
        assert waiting.stdout is not None
        assert "taken down" in decode(NodeReport, waiting.stdout.read()).cause
    _assert_nothing_left(spec)


@pytest.mark.parametrize(
    ("place", "mode", "words"),
    [
        (layout.token_path, 0o644, "token may be read by other users"),
        (layout.token_path, None, "token is missing"),
        (layout.tls_path, 0o640, "certificate may be read by other users"),
        (layout.tls_path, None, "certificate is missing"),
    ],
)
def test_a_node_does_not_start_without_private_secrets(machine, start, place, mode, words):
    spec = machine("mercer", "head", "127.0.0.2", _free_port())
    secret = place(Path(spec.folder))
    if mode is None:
        secret.unlink()
    else:
        secret.chmod(mode)
    report = start(spec)
    assert report.state == "failed"
    assert words in report.cause
    assert report.hint
    assert process_table.find_marked(Path(spec.folder)) == ()


def test_a_stop_lets_runs_save_first_and_works_without_any_record(folder, launched, agent, wait_until):
    saved = folder / "runs" / "saved"
    saved.parent.mkdir()
    launched(
        "run-1",
        "import pathlib, signal, sys, time\n"
        f"def save(*_): pathlib.Path({str(saved)!r}).touch(); sys.exit()\n"
        "signal.signal(signal.SIGTERM, save); print('up', flush=True); time.sleep(600)",
    )
    unrecorded = launched("forgotten", "import time; time.sleep(600)")
    processes.forget(folder, "forgotten")
    wait_until(lambda: (folder / "logs" / "run-1.log").read_text() == "up\n", 30)

    done = agent("host.node", "stop", "--folder", str(folder))

    report = decode(StopReport, done.stdout)
    assert saved.exists(), "what the runs saved stays"
    assert "run-1" in report.stopped
    assert any(f"PID {unrecorded.pid}" in name for name in report.stopped)
    assert process_table.find_marked(folder) == ()
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "runs"]


def test_a_run_without_a_last_word_that_a_teardown_ended_was_stopped_and_is_not_lost(launched, folder):
    launched("run-text-1", "import time; time.sleep(600)")
    place = folder / "runs" / "text-1"
    write_run(place, "text")
    assert teardown.stop_runs(folder, 5.0).stopped == ("run-text-1",)
    (summary,) = runs.list_runs(folder).runs
    assert summary.state == "stopped"


def test_a_specification_that_is_garbage_is_one_clear_report(agent):
    done = agent("host.node", "start", stdin="garbage\n")
    assert done.returncode == 1
    assert "not a node specification" in decode(NodeReport, done.stdout).cause
    assert done.stderr == ""


def test_a_ray_that_ends_while_its_machine_is_taken_down_has_not_failed(launched, folder, wait_until):
    record = launched(layout.RAY, "import time; time.sleep(600)")
    with processes.locked(folder, 1.0):
        assert node.ray_state(folder) == node.status(folder).state == "starting", "it has no supervisor yet"
    report = node.status(folder)
    assert (report.state, report.hint) == ("running", "run `up`"), "what started it was killed, and no more follows"
    assert report.cause == "should Ray end, it stays so until `up`: the `up` that started it was cut off"
    supervision.write(folder, supervision.Supervision(phase=supervision.WATCHING, since=1.0))
    assert node.ray_state(folder) == "running"
    layout.stop_flag(folder).touch()
    assert node.ray_state(folder) == "running"
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: process_table.find(record.pid) is None, 30)
    assert node.ray_state(folder) == "none"
    layout.stop_flag(folder).unlink()
    assert node.ray_state(folder) == "stopped"
