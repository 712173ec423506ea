"""What to train: a ready job or one's own file, and settings for it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from hetero_tui.ui.screens.dialog import Dialog, button
from hetero_tui.ui.view import View


@dataclass(frozen=True, kw_only=True)
class TrainOrder:
    """A job's name or ``file.py:Name``, the settings that were given for it, and what is to be sent along."""

    job: str
    settings: dict[str, str]
    paths: tuple[str, ...] = ()


def parse_settings(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """``num_iterations=200 --with data.csv`` as settings, and files to send along; quotes as in a shell.

    Raises:
        ValueError: a word is not ``key=value``; the message says which.
    """
    settings: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("A quote is opened and not closed.") from None
    paths: list[str] = []
    coming = iter(words)
    for word in coming:
        if word == "--with":
            path = next(coming, "")
            if not path:
                raise ValueError("--with needs a file or folder after it.")
            paths.append(path)
            continue
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"“{word}” is not key=value, such as num_iterations=200.")
        settings[key] = value
    return settings, tuple(paths)


class TrainScreen(Dialog[TrainOrder]):
    """Answers a :class:`TrainOrder`. Up and down go through the ready jobs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "job(-1)", show=False),
        Binding("down", "job(1)", show=False),
    ]

    def __init__(
        self,
        view: Callable[[], View],
        jobs: tuple[str, ...],
        hosts: int,
        mistakes_in: Callable[[str, dict[str, str], tuple[str, ...]], tuple[str, ...]],
    ) -> None:
        super().__init__(view, title=f"Train on {hosts} machine{'s' if hosts != 1 else ''}")
        self._jobs, self._mistakes_in = jobs, mistakes_in
        self._mistake = ""

    def fields(self) -> Iterable[Widget]:
        yield Static("Job", classes="label")
        yield Input(value=self._jobs[0] if self._jobs else "", placeholder="file.py:Name", id="job", compact=True)
        yield Static("Settings", classes="label")
        yield Input(placeholder="num_iterations=200 batch_size=64", id="settings", compact=True)
        yield Static(id="mistake")

    def buttons(self) -> Iterable[Button]:
        yield button("Cancel", "leave")
        yield button("Train", "train")

    def on_mount(self) -> None:
        self.query_one("#job", Input).focus()

    def text(self, view: View, width: int) -> list[Text]:
        palette = view.palette
        ready = Text("Ready jobs, with up and down: ", style=palette.muted)
        ready.append(", ".join(self._jobs) or "none", style=palette.foreground)
        own = Text("Your own: a path such as ", style=palette.muted).append("train.py:Job", style=palette.foreground)
        return [ready, own, Text("")]

    def action_job(self, by: int) -> None:
        field = self.query_one("#job", Input)
        if self._jobs:
            here = self._jobs.index(field.value) if field.value in self._jobs else -by
            field.value = self._jobs[(here + by) % len(self._jobs)]

    def on_input_submitted(self) -> None:
        self._train()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "train":
            self._train()

    def _train(self) -> None:
        job = self.query_one("#job", Input).value.strip()
        try:
            if not job:
                raise ValueError("Which job? Give a ready job's name, or file.py:Name.")
            settings, paths = parse_settings(self.query_one("#settings", Input).value)
            mistakes = self._mistakes_in(job, settings, paths)
            if mistakes:
                raise ValueError("\n".join(mistakes))
        except ValueError as mistake:
            self.query_one("#mistake", Static).update(Text(str(mistake), style=self.view().palette.warning))
            return
        self.dismiss(TrainOrder(job=job, settings=settings, paths=paths))
