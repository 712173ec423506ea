from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from remote_agent import deadlines, follow
from remote_agent.host import process_table
from remote_agent.protocol import (
    FOLLOW_FILE_SHORTER,
    FOLLOW_PROCESS_GONE,
    CheckpointSaved,
    History,
    encode,
)
from tests.specs import run_step

FINAL = json.dumps({"seq": 3, "time": 1.0, "kind": "run_finished"}).encode() + b"\n"


def test_lines_are_printed_from_the_offset_and_as_they_are_written_until_the_final_one(agent_stream, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"seq":1}\n{"seq":2}\n')
    process = agent_stream("follow", str(path), "--offset", "10")

    assert process.stdout.readline() == b'{"seq":2}\n'
    with path.open("ab") as file:
        file.write(FINAL[:10])
        file.flush()
        time.sleep(3 * deadlines.FOLLOW_POLL_SECONDS)
        file.write(FINAL[10:] + b"after the end\n")
    assert process.stdout.read() == FINAL
    assert process.wait(30) == 0


def test_a_run_that_dies_without_a_word_ends_the_stream_with_its_last_line(
    agent_stream, folder, launched, wait_until, tmp_path
):
    path = tmp_path / "events.jsonl"
    record = launched(
        "run-1",
        "import sys, time; f = open(sys.argv[1], 'w'); f.write('{\"seq\":1}\\n'); f.flush(); time.sleep(600)",
        [str(path)],
    )
    process = agent_stream("follow", str(path), "--process-folder", str(folder), "--process-name", "run-1")
    assert process.stdout.readline() == b'{"seq":1}\n'

    os.kill(record.pid, signal.SIGKILL)

    assert process.wait(30) == FOLLOW_PROCESS_GONE


def test_the_stream_ends_when_its_reader_goes(agent_stream, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"seq":1}\n')
    by_stdin, by_stdout = (agent_stream("follow", str(path)) for _ in range(2))
    for process in (by_stdin, by_stdout):
        assert process.stdout.readline()

    by_stdin.stdin.close()
    assert by_stdin.wait(30) == 0
    by_stdout.stdout.close()
    with path.open("ab") as file:
        file.write(b'{"seq":2}\n')
    assert by_stdout.wait(30) == 0


def test_the_stream_ends_when_the_process_that_started_it_is_killed(agent_environment, tmp_path, wait_until):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"seq":1}\n')
    program = (
        "import subprocess, sys, time; command = [sys.executable, '-m', 'remote_agent.follow', sys.argv[1]]\n"
        "child = subprocess.Popen(command, stdin=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, env=agent_environment
    ) as parent:
        assert parent.stdout is not None
        # Two write here: the child's first line says that it has begun to watch its parent.
        number, line = sorted(parent.stdout.readline() for _ in range(2))
        assert line == b'{"seq":1}\n'
        child = int(number)
        assert process_table.find(child) is not None
        parent.kill()
    wait_until(lambda: process_table.find(child) is None, 30)


def test_a_file_that_is_shorter_than_the_offset_is_another_file(agent, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"short\n")
    # subprocess.run closes stdin at once, which would end a stream: the answer must come before that counts.
    done = agent("follow", str(path), "--offset", "1000")
    assert done.returncode == FOLLOW_FILE_SHORTER
    assert "shorter than 1000 bytes" in done.stderr


@pytest.mark.parametrize("line", [b"", b"[]", b"\xff\xfe", b'{"kind":"step"}', b"{"])
def test_only_a_final_event_ends_a_stream(line):
    assert not follow.is_final(line)
    assert follow.is_final(FINAL)


def test_what_is_there_can_be_read_once_without_waiting(agent_stream, tmp_path):
    path = tmp_path / "output.jsonl"
    for whole in (b"", b'{"line":1}\n{"line":2}\n'):
        process = agent_stream("follow", str(path), "--once")
        assert process.stdout.read() == whole
        assert process.wait(30) == 0
        path.write_bytes(b'{"line":1}\n{"line":2}\n{"li')


def step(number: int) -> str:
    return encode(run_step(number, loss=None))


def test_of_a_long_record_few_steps_are_read_and_every_other_event(tmp_path, capfdbinary):
    other = encode(CheckpointSaved(seq=9, time=1.0, step=5, path='"kind":"step",', host="a", size=1))
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join([*map(step, range(1, 5001)), other, *map(step, range(5001, 10001)), "cut"]))
    assert follow.once(path, 0, 100) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    steps = [json.loads(line)["step"] for line in lines if line != other]
    assert lines.count(other) == 1
    assert steps[:3] == [1, 101, 201]
    assert steps[-follow.LAST_STEPS :] == list(range(10001 - follow.LAST_STEPS, 10001))
    assert len(steps) == 100 + follow.LAST_STEPS


def test_a_run_that_goes_on_is_caught_up_with_by_few_of_its_steps_and_then_read_whole(agent_stream, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f"{step(number)}\n" for number in range(1, 1001)))
    process = agent_stream("follow", str(path), "--most-steps", "10")
    before = encode(History(history=1000, step=1000, size=path.stat().st_size - len(step(1000)) - 1))

    assert process.stdout.readline().decode() == f"{before}\n"
    history = list(iter(lambda: process.stdout.readline().decode().rstrip(), before))
    assert [json.loads(line)["step"] for line in history] == [*range(1, 950, 100), *range(951, 1000)]
    with path.open("a") as file:
        file.write(f"{step(1001)}\n{step(1002)}\n")
    assert [process.stdout.readline().decode().rstrip() for _ in range(3)] == [*map(step, (1000, 1001, 1002))]
