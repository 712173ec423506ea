"""A recording as it was read: what was known at any moment of it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from hetero_tui.errors import UsageError
from hetero_tui.fold import apply
from hetero_tui.recording import lines
from hetero_tui.recording.recorder import folder
from hetero_tui.state import State

STEP = "replay"


@dataclass(frozen=True)
class Recording:
    """What was folded, in its order; see :func:`read`.

    Attributes:
        entries: times and events, or whole states; the first is a state.
        times: of the entries, in seconds since the epoch, in order even where the clock was set back.
        cut_off: the session did not end in good order, or goes on.
    """

    path: Path
    cluster: str
    entries: tuple[lines.Entry, ...]
    times: tuple[float, ...]
    cut_off: bool

    @property
    def begins(self) -> float:
        """The time of the first entry."""
        return self.times[0]

    @property
    def ends(self) -> float:
        """The time of the last entry."""
        return self.times[-1]

    def count_until(self, time: float) -> int:
        """How many entries are there at ``time``; at least the first state."""
        return max(1, bisect_right(self.times, time))

    def state_after(self, count: int) -> State:
        """What was known after the first ``count`` entries."""
        start = next(index for index in reversed(range(count)) if isinstance(self.entries[index][1], State))
        state = self.entries[start][1]
        assert isinstance(state, State), "it was looked for"
        return self.folded(state, start + 1, count)

    def folded(self, state: State, start: int, end: int) -> State:
        """``state``, which was known after ``start`` entries, as it was after ``end`` of them."""
        for _, what in self.entries[start:end]:
            if isinstance(what, State):
                state = what
            elif what is not None:
                state = apply(state, what)
        return state


def read(path: Path) -> Recording:
    """Read a recording.

    A last line that is not whole is left out: the app was killed while it wrote, or it is being written.

    Raises:
        UsageError: it can't be read, is no recording, or is damaged; the error names the line.
    """
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        cause = f"{path} can't be read: {error.strerror}"
        raise UsageError(cause, step=STEP, hint=f"recordings lie in {folder()}") from None
    first, *rest = text.split("\n")
    try:
        cluster = lines.cluster_of(first)
    except lines.NotReadable as error:
        raise UsageError(f"{path}: {error}", step=STEP, hint=f"recordings lie in {folder()}") from None
    whole, torn = rest[:-1], rest[-1] if rest else ""
    entries: list[lines.Entry] = []
    for number, line in enumerate(whole, start=2):
        try:
            entries.append(lines.entry(line))
        except lines.NotReadable as error:
            hint = "the file was changed; take it anew from the computer that wrote it"
            raise UsageError(f"{path}, line {number}: {error}", step=STEP, hint=hint) from None
    if not entries or not isinstance(entries[0][1], State):
        raise UsageError(f"{path} is cut off: it does not say what was known at first", step=STEP)
    ended = entries[-1][1] is None and not torn
    times = tuple(accumulate((at for at, _ in entries), max))
    return Recording(path=path, cluster=cluster, entries=tuple(entries), times=times, cut_off=not ended)


def newest() -> Path:
    """The newest recording; raises UsageError if there is none."""
    found = sorted(folder().glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not found:
        hint = "the app, and `hetero-tui train` and `attach`, make one each time"
        raise UsageError(f"there is no recording in {folder()}", step=STEP, hint=hint)
    return found[-1]
