"""The ledger: on disk before the deed, readable after any crash."""

import asyncio
import stat
import subprocess
import sys
from pathlib import Path

from hetero_tui.fleet.ledger import Ledger
from hetero_tui.inventory import Host

MERCER = Host(name="mercer", address="192.0.2.1", port=2222, user="me", identity_file="/k")
NAS = Host(name="nas", address="192.0.2.2")


def test_an_intention_survives_the_process_and_says_how_to_reach_the_host(tmp_path: Path) -> None:
    Ledger("lab", tmp_path).intend(MERCER, "node")
    entries = Ledger("lab", tmp_path).entries()
    assert [entry.host for entry in entries] == [MERCER]
    assert entries[0].kind == "node"


def test_the_newest_host_comes_first_and_each_only_once(tmp_path: Path) -> None:
    ledger = Ledger("lab", tmp_path)
    for host in (MERCER, NAS, MERCER):
        ledger.intend(host, "node")
    assert [entry.host.name for entry in ledger.entries()] == ["mercer", "nas"]


def test_a_cleaned_host_is_gone_and_the_file_with_the_last(tmp_path: Path) -> None:
    ledger = Ledger("lab", tmp_path)
    ledger.intend(MERCER, "node")
    ledger.intend(NAS, "node")
    ledger.cleaned("mercer")
    assert [entry.host.name for entry in ledger.entries()] == ["nas"]
    ledger.cleaned("nas")
    assert not (tmp_path / "lab" / "ledger.jsonl").exists()


def test_a_line_torn_by_a_crash_loses_nothing_before_or_after_it(tmp_path: Path) -> None:
    ledger = Ledger("lab", tmp_path)
    ledger.intend(MERCER, "node")
    with (tmp_path / "lab" / "ledger.jsonl").open("a") as file:
        file.write('{"time": 3, "kind": "no')
    ledger.intend(NAS, "node")
    assert {entry.host.name for entry in ledger.entries()} == {"mercer", "nas"}


def test_ledger_and_token_are_for_this_user_alone(tmp_path: Path) -> None:
    ledger = Ledger("lab", tmp_path)
    ledger.intend(MERCER, "node")
    ledger.keep_token("secret")
    for path in (tmp_path / "lab").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert ledger.token() == "secret"
    ledger.forget_token()
    assert ledger.token() is None


async def test_the_second_of_two_commands_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    order: list[str] = []
    first_is_in, may_end = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with Ledger("lab", tmp_path).alone(lambda: order.append("first waits")):
            first_is_in.set()
            await may_end.wait()
            order.append("first ends")

    def second_waits() -> None:
        order.append("second waits")
        may_end.set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(first())
        await first_is_in.wait()
        async with Ledger("lab", tmp_path).alone(second_waits):
            order.append("second begins")
    assert order == ["second waits", "first ends", "second begins"]
    assert list(tmp_path.iterdir()) == []


async def test_the_lock_of_a_killed_command_is_gone_with_it(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom hetero_tui.fleet.ledger import Ledger\n"
        "async def hold():\n async with Ledger('lab', Path(sys.argv[1])).alone(print):\n"
        "  print('in', flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(hold())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        async with asyncio.timeout(20), Ledger("lab", tmp_path).alone(holder.kill):
            pass
    assert list(tmp_path.iterdir()) == []
