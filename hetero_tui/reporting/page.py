"""A run as one HTML file: no script, no other file, nothing to load. It is looked at anywhere, and sent as it is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from hetero_tui import __version__
from hetero_tui.events import Level
from hetero_tui.reporting import svg
from hetero_tui.reporting.figures import PARTS, Figures, WorkerFigures
from hetero_tui.text import duration, loss_figure
from remote_agent import protocol
from remote_agent.goals import shown
from remote_agent.states import RunState, stands_at
from remote_agent.wording import number, share

SMOOTH_PART = 100
"""The smoothed line is an average over so great a part of all steps: one in so many."""

SPEED_PARTS = 60
"""The speed is drawn as the mean of at most so many parts of the run."""

LOG_FROM = 30.0
"""A loss whose largest value is so many times its smallest is drawn on a logarithmic scale."""

MOST_ROWS = 400

WIDE_FROM = 24
"""Characters from which on a value has a row of its own."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --quiet: #5d6b7a; --line: #dde3ea; --page: #ffffff; --main: #1f6feb;
  --faint: #a9c8f7; --second: #b35900; --bad: #c0262d; --compute: #2f8f5b; --push: #7a5fd0; --pull: #3a86d4;
  --wait: #c9ced6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ef; --quiet: #98a5b3; --line: #2c3540; --page: #12171d;
  --main: #6cb0ff; --faint: #2d4d75; --second: #f0a35e; --bad: #ff7b80; --compute: #4fc383; --push: #a893f5;
  --pull: #62aef5; --wait: #4a5562; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto; padding: 24px;
  max-width: 860px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 32px 0 8px; }
p.quiet, .legend, caption, footer { color: var(--quiet); } footer { margin-top: 32px; font-size: 13px; }
p.bad { color: var(--bad); overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 12px; margin: 20px 0; }
dt { color: var(--quiet); font-size: 13px; } dd { margin: 0; font-size: 18px; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
div.wide { grid-column: 1 / -1; } div.wide dd { font-size: 14px; }
svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; }
.label { fill: var(--quiet); } .grid { stroke: var(--line); } .axis { stroke: var(--quiet); }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
polyline.main { stroke: var(--main); } polyline.faint { stroke: var(--faint); stroke-width: 1; }
circle.second, polyline.second { fill: var(--second); stroke: none; } circle.main, circle.faint { fill: var(--main); }
.mark line { stroke: var(--bad); stroke-dasharray: 2 3; } .mark text { fill: var(--bad); font-weight: 600; }
.compute { fill: var(--compute); } .push { fill: var(--push); } .pull { fill: var(--pull); }
.wait { fill: var(--wait); }
.legend { font-size: 13px; margin: 4px 0; } .legend i { display: inline-block; width: 11px; height: 11px;
  border-radius: 2px; margin: 0 5px 0 14px; vertical-align: -1px; } .legend i:first-child { margin-left: 0; }
i.main { background: var(--main); } i.faint { background: var(--faint); } i.second { background: var(--second); }
i.compute { background: var(--compute); } i.push { background: var(--push); } i.pull { background: var(--pull); }
i.wait { background: var(--wait); } i.fault { background: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--quiet); font-weight: 500; } td, th { padding: 3px 12px 3px 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.bad td:last-child { color: var(--bad); }
"""


def page(figures: Figures) -> str:
    """The whole file. Everything that came from a host is escaped."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',  # else a browser asks for one, and complains that there is none
        f"<title>{escape(figures.run)}</title><style>{_STYLE}</style></head><body>",
        *_head(figures),
        *_loss(figures),
        *_speed(figures),
        *_workers(figures),
        *_evaluations(figures),
        *_happened(figures),
        *_settings(figures),
        f"<footer>hetero-tui {escape(__version__)}, {_date(time.time())}. Times are those of this computer.</footer>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _head(figures: Figures) -> Iterable[str]:
    started, failed = figures.started, figures.failed
    job = f"{escape(started.job)}, " if started is not None else ""
    yield f"<h1>{escape(figures.run)}</h1>"
    yield f'<p class="quiet">{job}{escape(figures.state)}</p>'
    if failed is not None:
        hint = f" → {escape(failed.hint)}" if failed.hint else ""
        made = stands_at(RunState.FAILED, figures.steps[-1].step if figures.steps else 0)
        yield f'<p class="bad">{escape(failed.host)}, {made}: {escape(failed.cause)}{hint}</p>'
    yield "<dl>"
    for name, value in _facts(figures):
        wide = ' class="wide"' if len(value) > WIDE_FROM else ""
        yield f"<div{wide}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl>"


def _facts(figures: Figures) -> Iterable[tuple[str, str]]:
    started, finished, steps = figures.started, figures.finished, figures.steps
    if started is not None:
        yield "Started", _date(started.time)
        if figures.seconds is not None:
            yield "Took", duration(figures.seconds)
    goal = figures.plan.iterations if figures.plan is not None and figures.plan.iterations else None
    goal = goal or (started.iterations if started is not None else 0)
    if steps:
        yield "Steps", f"{steps[-1].step:,} of {max(goal, steps[-1].step):,}"
        yield "Samples", f"{finished.samples if finished is not None else sum(step.samples for step in steps):,}"
    loss = finished.final_loss if finished is not None else next((s.loss for s in reversed(steps)), None)
    if loss is not None:
        yield "Loss", loss_figure(loss)
    for name, value in (finished.evaluation if finished is not None else {}).items():
        yield shown(name).replace("_", " ").capitalize(), number(value, 4)
    if finished is not None:
        since = "" if figures.resumed is None else f" since step {figures.resumed.step:,}"
        yield f"Speed{since}", f"{finished.samples_per_second:,.0f} samples/s"
    if started is not None:
        yield "Parameters", f"{started.parameters:,}"
        yield "Batch", f"{started.batch_size:,} samples"
    if figures.plan is not None:
        yield "Strategy", figures.plan.strategy
    if finished is not None and finished.checkpoint:
        yield "Checkpoint", finished.checkpoint


def _loss(figures: Figures) -> Iterable[str]:
    points = [(float(step.step), step.loss) for step in figures.steps if step.loss is not None]
    if not points:
        yield '<p class="quiet">No step was made.</p>'
        return
    validation = [
        (float(each.step), value) for each in figures.evaluations if (value := each.metrics.get("val_loss")) is not None
    ]
    values = [value for _, value in (*points, *validation)]
    log = min(values) > 0 and max(values) / min(values) >= LOG_FROM
    series = [svg.Series(name="loss", points=points, style="faint")]
    if len(points) > SMOOTH_PART:
        smooth = svg.smoothed(points, len(points) // SMOOTH_PART)
        series.append(svg.Series(name="smoothed", points=smooth, style="main"))
    series.append(svg.Series(name="validation", points=validation, style="second", dots=True))
    marks = [svg.Mark(x=each.step, number=each.fault, text=each.text) for each in figures.happened if each.fault]
    yield f"<h2>Loss{' (logarithmic scale)' if log else ''}</h2>"
    yield svg.line_plot(series, marks, x_label="step", y_label="loss", log=log)
    names = [(each.style, each.name) for each in series if each.points]
    yield _legend([*names, *([("fault", "faults, by number")] if marks else [])])


def _speed(figures: Figures) -> Iterable[str]:
    points = speeds(figures.steps)
    if len(points) < 2:
        return
    yield "<h2>Speed, in samples a second</h2>"
    line = svg.Series(name="samples/s", points=points, style="main")
    yield svg.line_plot([line], x_label="step", y_label="samples/s", from_zero=True)


def speeds(steps: Sequence[protocol.Step]) -> list[svg.Point]:
    """The mean speed of each part of a run, in samples a second, at the step that ends it.

    The parts are of about equal time: steps whose ends are noted at once, after a pause, are not counted as that fast.
    """
    if len(steps) < 3:
        return []
    least, begin = (steps[-1].time - steps[0].time) / SPEED_PARTS, 0
    points: list[svg.Point] = []
    for end in range(1, len(steps)):
        seconds = steps[end].time - steps[begin].time
        if seconds > 0 and seconds >= least:
            samples = sum(step.samples for step in steps[begin + 1 : end + 1])
            points.append((float(steps[end].step), samples / seconds))
        if seconds < 0 or seconds >= least:  # negative: by the clock of another head
            begin = end
    return points


def _workers(figures: Figures) -> Iterable[str]:
    known = [worker for worker in figures.workers.values() if worker.steps > 0]
    if not known:
        return
    rows = [
        svg.Bar(label=worker.worker, parts=[(part, worker.seconds[part] / worker.steps, part) for part in PARTS])
        for worker in known
    ]
    yield "<h2>Where a step's time goes, mean of all steps</h2>"
    yield svg.bars(rows, unit="s", title="Seconds of a step by worker")
    yield _legend([(part, part) for part in PARTS])
    total = sum(worker.samples for worker in known) or 1
    yield _table(
        ["Worker", "Device", "Steps", "Samples", "Share"],
        [
            [worker.worker, worker.name, f"{worker.steps:,}", f"{worker.samples:,}", share(worker.samples / total, 1)]
            for worker in sorted(known, key=_by_samples)
        ],
        numbers=3,
    )


def _by_samples(worker: WorkerFigures) -> int:
    return -worker.samples


def _evaluations(figures: Figures) -> Iterable[str]:
    found = figures.evaluations
    if not found:
        return
    names = sorted({name for each in found for name in each.metrics})
    yield "<h2>Evaluations</h2>"
    yield _table(
        ["Step", "Best", *map(shown, names)],
        [
            [f"{each.step:,}", "best so far" if each.best else "", *(_figure(each, name) for name in names)]
            for each in found[-MOST_ROWS:]
        ],
        numbers=len(names),
    )


def _figure(each: protocol.Evaluated, name: str) -> str:
    value = each.metrics.get(name)
    return "n/a" if value is None else number(value, 4)


def _happened(figures: Figures) -> Iterable[str]:
    if not figures.happened:
        return
    rows, bad = [], []
    for each in figures.happened:
        rows.append([_clock(each.time), f"{each.step:,}", str(each.fault or ""), each.text])
        bad.append(each.level in (Level.BAD, Level.WARNING))
    yield "<h2>What happened</h2>"
    if len(rows) > MOST_ROWS:
        yield f'<p class="quiet">The last {MOST_ROWS} of {len(rows):,} lines.</p>'
    yield _table(["Time", "Step", "Fault", ""], rows[-MOST_ROWS:], bad=bad[-MOST_ROWS:])


def _settings(figures: Figures) -> Iterable[str]:
    if figures.settings:
        yield "<h2>Settings</h2>"
        yield _table(["Setting", "Value"], [[name, str(value)] for name, value in sorted(figures.settings.items())])
    reasons = (*figures.plan.cut, *figures.plan.reasons) if figures.plan is not None else ()
    if reasons:
        yield "<h2>The plan</h2>"
        yield "<ul>" + "".join(f"<li>{escape(reason)}</li>" for reason in reasons) + "</ul>"


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0, bad: Sequence[bool] = ()
) -> str:
    """``numbers`` columns at the right hold figures; a row that is ``bad`` is marked."""
    first = len(headings) - numbers

    def cells(row: Sequence[str], tag: str) -> str:
        styles = [' class="number"' if index >= first else "" for index in range(len(row))]
        return "".join(f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in zip(row, styles, strict=True))

    marked = [' class="bad"' if index < len(bad) and bad[index] else "" for index in range(len(rows))]
    body = "".join(f"<tr{mark}>{cells(row, 'td')}</tr>" for row, mark in zip(rows, marked, strict=True))
    return f'<div class="scroll"><table><tr>{cells(headings, "th")}</tr>{body}</table></div>'


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    return '<p class="legend">' + "".join(f'<i class="{style}"></i>{escape(name)}' for style, name in entries) + "</p>"


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))
