"""This computer as a host: the same promises as over SSH, without SSH."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_tui.errors import CommandFailed, DeadlineExceeded, Unreachable
from hetero_tui.inventory import Host, Inventory
from hetero_tui.transport import open_transport
from tests.processes import ends

LAPTOP = Host(name="laptop", connection="local")
HOME = str(Path.home())


@pytest.fixture
def laptop():
    return open_transport(LAPTOP, Inventory(hosts=(LAPTOP,)))


async def test_commands_run_in_the_home_folder_with_their_words_unchanged(laptop):
    done = await laptop.run(
        ["sh", "-c", 'pwd; printf "%s|" "$@"; exit 3', "sh", "a b", "$HOME", "*"], step="t", deadline=30
    )
    assert (done.exit_status, done.stdout.raw) == (3, f"{HOME}\na b|$HOME|*|")
    assert laptop.address == "127.0.0.1"


async def test_a_missing_program_is_what_a_shell_would_say(laptop):
    done = await laptop.run(["no-such-program"], step="try", deadline=30)
    assert (done.exit_status, done.stderr.raw) == (127, "no-such-program: not found\n")


async def test_a_command_and_its_children_are_ended_at_the_deadline(laptop, tmp_path):
    began = time.monotonic()
    command = ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; trap '' TERM; while :; do sleep 0.1; done"]
    with pytest.raises(DeadlineExceeded, match="laptop: try: "):
        await laptop.run(command, step="try", deadline=2)
    assert time.monotonic() - began < 20, "by itself it never ends"
    assert await asyncio.to_thread(ends, int((tmp_path / "pid").read_text())), "the child in the background lives on"


async def test_streams_keep_the_same_promises(laptop):
    async with laptop.stream(["cat"], step="follow", silence=30, stdin=b"a\n\nb") as lines:
        assert [line.raw async for line in lines] == ["a", "", "b"]
    async with laptop.stream(["sh", "-c", "echo worse >&2; exit 2"], step="follow", silence=30) as lines:
        with pytest.raises(CommandFailed) as caught:
            await anext(lines)
    assert caught.value.output == "worse"
    async with laptop.stream(["sleep", "60"], step="follow", silence=0.3) as lines:
        with pytest.raises(Unreachable, match=r"nothing came for 0.3 s"):
            await anext(lines)


async def test_put_writes_whole_files(laptop, tmp_path):
    await laptop.put(b"\0\xff" * 1000, str(tmp_path / "a" / "b"), step="send", deadline=30, mode=0o640)
    assert (tmp_path / "a" / "b").read_bytes() == b"\0\xff" * 1000
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o640


def test_importing_the_inventory_and_the_transport_seam_loads_no_asyncssh():
    code = "import sys, hetero_tui.inventory.file, hetero_tui.transport; sys.exit('asyncssh' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
