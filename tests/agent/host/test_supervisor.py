"""What keeps a machine in its cluster: how it ends, what it says, and how long it waits.

The processes, records, signals and sockets are real; where Ray would stand there is a program that says what Ray says.
That real Ray comes back is shown in test_node.py and on the lab.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent import deadlines
from remote_agent.host import layout, node, process_table, processes, ray_command, ray_node, supervision, supervisor
from remote_agent.host.processes import write_private
from remote_agent.protocol import NodeReport, NodeSpec, ProcessRecord, StopReport, decode, encode
from tests.specs import give_certificate, node_spec

RAY = f"import time; print({ray_command.STARTED_LINE!r}, flush=True); time.sleep(600)"


def _closed_port() -> int:
    with socket.socket() as candidate:
        candidate.bind(("127.0.0.1", 0))
        port: int = candidate.getsockname()[1]
        return port


@pytest.fixture
def joined(folder: Path, launched, wait_until) -> Callable[..., tuple[NodeSpec, ProcessRecord]]:
    """A machine as ``node start`` leaves it: specification, token, a Ray that has joined, and its supervisor."""

    def make(role: str, program: str = RAY) -> tuple[NodeSpec, ProcessRecord]:
        here = {"folder": str(folder), "node_address": "127.0.0.1", "head_address": "127.0.0.1"}
        spec = node_spec("crosby", role, gcs_port=_closed_port(), **here)
        write_private(layout.spec_path(folder), encode(spec) + "\n")
        write_private(layout.token_path(folder), "secret")
        give_certificate(spec)
        ray = launched(layout.RAY, program)
        wait_until(lambda: (folder / "logs" / "ray.log").read_text().endswith("\n"), 30)
        supervisor.launch(folder)
        wait_until(lambda: supervision.read(folder), 30)
        return spec, ray

    return make


def _status(agent, folder: Path) -> NodeReport:
    return decode(NodeReport, agent("host.node", "status", "--folder", str(folder)).stdout)


def test_a_worker_whose_ray_ended_says_that_it_restarts_and_why_it_is_not_back(joined, folder, agent, wait_until):
    spec, ray = joined("worker")
    assert _status(agent, folder).state == "running"

    os.kill(ray.pid, signal.SIGKILL)

    wait_until(lambda: "can't be reached" in _status(agent, folder).cause, 30)
    report = _status(agent, folder)
    assert report.state == node.ray_state(folder) == "restarting"
    assert f"127.0.0.1:{spec.gcs_port} can't be reached from this machine: Connection refused" in report.cause
    log = layout.supervisor_log_path(folder).read_text()
    assert "Ray was killed" in log
    assert log.count("can't be reached") == 1, "a cause is logged once, not at every attempt"


def test_down_while_ray_is_being_brought_back_leaves_nothing(joined, folder, agent, wait_until):
    _, ray = joined("worker")
    os.kill(ray.pid, signal.SIGKILL)
    wait_until(lambda: node.ray_state(folder) == "restarting", 30)

    report = decode(StopReport, agent("host.node", "stop", "--folder", str(folder)).stdout)

    assert layout.SUPERVISOR in report.stopped
    assert report.leftovers == ()
    assert process_table.find_marked(folder) == ()
    assert [path.name for path in folder.iterdir()] == ["logs"]


def test_a_supervisor_that_was_killed_is_replaced_by_the_next_start_and_ray_goes_on(joined, folder, agent, wait_until):
    spec, ray = joined("worker")
    killed = processes.find_named(folder, layout.SUPERVISOR)
    os.kill(killed.pid, signal.SIGKILL)
    wait_until(lambda: processes.find_named(folder, layout.SUPERVISOR) is None, 30)
    report = _status(agent, folder)
    assert (report.state, report.hint) == ("running", "run `up`")
    assert "its supervisor has ended" in report.cause

    started = decode(NodeReport, agent("host.node", "start", stdin=encode(spec) + "\n").stdout)

    assert (started.state, started.already, started.pid) == ("running", True, ray.pid)
    wait_until(lambda: _status(agent, folder).cause == "", 30)
    assert processes.find_named(folder, layout.SUPERVISOR) is not None


def test_a_heads_ray_is_not_started_again_and_the_status_says_so(joined, folder, agent, wait_until):
    _, ray = joined("head")
    os.kill(ray.pid, signal.SIGKILL)
    wait_until(lambda: process_table.find_marked(folder) == (), 30)
    report = _status(agent, folder)
    assert (report.state, report.cause) == ("stopped", "the head's Ray ended: Ray was killed")
    assert "`down`, then `up`" in report.hint
    assert node.ray_state(folder) == "stopped"


class Clock(supervisor.StopSignals):
    """A clock that a wait moves on; the third wait ends the process."""

    def __init__(self) -> None:
        self.now, self._waits = 0.0, 0

    def pause(self, seconds: float, *, until_readable: int | None = None) -> None:
        self.now += 10 * seconds
        self._waits += 1
        if self._waits > 3:
            raise supervisor.EndRequested


def test_a_head_whose_control_store_hangs_has_its_ray_ended_as_if_it_had_died(joined, folder, monkeypatch):
    spec, ray = joined("head")
    monkeypatch.setattr(ray_node, "head_silence", lambda spec: "no answer")
    clock = Clock()
    cause = supervisor.Supervisor(folder, spec, clock, clock=lambda: clock.now)._watch(ray)
    assert cause == "Ray's control store did not answer for 10 s: no answer"


@pytest.mark.parametrize("role", ["head", "worker"])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_ray_whose_manager_is_stopped_is_ended(role: str, stopped: bool, joined, folder, monkeypatch):
    manager = folder / "raylet"
    begin = f"import os, subprocess; os.symlink({shutil.which('sleep')!r}, {str(manager)!r});"
    spec, ray = joined(role, f"{begin} subprocess.Popen([{str(manager)!r}, '600']); {RAY}")
    (pid,) = ray_node.managers(folder, ray)
    monkeypatch.setattr(ray_node, "head_silence", lambda spec: "")
    monkeypatch.setattr(deadlines, "STOPPED_LOOKS", 2)
    watching = supervisor.Supervisor(folder, spec, Clock())
    if stopped:
        os.kill(pid, signal.SIGSTOP)
        assert watching._watch(ray) == "Ray's manager (raylet) was stopped"
    else:
        with pytest.raises(supervisor.EndRequested):
            watching._watch(ray)


def test_a_supervisor_without_a_node_ends_at_once(agent, folder):
    done = agent("host.supervisor", "--folder", str(folder))
    assert done.returncode == 1
    assert "no node was started here" in done.stdout


def test_a_python_built_for_an_old_linux_watches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As uv's are: ``os`` has no ``pidfd_open`` there."""
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert supervisor._open_process(os.getpid()) is None


def test_a_word_that_is_garbage_counts_as_none(folder):
    write_private(supervision.path(folder), '{"phase": 1}')
    assert supervision.read(folder) is None


@given(st.integers(min_value=1, max_value=10**6))
def test_the_first_attempt_comes_at_once_and_pauses_double_up_to_the_longest(attempt: int):
    pause, following = supervision.pause_before(attempt), supervision.pause_before(attempt + 1)
    assert 0 <= pause <= deadlines.RESTART_LONGEST_SECONDS
    if attempt == 1:
        assert (pause, following) == (0, deadlines.RESTART_FIRST_SECONDS)
    else:
        assert following == min(2 * pause, deadlines.RESTART_LONGEST_SECONDS)


GONE_AT_ONCE = """
import sys
from remote_agent import deadlines
from remote_agent.host import supervisor
deadlines.CLUSTER_GONE_SECONDS = 0.0
sys.exit(supervisor.main(sys.argv[1:]))
"""


def test_a_machine_whose_cluster_has_been_gone_for_an_hour_cleans_up_by_itself(joined, folder, wait_until):
    spec, _ = joined("worker")
    now = [0.0]

    class Hours(supervisor.StopSignals):
        def __init__(self) -> None:
            pass

        def pause(self, seconds: float, *, until_readable: int | None = None) -> None:
            now[0] += 100 * seconds

    waiting = supervisor.Supervisor(folder, spec, Hours(), clock=lambda: now[0])
    with pytest.raises(supervisor.ClusterGone):
        waiting._await_head()
    assert deadlines.CLUSTER_GONE_SECONDS <= now[0] < deadlines.CLUSTER_GONE_SECONDS + 101

    supervisor.stop(folder)
    argv = [sys.executable, "-c", GONE_AT_ONCE, "--folder", str(folder)]
    processes.launch(folder, layout.SUPERVISOR, argv, layout.supervisor_log_path(folder))
    wait_until(lambda: process_table.find_marked(folder) == () and not (folder / "token").exists(), 30)
    wait_until(lambda: [path.name for path in folder.iterdir()] == ["logs"], 30)
