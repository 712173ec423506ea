"""`down --purge` takes environments away; a host that is away is remembered, and cleaned once it is back."""

import os
import time
from pathlib import Path

import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import ClusterError
from hetero_tui.fleet import live as live_module
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.fleet.ledger import PURGE
from hetero_tui.fleet.survey import Surveyed
from hetero_tui.inventory.file import load, remove_host
from hetero_tui.session import Session
from remote_agent.protocol import NodeReport, NodeSpec
from remote_agent.states import RayState


def equip(session: Session, machines: EmbeddedMachines) -> None:
    """As bootstrap leaves it: a folder on each host, and a line in the ledger."""
    for host in session.inventory.hosts:
        session._fleet.environments.intend(host, "environment")
        place = machines.machine(host.name).home / ".hetero-tui" / machines.cluster
        for name in ("env", "install", "runs/digits-1"):
            (place / name).mkdir(parents=True)
        (place / "env/ready").write_text("{}")


def left(machines: EmbeddedMachines, name: str) -> list[str]:
    return sorted(path.name for path in (machines.machine(name).home / ".hetero-tui").glob("*/*"))


async def test_environments_go_with_purge_and_stay_without(machines: EmbeddedMachines):
    path = machines.folder / "inventory.yaml"
    async with Session(load(path), path, ledger_folder=machines.folder / "laptop") as session:
        equip(session, machines)
        report = await session.down()
        assert report.leftovers == ()
        assert left(machines, "half") == ["env", "install", "runs"]

        report = await session.down(purge=True)
        assert report.leftovers == ()
        assert {removed.host for removed in report.removed if removed.kind == "environment"} == {
            "fast",
            "half",
            "quarter",
        }
        assert left(machines, "half") == ["runs"], "what was trained stays"
        assert session._fleet.environments.entries() == ()


async def test_a_purge_takes_all_but_the_runs_where_there_is_no_environment_too_and_what_stays_is_named(
    machines: EmbeddedMachines,
):
    path, folder = machines.folder / "inventory.yaml", f"~/.hetero-tui/{machines.cluster}"
    async with Session(load(path), path, ledger_folder=machines.folder / "laptop") as session:
        of_both = ("agent", "profiles", "plans/plan-1", "runs/digits-1")
        there = {"fast": (*of_both, "env/lib", "install/uv"), "half": of_both, "quarter": ("profiles",)}
        for host, names in there.items():
            for name in names:
                (machines.machine(host).home / ".hetero-tui" / machines.cluster / name).mkdir(parents=True)
        report = await session.down()
        assert report.leftovers == ()
        assert left(machines, "half") == ["agent", "profiles", "runs"], "a plan that was cut off is of no use"
        of_half = {(item.kind, item.detail) for item in report.kept if item.host == "half"}
        names = {"agent": "agent", "measurements": "profiles", "runs": "runs"}
        assert of_half == {(kind, f"{folder}/{name}") for kind, name in names.items()}
        assert [item.kind for item in report.kept if item.host == "quarter"] == ["measurements"]

        report = await session.down(purge=True)
        assert report.leftovers == ()
        assert (left(machines, "fast"), left(machines, "half"), left(machines, "quarter")) == (["runs"], ["runs"], [])
        assert [(item.host, item.kind) for item in report.kept] == [("fast", "runs"), ("half", "runs")]
        gone = {item.detail for item in report.removed if item.host == "half"}
        assert {f"{folder}/agent", f"{folder}/profiles"} <= gone


async def test_the_cluster_of_another_folder_that_has_the_same_name_stays_as_it_is(machines: EmbeddedMachines) -> None:
    whole = (machines.folder / "inventory.yaml").read_text().replace(", head: fast", "").splitlines()
    paths = [machines.folder / name / "inventory.yaml" for name in ("one", "two")]
    for path, gone in zip(paths, ("half", "fast"), strict=True):
        path.parent.mkdir()
        path.write_text("\n".join(line for line in whole if not line.strip().startswith((f"{gone}:", "quarter:"))))
    state = machines.folder / "laptop"
    async with Session(load(paths[0]), paths[0], ledger_folder=state) as session:
        equip(session, machines)
        (host,) = session.inventory.hosts
        session._fleet.ledger.intend(host, "node")
        session._fleet.ledger.keep_token("secret")
    async with Session(load(paths[1]), paths[1], ledger_folder=state) as session:
        await session.down(purge=True)
        assert left(machines, "fast") == ["env", "install", "runs"]
        assert session._fleet.ledger.token() == "secret"
        with pytest.raises(ClusterError, match=f"of {paths[0]} is not taken down") as refused:
            await session._fleet.bring_up()
        assert f"hetero-tui --inventory {paths[0]} down" in refused.value.hint
        paths[0].unlink()
        report = await session.down(purge=True)
        assert report.leftovers == ()
        assert left(machines, "fast") == ["runs"]
        assert session._fleet.ledger.token() is None


async def test_two_inventories_with_this_computer_do_not_take_each_others_cluster_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    hosts = {"one": "laptop: {connection: local}", "two": "laptop: {connection: local}"}
    hosts["wider"] = "me: {connection: local}\n  nas: {address: 127.0.0.1, port: 1}"
    paths = {name: tmp_path / f"{name}.yaml" for name in hosts}
    for name, text in hosts.items():
        paths[name].write_text(f"cluster: {{name: twice}}\nhosts:\n  {text}\n")
    (tmp_path / ".hetero-tui/twice/agent").mkdir(parents=True)

    def session(name: str) -> Session:
        return Session(load(paths[name]), paths[name], ledger_folder=tmp_path / "state")

    async with session("one") as one:
        one._fleet.ledger.intend(one.inventory.hosts[0], "node")
        for attempt in (Session.up, Session.down):
            async with session("two") as two:
                with pytest.raises(ClusterError, match=f"of {paths['one']} is not taken down"):
                    await attempt(two)
                assert any("is not taken down" in line.text for line in two.state.log)
        async with session("wider") as wider:
            report = await wider.down(purge=True)
            assert (report.removed, report.unseen) == ((), ("nas",))
            assert any("of another inventory, so it stays" in line.text for line in wider.state.log)
        assert left_at_home(tmp_path) == ["agent"]
        assert (await one.down()).leftovers == ()
        assert left_at_home(tmp_path) == []
    async with session("two") as two:
        assert (await two.down()).leftovers == (), "nothing is in the way any more"


def left_at_home(home: Path) -> list[str]:
    return sorted(path.name for path in (home / ".hetero-tui").glob("*/*"))


async def test_a_host_that_is_away_is_cleaned_when_it_is_back_also_after_it_left_the_inventory(
    machines: EmbeddedMachines,
):
    path: Path = machines.folder / "inventory.yaml"
    async with Session(load(path), path, ledger_folder=machines.folder / "laptop") as session:
        equip(session, machines)
        await machines.unplug("half")
        await machines.unplug("quarter")
        report = await session.down(purge=True)
        assert {leftover.host for leftover in report.leftovers} == {"half", "quarter"}
        assert {(entry.host.name, entry.kind) for entry in session._fleet.environments.entries()} == {
            ("half", PURGE),
            ("quarter", PURGE),
        }
        await machines.plug_in("half")
        await session.probe()
        await session.check()
        assert left(machines, "half") == ["env", "install", "runs"], "neither changes anything"
        assert sum("`down --purge` was to remove it" in line.text for line in session.state.log) == 2
        await session.bootstrap(Sources())
        assert left(machines, "half") == ["runs"]

    await machines.plug_in("quarter")
    async with Session(remove_host(path, "quarter"), path, ledger_folder=machines.folder / "laptop") as session:
        report = await session.down()
        assert report.leftovers == ()
        assert left(machines, "quarter") == ["runs"]
        assert session._fleet.environments.entries() == ()


async def test_a_removed_host_behind_a_removed_jump_host_is_reached_the_way_it_was(machines: EmbeddedMachines):
    path, laptop = machines.folder / "inventory.yaml", machines.folder / "laptop"
    path.write_text(path.read_text().replace("head: fast", "head: quarter"))
    behind = machines.machine("half")
    entry = f"half: {{address: {behind.address}, port: {behind.port}"
    path.write_text(path.read_text().replace(entry, f"{entry}, proxy_jump: fast"))
    async with Session(load(path), path, ledger_folder=laptop) as session:
        equip(session, machines)
        session._fleet.ledger.intend(session.inventory.hosts[1], "node")
        session._fleet.environments.cleaned(session.inventory.hosts[0])  # nothing of ours is on the jump host
    remove_host(path, "half")
    async with Session(remove_host(path, "fast"), path, ledger_folder=laptop) as session:
        report = await session.down(purge=True)
        assert report.leftovers == ()
        assert left(machines, "half") == ["runs"]


async def away_at_the_purge(session: Session, machines: EmbeddedMachines) -> None:
    equip(session, machines)
    await machines.unplug("half")
    await session.down(purge=True)
    await machines.plug_in("half")


@pytest.mark.parametrize("command", ["bootstrap", "down"])
async def test_an_environment_that_was_made_after_the_purge_that_did_not_reach_it_stays(
    machines: EmbeddedMachines, command: str
):
    path = machines.folder / "inventory.yaml"
    async with Session(load(path), path, ledger_folder=machines.folder / "laptop") as session:
        await away_at_the_purge(session, machines)
        ready = machines.machine("half").home / ".hetero-tui" / machines.cluster / "env/ready"
        os.utime(ready, (time.time() + 5, time.time() + 5))  # another laptop's bootstrap
        await (session.bootstrap(Sources()) if command == "bootstrap" else session.down())
        assert left(machines, "half") == ["env", "install", "runs"]
        (entry,) = session._fleet.environments.entries()
        assert (entry.host.name, entry.kind) == ("half", "environment"), "the next purge removes it"


async def test_a_node_that_another_laptop_started_meanwhile_is_not_ended_by_a_bootstrap(
    machines: EmbeddedMachines, monkeypatch: pytest.MonkeyPatch
):
    path = machines.folder / "inventory.yaml"
    spec = NodeSpec(
        cluster="lab", host="half", role="head", folder="~/x", labels={}, resources={},
        node_address="10.0.0.2", head_address="10.0.0.2", gcs_port=6389, dashboard_port=8365,
    )  # fmt: skip

    async def found(_: str, asked: dict[str, object]) -> dict[str, Surveyed]:
        node = NodeReport(host="half", state=RayState.RUNNING, spec=spec)
        return {name: Surveyed(name, node=node if name == "half" else None) for name in asked}

    async with Session(load(path), path, ledger_folder=machines.folder / "laptop") as session:
        await away_at_the_purge(session, machines)
        monkeypatch.setattr(live_module, "survey", found)
        await session.bootstrap(Sources())
        assert left(machines, "half") == ["env", "install", "runs"]
        assert [entry.kind for entry in session._fleet.environments.entries()] == ["environment"]


async def test_a_host_whose_address_changed_is_cleaned_where_it_was(machines: EmbeddedMachines):
    """Its entry is not taken for the machine that has its name now."""
    path, laptop = machines.folder / "inventory.yaml", machines.folder / "laptop"
    async with Session(load(path), path, ledger_folder=laptop) as session:
        equip(session, machines)
        session._fleet.ledger.intend(session.inventory.hosts[1], "node")
    before, now = machines.machine("half"), machines.machine("fast")
    entries = [line for line in path.read_text().splitlines() if not line.startswith("  fast:")]
    text = "\n".join(entries).replace(", head: fast", "").replace("  quarter:", "  renamed:")
    path.write_text(
        text.replace(
            f"half: {{address: {before.address}, port: {before.port}",
            f"half: {{address: {now.address}, port: {now.port}",
        )
    )
    async with Session(load(path), path, ledger_folder=laptop) as session:
        fleet = session._fleet
        with pytest.raises(ClusterError):  # nothing was probed
            await fleet.bring_up()
        said = [line.text for line in session.state.log if "no longer has" in line.text]
        assert [f"half ({machines.user}@{before.address}:{before.port})" in text for text in said[:2]] == [True, True]
        assert not any("quarter" in text for text in said), "it has another name now"
        assert [text.partition(" -> ")[2] for text in said[:2]] == [
            "`hetero-tui down` takes it away",
            "`hetero-tui down --purge` takes it away",
        ]
        report = await session.down(purge=True)
        assert report.leftovers == ()
        assert left(machines, "half") == left(machines, "fast") == ["runs"]
        assert fleet.ledger.entries() == fleet.environments.entries() == ()
