from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from remote_agent.host import process_table, processes
from remote_agent.protocol import CLUSTER_MARK, ProcessRecord, StopReport, decode, encode

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
PARENT = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "print(child.pid, flush=True); time.sleep(600)"
)


def _up(folder: Path, name: str):
    log = folder / "logs" / f"{name}.log"
    return lambda: log.exists() and log.read_text().endswith("\n")


def test_a_launched_process_is_recorded_privately_with_its_own_pid_and_mark(folder, launched):
    record = launched("job", SLEEP)

    path = folder / "processes" / "job.json"
    assert decode(ProcessRecord, path.read_text()) == record
    assert path.stat().st_mode & 0o777 == 0o600
    assert process_table.mark_of(record.pid) == str(folder)
    process = process_table.find(record.pid)
    assert process is not None
    assert (process.started, process.session) == (record.started, record.pid)


def test_what_is_started_traces_no_grpc_which_would_write_the_clusters_token_into_its_log(
    folder, monkeypatch, wait_until
):
    for name, value in {"GRPC_TRACE": "all", "GRPC_VERBOSITY": "debug", "GRPC_POLL_STRATEGY": "poll"}.items():
        monkeypatch.setenv(name, value)
    log = folder / "logs" / "job.log"
    processes.launch(folder, "job", ["sh", "-c", "env; echo whole"], log)
    wait_until(lambda: log.read_text().endswith("whole\n"), 30)
    names = {line.partition("=")[0] for line in log.read_text().splitlines()}
    assert names & {"GRPC_TRACE", "GRPC_VERBOSITY", "GRPC_POLL_STRATEGY"} == {"GRPC_POLL_STRATEGY"}


def test_what_is_started_leaves_no_core_dump_which_would_hold_the_clusters_secret(folder, wait_until):
    before = resource.getrlimit(resource.RLIMIT_CORE)
    if before[1] == 0:
        pytest.skip("this user may have no core dumps")
    log = folder / "logs" / "job.log"
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        processes.launch(folder, "job", ["sh", "-c", "ulimit -c; ulimit -Hc; echo up"], log)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    wait_until(lambda: log.read_text().endswith("up\n"), 30)
    assert log.read_text().split()[0] == "0"
    assert log.read_text().split()[1] != "0", "a job may still ask for one"


def test_a_name_that_runs_is_not_started_twice(agent, folder):
    arguments = ("--folder", str(folder), "--name", "job", "--log", str(folder / "logs" / "job.log"), "--")
    first = agent("host.processes", "launch", *arguments, sys.executable, "-c", SLEEP)
    second = agent("host.processes", "launch", *arguments, sys.executable, "-c", SLEEP)

    assert first.returncode == second.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert len(process_table.find_marked(folder)) == 1
    assert agent("host.processes", "alive", "--folder", str(folder), "--name", "job").returncode == 0


def test_a_program_that_does_not_exist_is_one_clear_line_and_leaves_no_record(agent, folder):
    done = agent(
        "host.processes", "launch", "--folder", str(folder), "--name", "x", "--log", str(folder / "l"), "--", "/no/such"
    )

    assert done.returncode == 1
    assert done.stderr.splitlines() == ["x: /no/such can't be run: No such file or directory"]
    assert not list((folder / "processes").glob("*.json"))


def test_stop_ends_a_process_that_ignores_sigterm(agent, folder, launched, wait_until):
    record = launched("job", STUBBORN)
    wait_until(_up(folder, "job"), 30)

    done = agent("host.processes", "stop", "--folder", str(folder), "--name", "job", "--grace", "0.2")

    assert done.returncode == 0, done.stderr
    assert decode(StopReport, done.stdout).stopped == ("job",)
    assert process_table.find(record.pid) is None
    assert agent("host.processes", "alive", "--folder", str(folder), "--name", "job").returncode == 1


def test_a_process_is_known_as_ours_also_while_it_is_still_becoming_its_program(folder):
    for _ in range(50):
        started = subprocess.Popen(["sleep", "600"], env=os.environ | {CLUSTER_MARK: str(folder)})
        try:
            assert process_table.mark_of(started.pid) == str(folder)
        finally:
            started.kill()
            started.wait()


def test_a_reused_pid_is_never_signalled(folder, launched):
    record = launched("job", SLEEP)
    processes.write_private(
        processes.record_path(folder, "job"), encode(replace(record, started=record.started - 1)) + "\n"
    )

    assert processes.stop_named(folder, "job", 0.2) == StopReport()
    assert process_table.find(record.pid) is not None


def test_a_process_without_our_mark_is_never_signalled(folder):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        process = process_table.find(stranger.pid)
        assert process is not None
        record = ProcessRecord(name="job", pid=stranger.pid, started=process.started, log="")
        processes.write_private(processes.record_path(folder, "job"), encode(record) + "\n")

        assert processes.stop_named(folder, "job", 0.2) == StopReport()
        assert processes.stop_marked(folder, 0.2) == ((), ())
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_another_clusters_processes_are_never_signalled(folder, launched, tmp_path):
    record = launched("job", SLEEP)
    assert processes.stop_marked(tmp_path / "other", 0.2) == ((), ())
    assert processes.stop_marked(folder.parent, 0.2) == ((), ())
    assert processes.find_ours(folder, record) is not None


def test_orphans_of_a_killed_process_are_found_and_stopped(folder, launched, wait_until):
    record = launched("job", PARENT)
    wait_until(_up(folder, "job"), 30)
    child = int((folder / "logs" / "job.log").read_text())
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: process_table.find(record.pid) is None, 30)

    stopped, left = processes.stop_marked(folder, 2)

    assert [process.pid for process in stopped] == [child]
    assert left == ()
    assert process_table.find(child) is None


def test_a_command_never_ends_itself_or_those_above_it(folder, agent_environment):
    program = "import pathlib, sys; from remote_agent.host.processes import stop_marked\n"
    program += "print(stop_marked(pathlib.Path(sys.argv[1]), 1))"
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@"; true', "sh", sys.executable, "-c", program, str(folder)],
        env=agent_environment | {CLUSTER_MARK: str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "((), ())", done.stderr


def test_a_launcher_that_is_killed_at_any_moment_leaves_nothing_that_stop_does_not_find(
    folder, agent_environment, wait_until
):
    command = [sys.executable, "-m", "remote_agent.host.processes", "launch", "--folder", str(folder), "--name", "job"]
    command += ["--log", str(folder / "logs" / "job.log"), "--", sys.executable, "-c", SLEEP]
    for moment in (0.03, 0.08, 0.15):
        launcher = subprocess.Popen(command, env=agent_environment, stdout=subprocess.DEVNULL)
        try:
            launcher.wait(moment)
        except subprocess.TimeoutExpired:
            launcher.kill()
        launcher.wait()
        # Whatever lives on, in the middle of its start or after it, carries the mark from its first instruction; the
        # launcher may have been killed a moment before that one.
        while processes.stop_marked(folder, 1) != ((), ()):
            pass
        assert process_table.find_marked(folder) == ()
        processes.forget(folder, "job")


def test_a_record_that_is_garbage_counts_as_none(folder):
    processes.write_private(processes.record_path(folder, "job"), json.dumps({"pid": "x"}))
    assert processes.read_record(folder, "job") is None
    assert processes.stop_named(folder, "job", 1) == StopReport()


def test_a_folder_is_held_by_one_at_a_time_also_when_the_holder_removes_its_lock(folder, tmp_path):
    with processes.locked(folder, 1):
        with pytest.raises(TimeoutError, match="in use"), processes.locked(folder, 0.1):
            pass
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(_hold_once, folder)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
            processes.lock_path(folder).unlink()
            assert waiting.result(30), "a new lock is made where the old one was"


def _hold_once(folder: Path) -> bool:
    with processes.locked(folder, 30):
        return processes.lock_path(folder).exists()


def test_psutil_which_other_systems_need_tells_the_same_as_proc(folder, launched, wait_until):
    record = launched("job", SLEEP)
    wait_until(_up(folder, "job"), 30)
    here, there = process_table.find(record.pid), process_table._find_by_psutil(record.pid)
    assert here is not None
    assert there is not None
    assert (there.pid, there.parent, there.session) == (here.pid, here.parent, here.session)
    assert process_table._find_by_psutil(record.pid) == there, "the start time does not change"
    assert process_table._mark_by_psutil(record.pid) == str(folder)
    assert record.pid in process_table._own_pids_by_psutil()
    processes.stop_named(folder, "job", 5)
    assert process_table._find_by_psutil(record.pid) is None
    assert process_table._mark_by_psutil(record.pid) is None
