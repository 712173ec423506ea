"""The ledger: on disk before the deed, readable after any crash."""

import stat
from pathlib import Path

import pytest

from hetero_tui.errors import ClusterError
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
    ledger.cleaned(MERCER)
    assert [entry.host.name for entry in ledger.entries()] == ["nas"]
    ledger.cleaned(NAS)
    assert not (tmp_path / "lab" / "ledger.jsonl").exists()


def test_what_a_cluster_of_another_name_has_of_the_same_machines_is_known(tmp_path: Path) -> None:
    for cluster, hosts in {"lab": [MERCER, NAS], "renamed": [MERCER], "apart": [NAS], "down": [MERCER]}.items():
        for host in hosts:
            Ledger(cluster, tmp_path).intend(host, "node")
    Ledger("down", tmp_path).cleaned(MERCER)
    now = MERCER.model_copy(update={"name": "also-renamed"})
    assert Ledger("renamed", tmp_path).of_others([now]) == {"lab": ("mercer",)}
    assert Ledger("lab", tmp_path / "another").of_others([now]) == {}


def test_another_inventory_with_a_cluster_of_this_name_is_known_by_its_hosts_and_its_file(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.yaml", "two.yaml")]
    for file in files:
        file.touch()
    Ledger("lab", tmp_path, hosts=(MERCER,), inventory=files[0]).intend(MERCER, "node")
    two, same = (Ledger("lab", tmp_path, hosts=hosts, inventory=files[1]) for hosts in ((NAS,), (NAS, MERCER)))
    assert two.of_another() == two.entries()[0]
    assert same.of_another() is None, "a copy of the file, with the same hosts"
    files[0].rename(tmp_path / "renamed.yaml")
    assert two.of_another() is None
    assert [entry.host for entry in two.former()] == [MERCER]
    assert same.former() == ()


def test_a_line_torn_by_a_crash_loses_nothing_before_or_after_it(tmp_path: Path) -> None:
    ledger = Ledger("lab", tmp_path)
    ledger.intend(MERCER, "node")
    with (tmp_path / "lab" / "ledger.jsonl").open("ab") as file:
        file.write(b'{"time": 3, "kind": "no\xd7\x00\xff\x80')
    ledger.intend(NAS, "node")
    assert {entry.host.name for entry in ledger.entries()} == {"mercer", "nas"}
    (tmp_path / "lab" / "token").write_bytes(b"\xd7\x00\xff")
    assert ledger.token() is None


def test_ledger_and_token_are_for_this_user_alone(tmp_path: Path) -> None:
    ledger = Ledger("lab", tmp_path)
    ledger.intend(MERCER, "node")
    ledger.keep_token("secret")
    for path in (tmp_path / "lab").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert ledger.token() == "secret"
    ledger.forget_token()
    assert ledger.token() is None


def test_a_state_folder_that_can_not_be_written_is_an_error_with_its_place_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ledger = Ledger("lab", tmp_path / "file")
    with pytest.raises(ClusterError, match="XDG_STATE_HOME") as raised:
        ledger.intend(MERCER, "node")
    assert str(tmp_path / "file") in str(raised.value)
    for use in (lambda: ledger.keep_token("x"), lambda: ledger.entries()):
        with pytest.raises(ClusterError):
            use()
