"""The app's terminal, which goes away when its window is closed or its connection breaks."""

from __future__ import annotations

from contextlib import suppress
from typing import IO, Any

from textual.driver import Driver


class Enduring:
    """A terminal to write to. What can't be written any more is left out.

    Textual's thread that writes would end with the first error, and the app wait for ever for it to write the rest: it
    would neither quit nor, as the demo, take its machines down.
    """

    def __init__(self, terminal: IO[str]) -> None:
        self._terminal = terminal

    def write(self, text: str) -> None:
        """Write, where there is still a terminal."""
        with suppress(OSError):
            self._terminal.write(text)

    def flush(self) -> None:
        """Flush, where there is still a terminal."""
        with suppress(OSError):
            self._terminal.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)


def enduring(driver: type[Driver]) -> type[Driver]:
    """The same driver on an :class:`Enduring` terminal, where it has one."""

    class EnduringDriver(driver):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            terminal: IO[str] | None = getattr(self, "_file", None)
            if terminal is not None:
                self._file: Any = Enduring(terminal)

    return EnduringDriver
