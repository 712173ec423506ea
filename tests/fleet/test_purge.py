"""`down --purge` takes environments away, also from hosts that left the inventory or moved."""

import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import ClusterError
from hetero_tui.inventory.file import load, remove_host
from hetero_tui.session import Session


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


async def test_another_inventorys_cluster_of_the_same_name_stays_as_it_is(machines: EmbeddedMachines) -> None:
    whole = (machines.folder / "inventory.yaml").read_text().replace(", head: fast", "").splitlines()
    paths = [machines.folder / name / "inventory.yaml" for name in ("one", "two")]
    for path, gone in zip(paths, ("half", "fast"), strict=True):
        path.parent.mkdir()
        path.write_text("\n".join(line for line in whole if not line.strip().startswith((f"{gone}:", "quarter:"))))
    state = machines.folder / "laptop"
    async with Session(load(paths[0]), paths[0], ledger_folder=state) as session:
        equip(session, machines)
        session._fleet.ledger.intend(session.inventory.hosts[0], "node")
    async with Session(load(paths[1]), paths[1], ledger_folder=state) as session:
        for attempt in (session.up, session.down):
            with pytest.raises(ClusterError) as refused:
                await attempt()
            assert f"hetero-tui --inventory {paths[0]} down" in refused.value.hint
        assert left(machines, "fast") == ["env", "install", "runs"]
        paths[0].unlink()
        assert (await session.down(purge=True)).leftovers == ()
        assert left(machines, "fast") == ["runs"]


async def test_a_host_that_is_away_is_a_leftover_until_the_next_purge(machines: EmbeddedMachines) -> None:
    path, laptop = machines.folder / "inventory.yaml", machines.folder / "laptop"
    async with Session(load(path), path, ledger_folder=laptop) as session:
        equip(session, machines)
        await machines.unplug("half")
        report = await session.down(purge=True)
        assert {leftover.host for leftover in report.leftovers} == {"half"}
        await machines.plug_in("half")
    async with Session(remove_host(path, "half"), path, ledger_folder=laptop) as session:
        assert (await session.down(purge=True)).leftovers == ()
        assert left(machines, "half") == ["runs"]
        assert session._fleet.environments.entries() == ()


async def test_a_host_that_moved_is_cleaned_at_its_new_address(machines: EmbeddedMachines) -> None:
    path = machines.folder / "inventory.yaml"
    async with Session(load(path), path, ledger_folder=machines.folder / "laptop") as session:
        equip(session, machines)
        (half,) = [host for host in session.inventory.hosts if host.name == "half"]
        moved = half.model_copy(update={"address": "127.0.0.1", "port": 1})  # nothing answers there
        ledgers = session._fleet.ledger, session._fleet.environments
        for ledger in ledgers:
            ledger.intend(moved, "node")
        assert (await session.down(purge=True)).leftovers == ()
        assert [ledger.entries() for ledger in ledgers] == [(), ()]


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
        report = await session.down(purge=True)
        assert report.leftovers == ()
        assert left(machines, "half") == left(machines, "fast") == ["runs"]
        assert fleet.ledger.entries() == fleet.environments.entries() == ()
