"""A machine of the inventory in a form: a new one, or one to change; open until it is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from hetero_tui.ui.details import wrapped
from hetero_tui.ui.screens.dialog import LOW, Dialog, Field, button
from hetero_tui.ui.view import View

_AROUND = 5
"""Lines that border, buttons and blank lines take."""

_MOST_SAID = 6
"""Lines of what is wrong that are shown."""

TARGET, NAME = "target", "name"
LABELS: Mapping[str, tuple[str, str]] = {
    TARGET: ("Address", "me@mercer.local:2222, or this computer"),
    NAME: ("Name", ""),
    "identity_file": ("Private key", "ssh's own choice"),
    "proxy_jump": ("Through", "nothing; or a machine of the inventory"),
    "known_hosts": ("known_hosts", "~/.ssh/known_hosts"),
    "python": ("Python", "hetero-tui's own environment there"),
    "devices": ("Devices", "all accelerators; or such as cuda:0, cpu"),
    "max_batch": ("Most samples", "of one step on each device: no limit"),
    "cpus": ("CPU threads", "all"),
    "role": ("Role", "any; or worker, or server"),
}
"""The label of each field, and what holds where it is empty."""


@dataclass(frozen=True, kw_only=True)
class MachineOrder:
    """A machine as it was typed; ``is_wanted_anyway``: it is written though it did not answer."""

    name: str
    typed: Mapping[str, str]
    is_wanted_anyway: bool = False


class Form(Protocol):
    """What a form asks of the inventory's file; :class:`hetero_tui.machines.Machines` does."""

    def free_name(self, address: str) -> str:
        """A name for a machine at an address."""

    def mistakes_in(self, name: str, typed: Mapping[str, str], *, is_new: bool) -> tuple[str, ...]:
        """What is wrong with what was typed."""


class MachineScreen(Dialog[None]):
    """Hands a :class:`MachineOrder` to ``begin``, and closes once it is written.

    Args:
        view: the input of a frame.
        form: the inventory's file.
        begin: looks at the machine and writes it; the answer says why not, or is empty.
        elsewhere: a further button and what it does, in this form's place.
        name: of the machine that is changed; empty: a new one.
        typed: what its fields hold.
        inherited: what holds for a field that is empty, where the inventory's ``defaults`` say it.
    """

    hints = (("enter", "write", ""), ("tab", "next", ""), ("esc", "close", ""))

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    def __init__(
        self,
        view: Callable[[], View],
        form: Form,
        begin: Callable[[MachineOrder], Awaitable[str]],
        *,
        elsewhere: tuple[str, Callable[[], None]] | None = None,
        name: str = "",
        typed: Mapping[str, str] | None = None,
        inherited: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(view, title=f"{name} in the inventory" if name else "Add a machine")
        self._form, self._begin, self._elsewhere = form, begin, elsewhere
        self._changed, self._typed, self._inherited = name, dict(typed or {}), dict(inherited or {})
        self._is_under_way = False
        self._refusal = ""
        self._was_tried = False
        self._mistakes: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="machine"):
            with VerticalScroll(id="body", can_focus=False):
                yield from self.fields()
            yield Static(id="text")
            with Horizontal(id="buttons"):
                yield from self.buttons()

    def fields(self) -> Iterable[Widget]:
        for key, (label, empty) in LABELS.items():
            if key == NAME and self._changed:
                continue
            field = Field(
                value=self._typed.get(key, ""),
                placeholder=self._inherited.get(key, empty),
                id=key,
                compact=True,
            )
            yield Horizontal(Static(label, classes="label"), field, classes="row")

    def buttons(self) -> Iterable[Button]:
        yield button("Cancel", "leave")
        if self._elsewhere is not None:
            yield button(self._elsewhere[0], "elsewhere")
        yield button("Write it all the same", "anyway")
        yield button("Save" if self._changed else "Add", "write")

    def on_mount(self) -> None:
        self._offer(anyway=False)
        self.query_one(f"#{TARGET}", Input).focus()
        self._judge()

    def text(self, view: View, width: int) -> list[Text]:
        """What is wrong, or under way; at first, which machines ssh knows."""
        palette = view.palette
        if self._is_under_way:
            return [Text("◔ looking at it over SSH", style=palette.foreground)]
        said = [*self._mistakes, *([self._refusal] if self._refusal else [])]
        if said:
            lines = [part for line in said for text in line.splitlines() for part in wrapped(text, width)]
            return [Text(line, style=palette.bad) for line in lines[:_MOST_SAID]]
        return [Text("")]

    def draw(self, view: View) -> None:
        """Draw what is said; the fields scroll where the terminal is too low for all of them."""
        is_low = self.app.size.height < LOW
        self.set_class(is_low, "low")
        said = self.text(view, self.room)
        body = self.query_one("#body")
        body.styles.max_height = max(1, self.app.size.height - _AROUND - len(said) + is_low)
        self.show("#text", Text("\n").join(said))

    def _values(self) -> dict[str, str]:
        return {field.id or "": field.value.strip() for field in self.query(Input)}

    @property
    def _machine(self) -> str:
        values = self._values()
        address = values[TARGET].rpartition("@")[2].partition(":")[0]
        return self._changed or values[NAME] or self._form.free_name(address)

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._is_under_way:
            return
        self._refusal = ""
        self._offer(anyway=False)
        if event.input.id == TARGET and not self._changed:
            self.query_one(f"#{NAME}", Input).placeholder = self._machine if event.value else LABELS[NAME][1]
        self._judge()

    def _offer(self, *, anyway: bool) -> None:
        """Writing it all the same takes the place of the way elsewhere: there is no room for both."""
        self.query_one("#anyway").display = anyway
        for way in self.query("#elsewhere"):
            way.display = not anyway

    def _judge(self) -> None:
        """Say what is wrong; of an address that is being typed only once the form was sent."""
        values = self._values()
        is_begun = bool(values[TARGET]) or self._was_tried
        self._mistakes = self._form.mistakes_in(self._machine, values, is_new=not self._changed) if is_begun else ()
        self.draw(self.view())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.value != event.value:  # a key that came after Enter is none of the order
            event.input.value = event.value
        self._send()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "elsewhere" and self._elsewhere is not None:
            self.dismiss(None)
            self._elsewhere[1]()
        elif event.button.id in ("write", "anyway"):
            self._send(is_wanted_anyway=event.button.id == "anyway")

    def _send(self, *, is_wanted_anyway: bool = False) -> None:
        if self._is_under_way:
            return
        self._was_tried = True
        self._judge()
        if self._mistakes:
            return
        order = MachineOrder(name=self._machine, typed=self._values(), is_wanted_anyway=is_wanted_anyway)
        self._is_under_way, self._refusal = True, ""
        self.hold(True)
        self.draw(self.view())
        self.run_worker(self._written(order), exit_on_error=False)

    async def _written(self, order: MachineOrder) -> None:
        refusal = await self._begin(order)
        self._is_under_way = False
        if not self.is_attached:
            return
        if not refusal:
            self.dismiss(None)
            return
        self._refusal = refusal
        self.hold(False)
        self._offer(anyway=True)
        self.draw(self.view())
