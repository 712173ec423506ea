"""`down --purge` takes environments away; a host that is away is remembered, and cleaned once it is back."""

from pathlib import Path

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.fleet.ledger import PURGE
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
        session._fleet.purges = False  # as of an app that only shows
        await session.probe()
        assert left(machines, "half") == ["env", "install", "runs"]
        session._fleet.purges = True
        await session.probe()
        assert left(machines, "half") == ["runs"]

    await machines.plug_in("quarter")
    async with Session(remove_host(path, "quarter"), path, ledger_folder=machines.folder / "laptop") as session:
        report = await session.down()
        assert report.leftovers == ()
        assert left(machines, "quarter") == ["runs"]
        assert session._fleet.environments.entries() == ()
