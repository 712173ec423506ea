"""Makes the rows of the hosts table: one line of text for each host, never longer than its columns. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from hetero_tui import deadlines
from hetero_tui.events import HostState
from hetero_tui.state import IN_CLUSTER, HostView, RunView
from hetero_tui.ui import columns as col
from hetero_tui.ui import format as fmt
from hetero_tui.ui import look
from hetero_tui.ui.columns import Column, Columns
from hetero_tui.ui.draw.bars import use_bar
from hetero_tui.ui.palette import Palette
from remote_agent.device_kinds import KINDS
from remote_agent.states import RayState

_WORTH_A_NUMBER = 2.0
"""Seconds from which it is said how long something has been going on."""

_RAY_WORDS = {
    RayState.NONE: "not started",
    RayState.STARTING: "starting",
    RayState.RUNNING: "running",
    RayState.RESTARTING: "restarting",
    RayState.STOPPED: "ended",
    RayState.FAILED: "failed",
}
_AWAY = (HostState.UNREACHABLE, HostState.REFUSED)
_TRANSIENT = (
    HostState.INSTALLING,
    HostState.STARTING,
    HostState.RESTARTING,
    HostState.STOPPING,
    HostState.CONNECTING,
)
_WITH_REASON = (HostState.UNFIT, HostState.REFUSED, HostState.FAILED)


@dataclass(frozen=True, kw_only=True)
class Use:
    """A host's live use as one figure each: of its accelerators where it has any, else of its CPU and memory."""

    fraction: float | None
    memory_used: int | None
    memory_total: int | None


def use_of(host: HostView) -> Use:
    """The use to show for a host; several accelerators are averaged, their memory is added up."""
    sample, facts = host.sample, host.facts
    if sample is None:
        total = facts.memory.total_bytes if facts is not None else None
        if facts is not None and facts.accelerators:
            sizes = [accelerator.memory_bytes for accelerator in facts.usable_accelerators]
            total = _sum(sizes) or total  # an accelerator without a size of its own shares the host's memory
        return Use(fraction=None, memory_used=None, memory_total=total)
    accelerators = [device for device in sample.devices if device.device != "cpu"]
    has_accelerator = bool(accelerators) or bool(facts is not None and facts.accelerators)
    if not has_accelerator:
        return Use(fraction=sample.cpu_use, memory_used=sample.memory_used, memory_total=sample.memory_total)
    uses = [device.use for device in accelerators if device.use is not None]
    used = _sum([device.memory_used for device in accelerators])
    total = _sum([device.memory_total for device in accelerators])
    if used is None and total is None:
        used, total = sample.memory_used, sample.memory_total
    return Use(fraction=sum(uses) / len(uses) if uses else None, memory_used=used, memory_total=total)


def _sum(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def share_of(host: HostView, run: RunView | None) -> float | None:
    """The fraction of each step that this host's living workers handle; None where no step of a run is made."""
    if run is None or run.state.final or run.is_starting:
        return None
    fractions = [worker.fraction for worker in run.workers if worker.host == host.name and worker.alive]
    return sum(fractions) if fractions else None


def device_words(host: HostView) -> tuple[str, str]:
    """A host's devices for people, and their kind (``CUDA``); a simulated machine always says so."""
    facts = host.facts
    if facts is None:
        return fmt.UNKNOWN, ""
    names = [fmt.short_device(facts.device_name(device)) for device in facts.devices]
    name = names[0] if len(set(names)) == 1 else ", ".join(dict.fromkeys(names))
    if len(names) > 1 and len(set(names)) == 1:
        name = f"{len(names)}× {name}"
    if facts.simulated_speed is not None and "simulated" not in name:
        name = f"simulated ×{facts.simulated_speed:g} {name}"
    kind = next((KINDS[entry.kind].title for entry in facts.usable_accelerators), "")
    return name, kind


def is_stale(host: HostView, now: float) -> bool:
    """Whether what is known of a host's use is old."""
    return host.sampled is not None and now - host.sampled > deadlines.STALE


def ray_word(host: HostView) -> str:
    """How Ray stands on a host; empty where that is not known. A sample from before its state says nothing of it."""
    if host.state in IN_CLUSTER:
        return _RAY_WORDS[RayState.RUNNING]
    if host.state in (HostState.STARTING, HostState.RESTARTING, HostState.STOPPING):
        return host.state.words
    sample, sampled = host.sample, host.sampled
    if sample is None or sampled is None or sampled < (host.since or 0.0) or sample.ray is RayState.RUNNING:
        return ""
    return _RAY_WORDS[sample.ray]


KeyOf = Callable[[str], str]
"""The key of an action, or "" where there is none to name."""


def _no_key(_: str) -> str:
    return ""


def state_words(host: HostView, now: float, width: int = 200, key_of: KeyOf = _no_key) -> str:
    """A host's state in words: what it is, since when or why where that matters, and its key; in ``width`` cells."""
    said = _all_words(host, now, key_of)
    return next((words for words in said if len(words) <= width), said[-1])


def _all_words(host: HostView, now: float, key_of: KeyOf) -> tuple[str, ...]:
    """The same in full, and shorter."""
    word = host.state.words
    if host.offered_key is not None:
        return (f"new key: press {key_of('key')}" if key_of("key") else "new key",)
    back = key_of("bring_back")
    left = None if host.next_try is None else host.next_try - now
    wait = "" if left is None or left <= 0 else fmt.duration(max(1.0, left))
    match host.state:
        case HostState.UNREACHABLE:
            since = "" if host.last_seen is None else f" {fmt.duration(now - host.last_seen)}"
            shorter = (f"{word}{since}, try in {wait}", f"{word}, try in {wait}", f"{word}, try {wait}", word)
            return (f"{word}{since}, next try in {wait}", *shorter) if wait else (f"{word}{since}", word)
        case HostState.PAUSED:
            long, short = (f" ({back}: now)", f" ({back})") if back else ("", "")
            next_try = (f"{word}, next try in {wait}{long}", f"{word}, try {wait}{short}") if wait else ()
            return (*next_try, f"{word}{short}", word)
        case HostState.DRAINED:
            return (f"{word} ({back} brings it back)", f"{word} ({back})", word) if back else (word,)
        case _ if host.state in IN_CLUSTER and host.sampled is not None and is_stale(host, now):
            return f"{word} {fmt.ago(now - host.sampled)}", word
        case HostState.BENCHED:
            reasons = {"blocks": "no blocks", "plan": "not in the plan"}
            why = next((said for key, said in reasons.items() if key in host.detail), "too slow just now")
            return f"{word}: {why}", word
        case HostState.SLOW:
            return (f"{word} {host.detail}".rstrip(),)
        case _ if host.state in _TRANSIENT and host.since is not None:
            waited = now - host.since
            return (f"{word} {fmt.duration(waited)}" if waited >= _WORTH_A_NUMBER else word,)
        case _ if host.detail and host.state in _WITH_REASON:
            keyed = f"{word} ({key_of('open')}: why)" if key_of("open") else word
            return (f"{word}: {host.detail}", keyed, word)
        case _:
            return (word,)


def header_line(columns: Columns, palette: Palette) -> Text:
    """The titles."""
    titles = [Text(column.title, style=palette.muted) for column in columns.columns]
    return _joined(columns, titles)


def host_line(
    host: HostView, run: RunView | None, columns: Columns, now: float, palette: Palette, key_of: KeyOf = _no_key
) -> Text:
    """One host as one line."""
    return _joined(columns, [_cell(column, host, run, now, palette, key_of) for column in columns.columns])


def _joined(columns: Columns, cells: list[Text]) -> Text:
    line = Text()
    for index, (column, cell) in enumerate(zip(columns.columns, cells, strict=True)):
        if index:
            line.append(" " * columns.gap)
        cell.truncate(column.width, overflow="ellipsis")
        space = " " * (column.width - cell.cell_len)
        line.append_text(Text(space).append_text(cell) if column.right else cell.append(space))
    return line


def _cell(column: Column, host: HostView, run: RunView | None, now: float, palette: Palette, key_of: KeyOf) -> Text:
    away = host.state in _AWAY
    figures = palette.muted if away or is_stale(host, now) else palette.foreground
    match column.title:
        case col.HOST:
            return Text(host.name, style=f"bold {palette.foreground}")
        case col.STATE:
            return _state(host, now, column.width, palette, key_of)
        case col.DEVICE:
            return _device(column, host, palette.muted if away else palette.foreground, palette)
        case col.USE:
            return _use(column, host, now, palette)
        case col.MEMORY:
            use = use_of(host)
            words = fmt.memory(use.memory_used, use.memory_total) if column.full else _used_memory(use)
            return Text(words, style=palette.muted if words == fmt.UNKNOWN else figures)
        case col.LINK:
            return Text("-", style=palette.muted) if away else _link(host, now, palette)
        case col.SHARE:
            share = share_of(host, run)  # of a host that is out of reach too: the run's events tell it
            return Text("-" if share is None else fmt.share(share), style=palette.muted if share is None else figures)
        case col.RAY:
            return Text("-", style=palette.muted) if away else _ray(host, figures, palette)
        case _:
            return Text(fmt.ago(None if host.last_seen is None else now - host.last_seen), style=palette.muted)


def _state(host: HostView, now: float, width: int, palette: Palette, key_of: KeyOf) -> Text:
    shown = look.HOST[host.state]
    colour = palette.warning if host.offered_key is not None else shown.colour(palette)
    if host.state in IN_CLUSTER and is_stale(host, now):
        colour = palette.muted
    return Text(f"{shown.glyph} {state_words(host, now, width - 2, key_of)}", style=colour)


def _device(column: Column, host: HostView, colour: str, palette: Palette) -> Text:
    name, kind = device_words(host)
    name = name if len(name) <= column.width else name.replace("simulated ", "sim. ")
    if not column.full or not kind:
        return Text(name, style=palette.muted if name == fmt.UNKNOWN else colour)
    room = column.width - len(kind) - 1
    named = Text(name, style=colour)
    named.truncate(room, overflow="ellipsis", pad=True)
    return named.append(f" {kind}", style=palette.muted)


def _use(column: Column, host: HostView, now: float, palette: Palette) -> Text:
    use, old = use_of(host), is_stale(host, now)
    if old and host.sampled is not None and use.fraction is not None:
        figure = fmt.percent(use.fraction).strip()
        return Text(f"{figure:>4}" if not column.full else f"{figure} {fmt.ago(now - host.sampled)}", palette.muted)
    style = palette.muted if use.fraction is None else palette.foreground
    if not column.full:
        return Text(fmt.percent(use.fraction), style=style)
    bar = use_bar(use.fraction, column.width - col.PERCENT_WIDTH, palette)
    return bar.append(f" {fmt.percent(use.fraction)}", style=style)


def _used_memory(use: Use) -> str:
    return fmt.UNKNOWN if use.memory_used is None else f"{fmt.gigabytes(use.memory_used)} GB"


def _link(host: HostView, now: float, palette: Palette) -> Text:
    """The delay to the head and the rate; how fast it was some time ago says nothing."""
    sample = None if is_stale(host, now) else host.sample
    rates = [] if sample is None else [sample.bytes_sent_per_s, sample.bytes_received_per_s]
    known = [rate for rate in rates if rate is not None]
    rate = fmt.link_rate(max(known)) if known else ""
    head_delay = sample.head_delay_s if sample is not None and host.state in IN_CLUSTER else None
    delay = fmt.milliseconds(head_delay) if head_delay is not None else ""
    if not delay and not rate:
        return Text(fmt.UNKNOWN, style=palette.muted)
    return Text(f"{delay:>7}{rate:>10}", style=palette.foreground)


def _ray(host: HostView, style: str, palette: Palette) -> Text:
    version = host.facts.packages.get("ray") if host.facts is not None else None
    word = ray_word(host)
    if word == _RAY_WORDS[RayState.RUNNING]:
        return Text(f"{word} {version or ''}".rstrip(), style=style)
    return Text(word or (version or fmt.UNKNOWN), style=palette.muted)
