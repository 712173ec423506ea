"""Opening the session: the first frame does not wait for it, and an inventory without machines is a tutorial."""

from __future__ import annotations

import asyncio

from hetero_tui.errors import InventoryError
from hetero_tui.launcher import changes_of
from hetero_tui.ui.app import HeteroApp
from tests.ui.looking import pane_text, seen, text_of, toasts


async def test_the_first_frame_does_not_wait_for_the_session_to_be_opened(scenarios) -> None:
    gate = asyncio.Event()
    intents = scenarios.FixedIntents(scenarios.fresh())

    async def opener():
        await gate.wait()
        return intents

    app = HeteroApp(opener, now=lambda: scenarios.NOW)
    async with app.run_test() as pilot:
        assert "opening" in text_of(app, "status")
        assert "demo" not in text_of(app, "keys"), "whether there are machines is not known yet"
        await pilot.press("u")
        assert toasts(app) == ["The inventory is still being read."]
        gate.set()
        await pilot.pause()
        assert "mercer" in text_of(app, "rows")
        assert intents.asked == [("probe",)]


async def test_an_inventory_with_mistakes_ends_the_app_with_its_error_and_exit_code() -> None:
    mistakes = InventoryError("inventory.yaml", ("line 3: hots: did you mean hosts?",))

    async def opener():
        raise mistakes

    app = HeteroApp(opener)
    async with app.run_test() as pilot:
        await pilot.pause()
    assert app.opening_error is mistakes
    assert app.return_code == 2


async def test_a_bug_while_the_session_is_opened_ends_the_app_and_is_kept_for_the_caller() -> None:
    async def opener():
        raise ZeroDivisionError

    app = HeteroApp(opener)
    async with app.run_test() as pilot:
        await pilot.pause()
    assert isinstance(app.opening_error, ZeroDivisionError)
    assert app.return_code == 1


async def test_an_inventory_that_names_no_machine_is_a_tutorial_until_the_file_does(scenarios, open_app) -> None:
    changed: asyncio.Queue[None] = asyncio.Queue()
    found: list[object] = [
        InventoryError("/lab/inventory.yaml", (f"there is no such file; write {'a line of a few words' * 5} to it",)),
        scenarios.FixedIntents(scenarios.empty(), inventory_path="/lab/inventory.yaml"),
        InventoryError("/lab/inventory.yaml", ("line 3: hots: did you mean hosts?",)),
        scenarios.FixedIntents(scenarios.fresh()),
        InventoryError("/lab/inventory.yaml", ("line 1: gone",)),
    ]

    async def opener():
        entry = found.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry

    async def changes():
        while True:
            await changed.get()
            yield

    app = HeteroApp(opener, changes=changes, inventory_path="/lab/inventory.yaml", now=lambda: scenarios.NOW)
    async with app.run_test(size=(60, 15)) as pilot:
        while "there is no such file" not in pane_text(app):
            await pilot.pause()
        assert "there is no such file" in pane_text(app)
        assert "d  shows it all on this computer" in seen(app), "on a small terminal, too"
        for words in ("", "hots: did you mean hosts?"):
            changed.put_nowait(None)
            await pilot.pause()
            said = pane_text(app)
            assert "/lab/inventory.yaml" in said
            assert "mercer: {address: mercer.local}" in said
            assert words in said
        assert "e edit" in text_of(app, "keys")
        changed.put_nowait(None)
        await pilot.pause()
        assert "mercer" in app.main.hosts.rows.text
        assert app.intents.asked == [("probe",)]
        await pilot.press("down")
        await pilot.pause()
        assert app.main.hosts.rows.marked == "crosby", "the keys are about the machines from their first moment on"
        changed.put_nowait(None)
        await pilot.pause()
        assert "mercer" in app.main.hosts.rows.text
        assert "the machines stay as they were: line 1: gone" in toasts(app)[-1]
        await pilot.press("ctrl+c")
    assert app.return_code == 0


async def test_a_change_of_the_inventory_is_noticed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("hetero_tui.launcher.LOOK_EVERY", 0.01)
    path = tmp_path / "inventory.yaml"
    changes = changes_of(path)
    coming = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    for text in ("hosts: {}", "hosts: {a: {address: b}}"):
        path.write_text(text)
        await asyncio.wait_for(coming, 10)
        coming = asyncio.ensure_future(anext(changes))
    path.unlink()
    await asyncio.wait_for(coming, 10)
    await changes.aclose()
