"""What may be relied on when commands run over SSH, on an embedded machine and on a real OpenSSH server."""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_tui import deadlines
from hetero_tui.errors import BadAnswer, CommandFailed, DeadlineExceeded, HostError, Unreachable
from hetero_tui.transport.ssh_command import SshCommand
from tests.processes import ends

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30), max_size=6)


async def test_output_errors_and_exit_status_come_back_apart(server, connect):
    done = await connect(server.host).run(["sh", "-c", "echo out; echo err >&2; exit 7"], step="try", deadline=30)
    assert (done.exit_status, done.stdout.raw, done.stderr.raw) == (7, "out\n", "err\n")


async def test_a_signal_is_a_negative_exit_status(server, connect):
    done = await connect(server.host).run(["sh", "-c", "kill -9 $$"], step="try", deadline=30)
    assert done.exit_status in (-9, 137)  # 137: a shell in between reports it


async def test_commands_start_in_the_home_folder(server, connect):
    done = await connect(server.host).run(["pwd"], step="try", deadline=30)
    assert Path(done.stdout.raw.strip()).resolve() == server.home.resolve()


async def test_words_come_through_unchanged_whatever_they_hold(server, connect):
    transport = connect(server.host)
    loop = asyncio.get_running_loop()

    @settings(
        max_examples=10 if server.kind == "openssh" else 40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(WORDS)
    def check(words: list[str]) -> None:
        command = ["sh", "-c", 'for word in "$@"; do printf "%s\\0" "$word"; done', "sh", *words]
        future = asyncio.run_coroutine_threadsafe(transport.run(command, step="try", deadline=60), loop)
        assert future.result(90).stdout.raw == "".join(f"{word}\0" for word in words)

    await asyncio.to_thread(check)


async def test_what_no_command_can_hold_is_refused_before_it_is_sent(server, connect):
    transport = connect(server.host)
    for words in ([], ["a\0b"], ["\ud800"]):
        with pytest.raises(ValueError, match=r"word|surrogates"):
            await transport.run(words, step="try", deadline=5)


async def test_stdin_reaches_the_command_byte_by_byte(server, connect):
    data = os.urandom(3_000_000)
    done = await connect(server.host).run(["sh", "-c", "cat | cksum"], step="try", deadline=60, stdin=data)
    local = await asyncio.create_subprocess_exec("cksum", stdin=-1, stdout=-1)
    assert done.stdout.raw == (await local.communicate(data))[0].decode()


async def test_a_command_that_ignores_its_stdin_is_no_error(server, connect):
    done = await connect(server.host).run(["true"], step="try", deadline=30, stdin=bytes(5_000_000))
    assert done.exit_status == 0


async def test_several_megabytes_of_output_arrive_whole(server, connect):
    done = await connect(server.host).run(["sh", "-c", "head -c 6000000 /dev/zero"], step="try", deadline=60)
    assert len(done.stdout.raw) == 6_000_000


async def test_endless_output_is_cut_off_with_the_reason(server, connect):
    with pytest.raises(BadAnswer, match="grew past 8 MiB"):
        await connect(server.host).run(["yes"], step="try", deadline=30)


@pytest.mark.parametrize("script", ["exec sleep 60", "trap '' TERM HUP; while :; do sleep 0.1; done"])
async def test_a_command_is_ended_at_its_deadline_though_it_ignores_sigterm(server, connect, script):
    transport = connect(server.host)
    await transport.connect()
    pid_file = server.home / f".hetero-tui-test-{os.getpid()}"
    began = time.monotonic()
    try:
        with pytest.raises(DeadlineExceeded, match=r"real: try: .* did not end within 2 s"):
            await transport.run(["sh", "-c", f"echo $$ > {pid_file}; {script}"], step="try", deadline=2)
        assert time.monotonic() - began < 20, "by itself it ends after a minute, or never"
        assert await asyncio.to_thread(ends, int(pid_file.read_text()))
    finally:
        pid_file.unlink(missing_ok=True)


async def test_lines_are_streamed_as_they_come_and_leaving_ends_the_command(server, connect):
    command = ["sh", "-c", "echo $$; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"]
    async with connect(server.host).stream(command, step="follow", silence=30) as lines:
        pid = int((await anext(lines)).raw)
        assert [(await anext(lines)).raw for _ in range(3)] == ["line 1", "line 2", "line 3"]
        os.kill(pid, 0)
    assert await asyncio.to_thread(ends, pid)


async def test_a_stream_that_keeps_silent_is_given_up(server, connect):
    async with connect(server.host).stream(["sh", "-c", "echo a; sleep 60"], step="follow", silence=2) as lines:
        assert (await anext(lines)).raw == "a"
        with pytest.raises(Unreachable, match=r"real: follow: nothing came for 2 s"):
            await anext(lines)


async def test_a_streamed_command_that_fails_says_its_last_words(server, connect):
    command = ["sh", "-c", "echo a; echo worse >&2; exit 3"]
    async with connect(server.host).stream(command, step="follow", silence=30) as lines:
        with pytest.raises(CommandFailed, match="with status 3") as caught:
            _ = [line async for line in lines]
    assert caught.value.output == "worse"


async def test_put_writes_binary_files_with_their_mode_and_private_folders(server, connect, tmp_path):
    data = bytes(range(256)) * 5000
    path = tmp_path / "it's new" / "deep" / "file.bin"
    transport = connect(server.host)
    await transport.put(b"old", str(path), step="send", deadline=30)
    await transport.put(data, str(path), step="send", deadline=30, mode=0o755)
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o755
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


async def test_a_put_cut_midway_leaves_no_half_written_file(server, connect, tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"old")
    transport = connect(server.host)
    await transport.connect()
    sending = asyncio.create_task(transport.put(bytes(200_000_000), str(path), step="send", deadline=60))
    async with asyncio.timeout(60):
        while not list(tmp_path.glob("weights.part*")):
            await asyncio.sleep(0.01)
    await server.stop()
    with pytest.raises(HostError):
        await sending
    await asyncio.sleep(0.5)
    assert path.read_bytes() == b"old"
    with contextlib.suppress(Exception):
        await server.start()


async def test_what_waits_for_input_ends_by_itself_where_the_laptop_has_vanished_without_a_word(
    server, connect, tmp_path, monkeypatch
):
    async def nothing(*_: object) -> None:
        """As if the connection were silent, which is all that the host sees of a laptop without power."""

    monkeypatch.setattr(deadlines, "VANISHED", 1)
    monkeypatch.setattr(SshCommand, "feed", nothing)
    monkeypatch.setattr(SshCommand, "end", nothing)
    transport = connect(server.host)
    await transport.connect()
    with pytest.raises(DeadlineExceeded):
        await transport.put(b"new", str(tmp_path / "weights"), step="send", deadline=1)
    stubborn = f"trap '' TERM; echo $$ > {tmp_path}/pid; cat"
    with pytest.raises(DeadlineExceeded):
        await transport.run(["sh", "-c", stubborn], step="send", deadline=1, stdin=b"new")
    assert await asyncio.to_thread(ends, int((tmp_path / "pid").read_text()))
    assert [path.name for path in tmp_path.glob("weights*")] == []


async def test_a_round_trip_is_a_few_milliseconds_on_this_computer(server, connect):
    transport = connect(server.host)
    times = [await transport.round_trip() for _ in range(3)]
    assert 0 < min(times) < 1


async def test_a_connection_that_ends_is_no_answer_to_a_round_trip(openssh, connect):
    transport = connect(openssh.host)
    await transport.connect()
    sessions = psutil.Process(openssh.process.pid).children(recursive=True)
    for session in sessions:
        session.suspend()
    asking = asyncio.create_task(transport.round_trip())
    await asyncio.sleep(0.1)
    assert not asking.done()
    for session in sessions:
        session.kill()
    with pytest.raises(Unreachable, match=r"round trip: the connection to .* was lost midway"):
        await asking
