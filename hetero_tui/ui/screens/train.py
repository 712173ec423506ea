"""Shows the train form: jobs at the left, settings with defaults at the right; open until a run is accepted."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from hetero_tui.ui import train_form
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.draw.phases import phase_words
from hetero_tui.ui.screens.dialog import Dialog, Field, button
from hetero_tui.ui.view import View
from hetero_tui.ui.widgets.lines import Lines
from remote_agent.kinds import initials

_AROUND, _MISTAKES, _FIELDS, _TALLEST = 7, 3, 6, 14
"""Lines that border, mistakes, foot and buttons take; those of the mistakes in that; those of the two fields; and the
most of the settings."""

_WIDE = 100
"""Cells of the terminal from which jobs and settings stand beside each other."""

_MARKS = re.compile(r"; ")


@dataclass(frozen=True, kw_only=True)
class TrainOrder:
    """A job's name or ``file.py:Name``, the settings that were given for it, and what is to be sent along."""

    job: str
    settings: dict[str, str]
    paths: tuple[str, ...] = ()


class SettingsList(Lines, can_focus=False):
    """The settings; scrolls."""

    scrolls = True


class TrainScreen(Dialog[None]):
    """Hands a :class:`TrainOrder` to ``begin`` and closes once that was accepted. Up and down go through the jobs."""

    hints = (("enter", "train", ""), ("up down", "job", ""), ("tab", "next", ""), ("esc", "close", ""))

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "job(-1)", show=False),
        Binding("down", "job(1)", show=False),
    ]

    def __init__(
        self,
        view: Callable[[], View],
        jobs: tuple[str, ...],
        mistakes_in: Callable[[str, dict[str, str], tuple[str, ...]], tuple[str, ...]],
        begin: Callable[[TrainOrder], Awaitable[str]],
    ) -> None:
        super().__init__(view, title="Train")
        self._jobs, self._mistakes_in, self._begin = jobs, mistakes_in, begin
        self._is_under_way = False
        self._refusal = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="train"):
            with Horizontal(id="form"):
                with Vertical(id="order"):
                    yield Static(id="text")
                    yield from self.fields()
                yield SettingsList(id="known")
            yield Static(id="mistake")
            yield Static(id="order-foot")
            with Horizontal(id="buttons"):
                yield from self.buttons()

    def fields(self) -> Iterable[Widget]:
        yield Static("Job", classes="label")
        yield Field(value=self._jobs[0] if self._jobs else "", placeholder="file.py:Name", id="job", compact=True)
        yield Static("Settings", classes="label")
        yield Field(placeholder="empty: the defaults; or name=value …", id="settings", compact=True)

    def buttons(self) -> Iterable[Button]:
        yield button("Cancel", "leave")
        yield button("Train", "train")

    def text(self, view: View, width: int) -> list[Text]:
        """The jobs, the chosen one marked."""
        palette = view.palette
        chosen = self.query_one("#job", Input).value
        if self.app.size.height < 20:
            return [Text(f"up and down: {', '.join(self._jobs)}", style=palette.muted)]
        lines = [Text("Jobs (up and down), or a path: train.py:Job", style=palette.muted)]
        for job in self._jobs:
            mark, style = ("› ", f"bold {palette.accent}") if job == chosen else ("  ", palette.foreground)
            lines.append(Text(f"{mark}{job}", style=style))
        return [*lines, Text("")]

    def draw(self, view: View) -> None:
        """Draw jobs, settings, mistakes and the foot."""
        super().draw(view)
        width, height = self.app.size
        job, text = self.query_one("#job", Input).value.strip(), self.query_one("#settings", Input).value
        mistakes, given = self._mistakes(job, text)
        palette = view.palette
        said = mistakes or ((self._refusal,) if self._refusal else ())
        red = [Text(part, style=palette.bad) for line in said for part in wrapped(line, self.room)]
        known = self.query_one("#known", SettingsList)
        is_wide = width >= _WIDE
        beside = len(self.text(view, self.room)) + _FIELDS
        room_below = min(_TALLEST, height - _AROUND - (0 if is_wide else beside) - max(0, len(red) - _MISTAKES))
        known.display = room_below >= 3
        known.styles.height = max(1, room_below)
        self.set_class(is_wide, "wide")
        typed = text.rpartition(" ")[2].partition("=")[0]
        if known.display:
            room = (min(width, 116) - 55) if is_wide else min(width, 76) - 9
            known.show(settings_lines(view, job, typed, max(20, room)))
        most = max(1, _MISTAKES + height - _AROUND - beside)
        if len(red) > most:
            rest = "… and more" if mistakes else "… and more: the events have all of it"
            red = [*red[: most - 1], Text(rest, style=palette.bad)]
        self.show("#mistake", Text("\n").join(red))
        foot = under_way(view, self.room) if self._is_under_way else train_form.foot(view.state, job, given, self.room)
        self.show("#order-foot", Text(foot, style=palette.foreground))

    def _mistakes(self, job: str, text: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """What is wrong with what is typed, and the settings in it."""
        if not job:
            return ("Which job? Give a ready job's name, or file.py:Name.",), {}
        try:
            given, paths = train_form.parse_settings(text)
        except ValueError as mistake:
            return (str(mistake),), {}
        mistakes = self._mistakes_in(job, given, paths)
        return tuple(mistake.removeprefix("--set ") for mistake in mistakes), given

    def on_input_changed(self) -> None:
        self._refusal = ""
        self.draw(self.view())

    def action_job(self, by: int) -> None:
        field = self.query_one("#job", Input)
        if self._jobs and not self._is_under_way:
            here = self._jobs.index(field.value) if field.value in self._jobs else -by
            field.value = self._jobs[(here + by) % len(self._jobs)]
            field.cursor_position = len(field.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.value != event.value:  # a key that came after Enter is none of the order
            event.input.value = event.value
        self._train()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "train":
            self._train()

    def _train(self) -> None:
        job, text = self.query_one("#job", Input).value.strip(), self.query_one("#settings", Input).value
        mistakes, given = self._mistakes(job, text)
        if mistakes or self._is_under_way:
            self.draw(self.view())
            return
        order = TrainOrder(job=job, settings=given, paths=train_form.parse_settings(text)[1])
        self._is_under_way, self._refusal = True, ""
        self.hold(True)
        self.query_one("#train").display = False
        self.relabel("leave", "Hide")
        self.draw(self.view())
        self.app.run_worker(self._accepted(order), exit_on_error=False)  # leaving the form does not take it back

    async def _accepted(self, order: TrainOrder) -> None:
        refusal = await self._begin(order)
        self._is_under_way = False
        if not self.is_attached:
            return
        if not refusal:
            self.dismiss(None)
        else:
            self._refusal = refusal
            self.hold(False)
            self.query_one("#train").display = True
            self.relabel("leave", "Cancel")
            self.draw(self.view())


def under_way(view: View, width: int) -> str:
    """How far an order is that was given, in ``width`` cells: the cluster may have to be started for it."""
    words = phase_words(view.state, view.now) or "the machines are looked at"
    part, _, what = words.partition(": ")
    said = [f"◔ {each}; it goes on when this is hidden" for each in ((words, part) if what else (words,))]
    return next((line for line in said if cell_len(line) <= width), said[-1])


def _fitting(text: str, width: int) -> str:
    """The longest beginning of a text that ends before a semicolon and fits; empty where none does."""
    ends = [len(text), *(mark.start() for mark in _MARKS.finditer(text))]
    return text[: max((end for end in ends if end <= width), default=0)]


def settings_lines(view: View, job: str, typed: str, width: int) -> list[Text]:
    """The settings whose names begin as what is typed, all if none does; their help below where there is one only.

    The job's own come first.
    """
    palette = view.palette
    known = train_form.settings_of(job)
    found = [each for each in known if typed and (each.name.startswith(typed) or initials(each.name) == typed)]
    found = found or list(known)
    label = max(len(setting.name) for setting in found)
    lines = []
    for setting in found:
        default = f"{setting.default or '-'} {setting.unit}".rstrip()
        line = Text(f"{setting.name:<{label}} ", style=palette.accent)
        line.append(f"{default:<13} ", style=palette.foreground)
        if len(found) > 1:  # its help where that fits, up to a semicolon; with its name typed it is there whole
            line.append(_fitting(setting.help, width - line.cell_len), style=palette.muted)
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    if len(found) == 1:
        lines += [Text(part, style=palette.muted) for part in wrapped(found[0].help, width)]
    return lines
