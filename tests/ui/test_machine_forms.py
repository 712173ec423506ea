"""The forms of the inventory on real files, and the dialogs that install and check, over a session that is given."""

from __future__ import annotations

import socket

import pytest
from textual.widgets import Input

from hetero_tui.inventory.file import load
from hetero_tui.machines import Machines, fields_of
from hetero_tui.ui.screens.check import CheckScreen
from hetero_tui.ui.screens.install import InstallScreen
from hetero_tui.ui.screens.machine import MachineScreen
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.screens.questions import RemoveScreen
from tests.ui.looking import dialog_text, settle, toasts

FILE = """# mine
hosts:
  mercer: {address: mercer.local, port: 2222}  # the old one
  crosby: {address: 192.168.1.12, devices: [cpu]}
  macbook: {address: studio.local}
  nas: {address: nas.local, proxy_jump: mercer}
"""


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text(FILE)
    return path


def closed_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


async def test_this_computer_is_added_after_a_look_at_it_and_the_file_is_made(tmp_path, scenarios, open_app) -> None:
    path = tmp_path / "inventory.yaml"
    app = open_app(scenarios.empty(), machines=lambda: Machines(path))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("a")
        assert isinstance(app.screen, MachineScreen)
        await pilot.press("enter")
        assert "'' is not [user@]host[:port]" in dialog_text(app)
        app.screen.query_one("#target", Input).value = "this computer"
        app.screen.query_one("#name", Input).value = "laptop"
        await pilot.press("enter")
        await settle(app, pilot)
        assert isinstance(app.screen, MainScreen), dialog_text(app)
        assert load(path).host("laptop").connection == "local"
        assert "laptop is in" in toasts(app)[-1]
        assert "Python 3" in toasts(app)[-1]


async def test_a_machine_that_does_not_answer_is_written_only_if_that_is_wanted(inventory, scenarios, open_app) -> None:
    app = open_app(scenarios.probed(), machines=lambda: Machines(inventory))
    async with app.run_test(size=(60, 15)) as pilot:
        await pilot.press("a")
        app.screen.query_one("#target", Input).value = f"me@127.0.0.1:{closed_port()}"
        await pilot.pause()
        assert app.screen.query_one("#name", Input).placeholder == "host-127-0-0-1"
        assert not app.screen.query_one("#anyway").display
        await pilot.press("enter")
        await settle(app, pilot)
        assert "refuse" in dialog_text(app)
        assert inventory.read_text() == FILE
        for name in ("leave", "anyway", "write"):
            assert app.screen.query_one("#dialog").content_region.contains_region(
                app.screen.query_one(f"#{name}").region
            )
        await pilot.click("#anyway")
        await settle(app, pilot)
        assert isinstance(app.screen, MainScreen)
        assert load(inventory).host("host-127-0-0-1").user == "me"
        assert inventory.read_text().startswith(FILE)


async def test_mistakes_are_said_while_they_are_typed_and_nothing_is_written(inventory, scenarios, open_app) -> None:
    app = open_app(scenarios.probed(), machines=lambda: Machines(inventory))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("a")
        app.screen.query_one("#target", Input).value = "mercer.local:2222"
        app.screen.query_one("#name", Input).value = "nas"
        await pilot.press("enter")
        assert "is there already" in dialog_text(app)
        app.screen.query_one("#name", Input).value = "rack"
        app.screen.query_one("#cpus", Input).value = "many"
        app.screen.query_one("#devices", Input).value = "cuda:0, gpu"
        await pilot.pause()
        assert "cpus: should be a whole number, not 'many'" in dialog_text(app)
        assert "devices: 'gpu' is not a device" in dialog_text(app)
        await pilot.press("enter", "escape")
    assert inventory.read_text() == FILE


async def test_the_marked_machine_is_changed_and_comments_stay(inventory, scenarios, open_app) -> None:
    app = open_app(scenarios.probed(), machines=lambda: Machines(inventory))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        assert app.screen.query_one("#target", Input).value == "mercer.local:2222"
        await pilot.press(*["tab"] * 7, "3")
        app.screen.query_one("#devices", Input).value = "cuda:0 cpu"
        await pilot.press("enter")
        await settle(app, pilot)
        assert isinstance(app.screen, MainScreen), dialog_text(app)
    line = "  mercer: {address: mercer.local, port: 2222, cpus: 3, devices: [cuda:0, cpu]}  # the old one"
    assert sorted(inventory.read_text().splitlines()[2]) == sorted(line)
    assert inventory.read_text().splitlines()[3:] == FILE.splitlines()[3:]


async def test_a_machine_is_taken_out_after_a_question_and_not_while_another_needs_it(
    inventory, scenarios, open_app
) -> None:
    app = open_app(scenarios.probed(), machines=lambda: Machines(inventory))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("R", "enter")
        assert inventory.read_text() == FILE
        await pilot.press("R", "right", "enter")
        await pilot.pause()
        assert "hosts.nas.proxy_jump: names mercer" in toasts(app)[-1]
        await pilot.press("down", "R")
        assert isinstance(app.screen, RemoveScreen)
        await pilot.press("right", "enter")
        await pilot.pause()
    assert inventory.read_text() == FILE.replace(FILE.splitlines()[3] + "\n", "")


async def test_a_fleet_without_a_file_of_its_own_has_no_forms_and_readonly_refuses_them(
    inventory, scenarios, open_app
) -> None:
    from hetero_tui.ui.preferences import Preferences

    app = open_app(scenarios.probed())
    async with app.run_test() as pilot:
        await pilot.press("a", "e", "R")
        assert toasts(app)[-1] == "This fleet has no inventory file to change."
    app = open_app(scenarios.probed(), machines=lambda: Machines(inventory), preferences=Preferences(readonly=True))
    async with app.run_test() as pilot:
        await pilot.press("a", "i")
        assert isinstance(app.screen, MainScreen)
        assert "only shows" in toasts(app)[-1]


async def test_installing_asks_shows_each_machine_and_then_what_came_of_it(scenarios, open_app) -> None:
    app = open_app(scenarios.probed())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("i")
        assert isinstance(app.screen, InstallScreen)
        app.screen.query_one("#extras", Input).value = "datasets -evil"
        await pilot.pause()
        assert "-evil" in dialog_text(app)
        app.screen.query_one("#extras", Input).value = "datasets"
        await pilot.press("enter")
        await settle(app, pilot)
        assert app.intents.asked == [("install", "datasets", False), ("probe",)]
        assert "mercer: Python 3.11.9, torch 2.13.0+cu126, works on cuda:0" in dialog_text(app)
        assert "nas: no answer from nas.local:22" in dialog_text(app)


async def test_the_check_shows_each_finding_with_what_mends_it_and_mends_what_is_ours(scenarios, open_app) -> None:
    app = open_app(scenarios.probed())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("c")
        assert isinstance(app.screen, CheckScreen)
        await settle(app, pilot)
        for words in ("it goes to sleep after 10 min", "why: it is lost to the run", "do: sudo pmset -c sleep 0"):
            assert words in dialog_text(app)
        await pilot.click("#mend")
        await settle(app, pilot)
        assert app.intents.asked == [("check", False), ("check", True)]


async def test_every_form_fits_a_small_terminal_with_its_buttons_and_fields_in_sight(
    inventory, scenarios, open_app
) -> None:
    """``test_screens.py`` has the larger ones."""
    app = open_app(scenarios.probed(), machines=lambda: Machines(inventory))
    async with app.run_test(size=(60, 15)) as pilot:
        for key in "aeRic":
            await settle(app, pilot, key)
            dialog = app.screen.query_one("#dialog").region
            assert dialog.bottom <= 15
            shown = [each.region for each in app.screen.query("#buttons Button") if each.display]
            assert all(map(dialog.contains_region, shown))
            if key in "ae":  # each field can be reached
                for _ in app.screen.query(Input):
                    assert app.screen.query_one("#body").region.contains_region(app.focused.region), app.focused.id
                    await pilot.press("down")
            await pilot.press("escape")


def test_a_form_shows_what_is_written_and_writes_the_same_again(tmp_path) -> None:
    path = tmp_path / "inventory.yaml"
    text = (
        "defaults: {user: me, connection: local}\nhosts:\n"
        '  a: {connection: ssh, address: "fd00::7", port: 7, devices: [cpu]}\n  b: {cpus: 2}\n'
    )
    path.write_text(text)
    machines = Machines(path)
    assert machines.form("a") == {"target": "[fd00::7]:7", "devices": "cpu"}
    assert machines.form("b") == {"target": "this computer", "cpus": "2"}
    for name in ("a", "b"):
        machines.write(name, fields_of(machines.form(name)), is_new=False)
    assert path.read_text() == text
    assert machines.mistakes_in("b", {"target": "b.local", "cpus": "0"}, is_new=False) == (
        "cpus: 0 is out of range; it should be at least 1",
    )
    machines.write("b", fields_of({"target": "b.local"}), is_new=False)
    assert load(path).host("b").address == "b.local"
    assert load(path).host("b").cpus is None
