"""Lists all facts about one host as pairs of words, for the dialog and for the panel on a wide screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from hetero_tui.state import IN_CLUSTER, HostView, RunView
from hetero_tui.ui import format as fmt
from hetero_tui.ui import look
from hetero_tui.ui.cells import is_stale, ray_word, share_of, state_words, use_of
from hetero_tui.ui.palette import Palette

if TYPE_CHECKING:  # pydantic stays off the way to the first paint
    from hetero_tui.facts import HostFacts

_LABEL = 12

Pairs = list[tuple[str, str]]


def host_details(host: HostView, run: RunView | None, now: float) -> Pairs:
    """Labels and values, the most wanted first; what is unknown says so."""
    pairs: Pairs = [("address", host.address)]
    seen = None if host.last_seen is None else now - host.last_seen
    pairs.append(("last seen", fmt.ago(seen)))
    if host.offered_key is not None:
        pairs.append(("offers key", host.offered_key))
    pairs.extend(_use(host, now))
    share = share_of(host, run)
    if share is not None and run is not None:
        mine = {worker.worker: worker for worker in run.workers if worker.host == host.name and worker.alive}
        samples = sum(worker.samples for worker in mine.values())
        held = [stage.span for stage in run.stages if stage.worker in mine]
        what = f"{samples:,} of {run.batch_size:,} samples of a step"
        if run.stages:
            what = f"blocks {' and '.join(held)} of {run.stages[-1].last}" if held else "no blocks"
        pairs.append(("share", f"{fmt.share(share).strip()}, {what}"))
    if host.facts is None:
        return [*pairs, ("facts", "not probed yet")]
    return [*pairs, *_facts(host.facts)]


def _use(host: HostView, now: float) -> Pairs:
    sample = host.sample
    if sample is None:
        return []
    use = use_of(host)
    old = f", {fmt.ago(now - host.sampled)}" if is_stale(host, now) and host.sampled is not None else ""
    pairs = [
        ("use", f"{fmt.percent(use.fraction).strip()}{old}"),
        ("memory", f"{fmt.memory(use.memory_used, use.memory_total)}{old}"),
    ]
    word = ray_word(host)
    ray = [("Ray", word)] if word else []
    if old:  # what follows is of the moment
        return [*pairs, *ray]
    pairs.append(
        ("CPU", f"{fmt.percent(sample.cpu_use).strip()}, {fmt.memory(sample.memory_used, sample.memory_total)}")
    )
    hot = [f"{device.temperature_c:.0f} °C" for device in sample.devices if device.temperature_c is not None]
    watts = [f"{device.power_w:.0f} W" for device in sample.devices if device.power_w is not None]
    if hot or watts:
        pairs.append(("sensors", ", ".join([*hot, *watts])))
    pairs.extend(ray)
    traffic = f"{fmt.link_rate(sample.bytes_sent_per_s)} out, {fmt.link_rate(sample.bytes_received_per_s)} in"
    pairs.append(("link", traffic))
    to_head = sample.head_delay_s if host.state in IN_CLUSTER else None
    trips = [(to_head, "to the head"), (host.round_trip_s, "to this computer")]
    known = [f"{fmt.milliseconds(seconds)} {where}" for seconds, where in trips if seconds is not None]
    pairs.append(("round trip", ", ".join(known) or fmt.UNKNOWN))
    return pairs


def _facts(facts: HostFacts) -> Pairs:
    pairs: Pairs = []
    if facts.simulated_speed is not None:
        slowed = f"slowed down to ×{facts.simulated_speed:g} of this computer"
        pairs.append(("simulated", "as fast as this computer" if facts.simulated_speed == 1 else slowed))
    for accelerator in facts.usable_accelerators:
        memory = "" if accelerator.memory_bytes is None else f", {fmt.size(accelerator.memory_bytes)}"
        driver = "" if accelerator.driver is None else f", driver {accelerator.driver}"
        pairs.append((accelerator.device, f"{accelerator.name}{memory}{driver}"))
    model = f" {facts.cpu.model}" if facts.cpu.model else ""
    pairs.append(("processor", f"{fmt.plural(facts.cpu.usable, 'core')}{model}"))
    pairs.append(("main memory", fmt.size(facts.memory.total_bytes)))
    pairs.append(("disk", f"{fmt.size(facts.disk.free_bytes)} free of {fmt.size(facts.disk.total_bytes)}"))
    pairs.append(("system", " ".join(filter(None, (facts.os.name or facts.os.system, facts.os.machine)))))
    pairs.append(("user", f"{facts.user}@{facts.hostname}"))
    pairs.append(("Python", f"{facts.python.version}  {facts.python.executable}"))
    versions = [f"{name} {version or 'missing'}" for name, version in facts.packages.items()]
    if versions:
        pairs.append(("packages", ", ".join(versions)))
    for address in facts.addresses:
        speed = "" if address.speed_mbps is None else f", {fmt.link_rate(address.speed_mbps * 1e6 / 8)}"
        prefix = "" if address.prefix is None else f"/{address.prefix}"
        pairs.append((address.interface or "address", f"{address.address}{prefix}{speed}"))
    pairs.extend(("note", note) for note in facts.notes)
    pairs.extend(("problem", problem) for problem in facts.problems)
    return pairs


def details_lines(host: HostView, run: RunView | None, now: float, width: int, palette: Palette) -> list[Text]:
    """The same as lines of at most ``width`` cells; long values go on in the next line, under themselves."""
    shown = look.HOST[host.state]
    lines = [Text(f"{shown.glyph} {state_words(host, now)}", style=shown.colour(palette))]
    room = max(8, width - _LABEL)
    if host.detail and host.detail not in lines[0].plain:
        lines.extend(Text(part, style=palette.foreground) for part in wrapped(host.detail, width))
    if host.hint:
        lines.extend(Text(part, style=palette.accent) for part in wrapped(f"-> {host.hint}", width))
    for label, value in host_details(host, run, now):
        colour = palette.warning if label in ("note", "problem", "offers key", "simulated") else palette.foreground
        for index, part in enumerate(wrapped(value, room)):
            line = Text(f"{'' if index else label:<{_LABEL}}"[:_LABEL], style=palette.muted)
            lines.append(line.append(part, style=colour))
    return lines


def wrapped(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` cells, broken at spaces where that is possible; at least one line."""
    lines, line = [], ""
    for word in text.split(" "):
        rest = word
        while cell_len(line) + bool(line) + cell_len(rest) > width:
            room = width - cell_len(line) - bool(line)
            begun = "" if line and cell_len(rest) <= width else _beginning(rest, room)
            if not line and not begun:
                begun = rest[:1]  # it is wider than a line
            lines.append(f"{line} {begun}" if line and begun else line or begun)
            line, rest = "", rest[len(begun) :]
        line = f"{line} {rest}" if line and rest else line or rest
    return [*lines, line] if line or not lines else lines


def _beginning(text: str, cells: int) -> str:
    """As much of a text as fits in so many cells; a character may need two."""
    end, used = 0, 0
    while end < len(text) and (used := used + cell_len(text[end])) <= cells:
        end += 1
    return text[:end]
