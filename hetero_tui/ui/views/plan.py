"""The plan: which device does how much of a step and why, predicted beside measured, and what bounds a step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.text import Text
from textual.app import ComposeResult

from hetero_tui.state import COORDINATOR, MEASURING, WORKERS, RunView, WorkerView
from hetero_tui.ui import format as fmt
from hetero_tui.ui.arrangement import FRAME
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.draw.phases import catching_up_words, phase_words
from hetero_tui.ui.draw.step_time import recent_times, verdict
from hetero_tui.ui.draw.tables import Col, table_line, titles_line
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.view import View
from hetero_tui.ui.views.pane import INSIDE, NO_HOSTS, TITLE, Pane
from hetero_tui.ui.widgets.lines import Lines
from hetero_tui.ui.widgets.table import CURSOR, Entry, Table

if TYPE_CHECKING:
    from remote_agent import protocol

_COLUMNS = (
    Col(title="HOST", width=10),
    Col(title="DEVICE", width=7, rank=4),
    Col(title="SHARE", width=5, right=True),
    Col(title="SAMPLES", width=7, right=True, rank=2),
    Col(title="SPEED", width=9, right=True, rank=3),
    Col(title="FIXED", width=7, right=True, rank=5),
    Col(title="PLANNED", width=9, right=True, rank=1),
    Col(title="COMPUTE", width=8, right=True),
    Col(title="PUSH", width=8, right=True, rank=6),
    Col(title="PULL", width=8, right=True, rank=7),
    Col(title="WAIT", width=8, right=True, rank=1),
    Col(title="HELPS", width=11, rank=8, grows=True),
)


_CAPTION = "Of a step: planned before the run, predicted for the workers of now, measured lately."
_MEANINGS = {"PLANNED": "a share's computing", "FIXED": "what any share takes"}
"""Of columns; said of those that are there."""
_LEAST_REASONS = FRAME + 2
"""Lines of the reasons without which the table has no caption."""


class PlanPane(Pane):
    """View 3."""

    def compose(self) -> ComposeResult:
        yield Table(id="plan")
        yield Lines(id="reasons", classes="panel")

    @property
    def table(self) -> Table:
        """The table of devices."""
        return self.query_one("#plan", Table)

    def draw(self, view: View, width: int, height: int) -> None:
        """The table of devices, and the plan's reasons below."""
        run, palette = view.run, view.palette
        inside = width - INSIDE - CURSOR
        titles = titles_line(_COLUMNS, inside, palette)
        if run is None or run.plan is None or is_made_anew(run):
            self.give_heights({"plan": height, "reasons": 0})
            said = wrapped(_none_yet(view), width - INSIDE)
            self.table.fill("Plan", titles, (), palette, [Text(part, style=palette.foreground) for part in said])
            return
        reasons = reasons_lines(run, run.plan, width - INSIDE, palette)
        shares = shares_of(run, run.plan)
        meant = "; ".join(f"{title}: {meaning}" for title, meaning in _MEANINGS.items() if title in titles.plain)
        said = wrapped(f"{_CAPTION} {meant}{'.' if meant else ''}".strip(), width - INSIDE)
        caption = [Text(part, style=palette.muted) for part in said]
        least = FRAME + 1 + min(len(shares), 6)
        caption = caption if height - least - len(caption) >= _LEAST_REASONS else []
        room = min(len(reasons) + FRAME, max(0, height - least - len(caption)))
        self.give_heights({"plan": height - room, "reasons": room})
        entries = [
            Entry(key=share.worker, line=table_line(_COLUMNS, _cells(run, run.plan, share, palette), inside))
            for share in shares
        ]
        self.table.fill(title_of(run, run.plan, width - TITLE), titles, entries, palette, caption)
        if room:
            self.titled("reasons", "Why")
            self.lines("reasons").show(reasons)


def title_of(run: RunView, plan: protocol.PlanMade, width: int) -> str:
    """The strategy, and the times of a step in words that fit; planned only if other workers take part now."""
    predicted, measured = run.predicted_s, run.step_seconds
    planned = plan.predicted_step_s
    times = f"planned {fmt.milliseconds(planned)}, " if planned is not None and predicted != planned else ""
    times += f"predicted {fmt.milliseconds(predicted)}"
    off = f" ({round(100 * (measured / predicted - 1)):+d}%)" if predicted and measured else ""
    times += f", measured {fmt.milliseconds(measured)}{off}"
    title = f"{run.run}: {plan.strategy}, a step {times}"
    return title if len(title) <= width else f"{plan.strategy}, {times}"


def is_made_anew(run: RunView) -> bool:
    """Whether the plan is that of the run before it was resumed: on the devices of now it gets another one."""
    return run.is_starting and run.phases[-1].name in (COORDINATOR, WORKERS, MEASURING)


def _none_yet(view: View) -> str:
    run = view.run
    if not view.state.hosts:
        return NO_HOSTS
    if run is None:
        return f"{view.no_run} A plan is made when it has measured the devices and links."
    if run.behind is not None:
        return catching_up_words(run, run.behind)
    if run.script:
        return f"{run.run} is no training run, so it has no plan."
    if run.state.final:
        return f"{run.run} ended before it had a plan."
    word = "has no plan yet" if run.plan is None else "gets a new plan"
    return f"{run.run} {word}; {phase_words(view.state, view.now) or run.detail or 'it is being resumed'}"


def shares_of(run: RunView, plan: protocol.PlanMade) -> tuple[protocol.Share, ...]:
    """The shares of the plan, and those of workers that joined later, whose speed no event tells: it is 0."""
    from remote_agent.protocol import Share  # where there is a plan, it is loaded

    planned = {share.worker for share in plan.shares}
    later = (worker for worker in run.workers if worker.worker not in planned)
    return (
        *plan.shares,
        *(Share(worker=it.worker, host=it.host, device=it.device, samples=it.samples, speed=0.0) for it in later),
    )


def _cells(run: RunView, plan: protocol.PlanMade, share: protocol.Share, palette: Palette) -> list[Text]:
    worker = next((worker for worker in run.workers if worker.worker == share.worker), None)
    time = next((time for time in recent_times(run) if time.worker == share.worker), None)
    stage = next((stage for stage in plan.stages if stage.worker == share.worker), None)
    total = sum(other.samples for other in plan.shares) or 1
    is_measured = share.speed > 0
    planned = share.samples / total
    fraction = worker.fraction if worker is not None else planned
    samples = worker.samples if worker is not None else share.samples
    parts = [fmt.milliseconds(part) for part in time.parts] if time is not None and not time.word else ["-"] * 4
    if worker is not None and not run.state.final:
        parts[0] = _gone(worker) or parts[0]
    planned_s = share.overhead_s + samples / share.speed if samples and is_measured else None
    if stage is not None:
        planned_s = stage.seconds * plan.micro_batches
    gone = worker is not None and not worker.alive
    style = palette.muted if gone else palette.foreground
    words = [
        share.host,
        share.device,
        fmt.share(fraction),
        f"{samples:,}",
        f"{share.speed:,.0f}/s" if is_measured else "-",
        fmt.milliseconds(share.overhead_s) if is_measured else "-",
        fmt.milliseconds(planned_s) if planned_s is not None else "-",
        *parts,
        helps(plan, share.host),
    ]
    cells = [Text(word, style=style) for word in words]
    cells[0].stylize(f"bold {style}")
    return cells


def _gone(worker: WorkerView) -> str:
    """Why a worker has no times just now, in a word; empty: it has."""
    if worker.is_coming:
        return "starting"
    if not worker.alive:
        return "drained" if worker.drained else "lost"
    return "" if worker.samples else "benched"


def helps(plan: protocol.PlanMade, host: str) -> str:
    """What the plan says that a host does for the speed, in short; the planner names many alike hosts in one reason."""
    unnamed = []
    for reason in plan.reasons:
        found = re.fullmatch(r"(?:each of )?(.+?) ((?:adds |makes little|is needed)[^:]*).*", reason)
        if found is None:
            continue
        named = re.split(r", | and ", found[1])
        said = found[2].removeprefix("makes ")
        if host in named:
            return said
        if re.fullmatch(r"\d+ more", named[-1]):
            unnamed.append(said)
    return unnamed[0] if len(unnamed) == 1 and host not in plan.left_out else ""


def reasons_lines(run: RunView, plan: protocol.PlanMade, width: int, palette: Palette) -> list[Text]:
    """What bounds a step, how each share follows from what was measured, and the plan's own reasons."""
    lines = []
    bound = verdict(recent_times(run))
    if bound:
        verb = "was" if run.state.final else "is"
        lines.append(Text.assemble((f"A step {verb} ", palette.foreground), (bound, f"bold {palette.accent}")))
    step = plan.predicted_step_s
    if step is not None and len(plan.shares) > 1 and not plan.stages:
        said = "All devices are to finish together: a share follows from a device's speed and its fixed time per step."
        lines += [Text(part, style=palette.foreground) for part in wrapped(said, width)]
    now = {worker.worker: worker.samples for worker in run.workers}
    has_changed = run.step and any(now.get(share.worker, share.samples) != share.samples for share in plan.shares)
    told = [
        *(() if has_changed else plan.cut),  # else the table has the shares of now
        *(
            reason
            for reason in plan.reasons
            if not any(helps(plan, share.host) in reason and helps(plan, share.host) for share in plan.shares)
        ),
    ]
    for reason in told:
        first, *rest = wrapped(reason, max(10, width - 2))
        lines.append(Text.assemble(("· ", palette.muted), (first, palette.muted)))
        lines += [Text(f"  {part}", style=palette.muted) for part in rest]
    return lines
