"""A run's logs on one machine: lines in the order of their times, errors of Ray among them, and nothing twice."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote_agent.log_lines import rays_errors, stamp, stamped
from remote_agent.logs import Reader
from remote_agent.protocol import LogLine, decode

RUN = "digits-1"


def written(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    return path


def own(folder: Path, process: str, *lines: str) -> Path:
    return written(folder, f"runs/{RUN}/{process}.log", *lines)


def local(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def shown(reader: Reader) -> list[tuple[float, str, str]]:
    return [(line.time, line.process, line.line) for line in reader.new()]


def test_a_line_begins_with_the_time_in_utc_and_is_read_back() -> None:
    assert stamp(1767225600.5) == "2026-01-01T00:00:00.500Z"
    assert list(stamped([f"{stamp(1767225600.5)} lost nas/cpu"], None, 0.0)) == [(1767225600.5, "lost nas/cpu")]


def test_lines_without_a_time_have_that_of_the_line_before_and_the_first_ones_that_of_the_next() -> None:
    lines = ["from C", f"{stamp(10.0)} Traceback", "  File", f"{stamp(11.0)} after"]
    assert [moment for moment, _ in stamped(lines, None, 99.0)] == [10.0, 10.0, 10.0, 11.0]
    assert list(stamped(["only this"], None, 99.0)) == [(99.0, "only this")]
    assert list(stamped(["goes on"], 5.0, 99.0)) == [(5.0, "goes on")]


def test_of_rays_logs_errors_are_shown_with_the_lines_that_belong_to_them() -> None:
    lines = [
        f"[{local(100)},250 I 7 7] (raylet) main.cc:1: started",
        f"[{local(101)},250 E 7 7] (raylet) node.cc:2: out of memory",
        "    at 0x1",
        f"[{local(102)},250 W 7 7] (raylet) node.cc:3: slow",
        "    of the warning",
    ]
    assert list(rays_errors(lines, None, 99.0)) == [(101.25, lines[1]), (101.25, lines[2])]
    assert list(rays_errors(["terminate called", lines[0]], None, 99.0)) == [(99.0, "terminate called")]
    assert list(rays_errors(["of a line read before", lines[0]], 90.0, 99.0)) == []


def test_all_logs_of_a_run_are_merged_by_time_and_what_is_not_its_own_only_while_it_ran(short_folder: Path) -> None:
    own(short_folder, "coordinator", f"{stamp(10)} run_started", f"{stamp(30)} worker_lost")
    own(short_folder, "cuda:0", f"{stamp(20)} epoch 1")
    written(short_folder, "logs/supervisor.log", *(f"{stamp(at)} Ray ended" for at in (1, 25, 99)))
    rays = short_folder / "ray" / "session_latest" / "logs"
    written(rays, "raylet.out", f"[{local(26)},000 E 7 7] (raylet) node.cc:2: bad")
    assert shown(Reader(short_folder, RUN, 5.0, 50.0)) == [
        (10, "coordinator", "run_started"),
        (20, "cuda:0", "epoch 1"),
        (25, "supervisor", "Ray ended"),
        (26, "raylet", f"[{local(26)},000 E 7 7] (raylet) node.cc:2: bad"),
        (30, "coordinator", "worker_lost"),
    ]


def test_a_machine_that_had_no_part_in_the_run_shows_nothing(tmp_path: Path) -> None:
    written(tmp_path, "logs/supervisor.log", f"{stamp(25)} Ray ended")
    assert shown(Reader(tmp_path, RUN, 0.0, 50.0)) == []


def test_what_is_new_is_read_once_also_where_a_log_was_rotated(tmp_path: Path) -> None:
    reader = Reader(tmp_path, RUN, 0.0, 50.0)
    log = own(tmp_path, "cpu", f"{stamp(1)} a", f"{stamp(2)} b")
    with log.open("a") as file:
        file.write(f"{stamp(3)} c, not")
    assert [line for _, _, line in shown(reader)] == ["a", "b"]
    own(tmp_path, "cpu", " whole", f"{stamp(4)} d")
    log.rename(log.with_name("cpu.log.1"))
    own(tmp_path, "cpu", f"{stamp(5)} e")
    assert [line for _, _, line in shown(reader)] == ["c, not whole", "d", "e"]
    assert shown(reader) == []
    assert [line for _, _, line in shown(Reader(tmp_path, RUN, 0.0, 50.0))] == ["a", "b", "c, not whole", "d", "e"]


@pytest.mark.parametrize("follow", [False, True])
def test_the_command_prints_what_is_there_and_follows_until_the_process_is_gone(tmp_path: Path, follow: bool) -> None:
    own(tmp_path, "coordinator", f"{stamp(10)} run_started")
    words = ["--follow", "--process-name", f"run-{RUN}"] if follow else []
    done = subprocess.run(
        [sys.executable, "-m", "remote_agent.logs", "--folder", str(tmp_path), "--run", RUN, *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    first, *rest = done.stdout.split("\n")
    assert decode(LogLine, first) == LogLine(time=10.0, process="coordinator", line="run_started")
    assert rest == ([""] if not follow else ["", ""])
