"""Draws the parts of a step's time: the workers' compute, push, pull and wait, and the bottleneck."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from hetero_tui.state import RunView, WorkerView
from hetero_tui.ui import format as fmt
from hetero_tui.ui.draw.bars import OF_STAGES, PARTS, stacked_bar
from hetero_tui.ui.palette import Palette

if TYPE_CHECKING:
    from remote_agent.protocol import WorkerStep


NOT_YET = "no step yet"
"""Where there is nothing to draw."""


@dataclass(frozen=True, kw_only=True)
class WorkerTime:
    """One worker's part of a step in seconds; ``parts`` are in the order of :data:`~hetero_tui.ui.draw.bars.PARTS`.

    ``word`` says why it has none just now: lost, drained, benched, joined a moment ago.
    """

    worker: str
    label: str
    host: str
    fraction: float
    parts: tuple[float, float, float, float]
    word: str = ""

    @property
    def total(self) -> float:
        """Seconds of the whole step as this worker saw it."""
        return math.fsum(self.parts)

    @property
    def working(self) -> float:
        """Seconds that it did not wait for others."""
        return math.fsum(self.parts[:3])


def recent_times(run: RunView) -> tuple[WorkerTime, ...]:
    """Means over the recent steps with the shares of now that each worker took part in, in the order of the plan."""
    return _times(run, [step.workers for step in run.steady])


def last_times(run: RunView) -> tuple[WorkerTime, ...]:
    """The last step alone, with the shares that it had: the workers' shares and states may be others by now."""
    parts = run.recent[-1].workers if run.recent else ()
    total = sum(part.samples for part in parts) or 1
    had: Counter[str] = Counter()
    for part in parts:
        had[part.worker] += part.samples
    return _times(run, [parts], None if run.stages else {worker: samples / total for worker, samples in had.items()})


def _times(
    run: RunView, steps: Sequence[Sequence[WorkerStep]], had: Mapping[str, float] | None = None
) -> tuple[WorkerTime, ...]:
    """``had`` are the workers' shares at that time; None: those of now."""
    if run.is_starting and not run.recent:
        return ()  # where its workers stand is of the time before it was resumed
    by_worker: dict[str, list[WorkerStep]] = {}
    for step in steps:
        for part in step:
            by_worker.setdefault(part.worker, []).append(part)
    hosts = [worker.host for worker in run.workers]
    times = []
    for worker in run.workers:
        taken = by_worker.get(worker.worker)
        label = worker.host if hosts.count(worker.host) == 1 else f"{worker.host} {worker.device}"
        took_part = had is not None and worker.worker in had
        word = "" if took_part else _word_of(worker, is_over=run.state.final, staged=bool(run.stages))
        if not taken and not word:
            if not run.recent:
                continue
            word = NOT_YET  # it joined a moment ago
        parts = _means(taken) if taken and not word else (0.0, 0.0, 0.0, 0.0)
        name, share = worker.worker, worker.fraction if had is None else had.get(worker.worker, 0.0)
        times.append(WorkerTime(worker=name, label=label, host=worker.host, fraction=share, parts=parts, word=word))
    return tuple(times)


def _word_of(worker: WorkerView, *, is_over: bool, staged: bool) -> str:
    if not worker.alive:
        lost = "coming back" if worker.is_coming else "lost, tried again by itself"
        lost = "was away at the end" if is_over else lost
        return "drained" if worker.drained else lost
    if worker.is_coming:
        return "coming back"
    none = "holds no blocks, a step is shorter so" if staged else "too slow just now"
    if is_over:
        none = "held no blocks at the end" if staged else "was too slow at the end"
    return "" if worker.samples else none


def _means(steps: Sequence[WorkerStep]) -> tuple[float, float, float, float]:
    return (
        math.fsum(step.compute_s for step in steps) / len(steps),
        math.fsum(step.push_s for step in steps) / len(steps),
        math.fsum(step.pull_s for step in steps) / len(steps),
        math.fsum(step.wait_s for step in steps) / len(steps),
    )


def moved_words(run: RunView) -> str:
    """The bytes of the last step; of a pipeline those of the stage that sent most."""
    last = run.recent[-1]
    if run.stages:
        return f"a stage sent {fmt.size(last.bytes_pushed)} at most"
    return f"{fmt.size(last.bytes_pushed)} pushed, {fmt.size(last.bytes_pulled)} pulled"


def verdict(times: Sequence[WorkerTime]) -> str:
    """What the step waits for: the worker that waits least sets the pace, by its link or by its device.

    If that one waits for most of a short step, it is for the coordinator.
    """
    times = [time for time in times if not time.word]
    if not times:
        return ""
    pace = max(times, key=lambda time: time.working)
    compute, push, pull, wait = pace.parts
    if wait > pace.working:
        return "bound by calls between processes"
    if push + pull > compute:  # on one host they need not cross a link
        return f"link-bound: {pace.label}" if len({time.host for time in times}) > 1 else "bound by push and pull"
    return f"compute-bound: {pace.label}" if len(times) > 1 else "compute-bound"


def step_time_lines(
    times: Sequence[WorkerTime],
    width: int,
    height: int,
    palette: Palette,
    *,
    staged: bool = False,
    none: str = NOT_YET,
) -> list[Text]:
    """A bar for each worker and a legend in ``height`` lines of ``width`` cells, with air between where there is room.

    Where not all workers fit, those that wait least are shown: they set the pace. ``staged``: they are a pipeline's.
    ``none``: what is said where there is no worker.
    """
    if not times or height < 2:
        return [Text(none, style=palette.muted)]
    rows = height - 1
    shown: Sequence[WorkerTime] = times
    if len(times) > rows:
        kept = sorted(times, key=lambda time: time.working, reverse=True)[: max(1, rows - 1)]
        shown = [time for time in times if time in kept]
    lines = _bars(shown, width, palette, airy=len(shown) * 2 - 1 <= rows)
    if len(shown) < len(times):
        lines.append(Text(f"and {fmt.plural(len(times) - len(shown), 'worker')} that wait longer", palette.muted))
    lines.extend(Text("") for _ in range(rows - len(lines)))
    if not all(time.word for time in times):
        lines.append(_legend(times, width, palette, OF_STAGES if staged else {}))
    return lines[:height]


def timeline_lines(
    times: Sequence[WorkerTime], width: int, height: int, palette: Palette, none: str = NOT_YET
) -> list[Text]:
    """The last step from its start to its end, a line a worker, above an axis in milliseconds."""
    if not times or height < 2:
        return [Text(none, style=palette.muted)]
    bars = _bars(times[: height - 1], width, palette, airy=len(times) * 2 - 1 <= height - 1)
    left, right = _label_width(times) + 7, 10
    room = max(1, width - left - right)
    end = fmt.milliseconds(max(time.total for time in times))
    nothing = all(time.word for time in times)
    axis = Text("" if nothing else " " * left + "0" + f"{end:>{room - 1}}", style=palette.muted)
    return [*bars, *(Text("") for _ in range(height - 1 - len(bars))), axis]


def _label_width(times: Sequence[WorkerTime]) -> int:
    return min(18, max(len(time.label) for time in times))


def _bars(times: Sequence[WorkerTime], width: int, palette: Palette, *, airy: bool) -> list[Text]:
    longest = max(time.total for time in times) or 1.0
    labels = _label_width(times)
    room = max(1, width - labels - 7 - 10)
    lines = []
    for time in times:
        if time.word:
            lines.append(Text(f"{time.label[:labels]:<{labels}}    -  {time.word}"[:width], style=palette.muted))
            lines += [Text("")] if airy else []
            continue
        line = Text(f"{time.label[:labels]:<{labels}} ", style=palette.foreground)
        line.append(f"{fmt.share(time.fraction)}  ", style=palette.muted)
        line.append_text(stacked_bar(time.parts, longest, room, palette))
        lines.append(line.append(f"{fmt.milliseconds(time.total):>10}", style=palette.foreground))
        if airy:
            lines.append(Text(""))
    return lines[:-1] if airy else lines


def _legend(times: Sequence[WorkerTime], width: int, palette: Palette, words: Mapping[str, str]) -> Text:
    """What the glyphs mean, with each part's share of all the time where there is room for it."""
    total = math.fsum(time.total for time in times) or 1.0
    with_shares, plain = Text(), Text()
    for index, (word, glyph, role) in enumerate(PARTS):
        share = math.fsum(time.parts[index] for time in times) / total
        for legend, figure in ((with_shares, f" {fmt.share(share).strip()}"), (plain, "")):
            legend.append(f"{glyph} ", style=getattr(palette, role))
            legend.append(f"{words.get(word, word)}{figure}   ", style=palette.muted)
    legend = with_shares if with_shares.cell_len - 3 <= width else plain
    legend.truncate(max(0, width))
    return legend
