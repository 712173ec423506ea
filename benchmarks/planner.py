"""How right the planner is: predicted and measured step times, and what the chosen way costs beside the best one.

``python -m benchmarks.planner [--rates 1000,100,10] [--speeds 1:1:1,1:0.4:0.2] [--models small,middle,large]
[--ways sync,allreduce,…] [--only '100/*/small/*,1000/*/middle/sync'] [--minutes 4] [--results FILE] [--resume]
[--table]``

Root on Linux: the lab's hosts, links shaped by ``tc``, devices simulated by a sleep (``benchmarks.lab``). A cell is one
way to train one model on one fleet: one run of some seconds, whose plan predicts what its steps then take; the median
step counts, without the first ones. So both are from the same minute. Of each fleet and model ``hetero-tui plan`` is
asked first, each run begins with what that found out and no other run, and what it chooses is run where no other way
was the same. ``alone`` is ``sync`` on the fastest host, as a fleet of its own. *Regret*: the step of the chosen way
over that of the best exact way that was run. Cells are appended to the file one by one, so that a sweep can be broken
off and taken up: with ``--minutes``, no cell begins later, and with ``--resume``, only those are run that the file does
not have, and the plan that they begin with.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lab import Fleet, last_line, open_fleet
from benchmarks.ours import first_steps
from remote_agent import protocol
from remote_agent.planning.ways import COMPUTE
from tests.lab.network import LabError
from tests.lab.product import HeteroTui, setting

JOBS = {
    name: f"{Path(__file__).with_name('sized_text.py')}:{name.capitalize()}" for name in ("small", "middle", "large")
}
"""Name on the command line: the job. 0.1, 3 and 17 million parameters."""

WAYS = ("sync", "allreduce", "local_sgd:local_steps=10", "sync:codec=int8")
"""With all hosts."""

ALONE, PLAN, CHOSEN = "alone", "plan", "chosen"
"""The fastest host; what ``plan`` says; and that, carried out."""

EXACT = (ALONE, "sync", "allreduce", CHOSEN)

SKIPPED = 3
"""First steps that do not count: a gradient is streamed from the second slice on, and shares settle. Nor do those whose
loss is looked at once more."""

START_S = 150.0
"""A run may take so long beside its steps."""

PLAN_S = 240.0
"""And a plan in all."""

LEAST_PART = 0.05
"""Part of a step below which its terms beside computing are not compared."""

FORGET = "rm -rf ~/.hetero-tui/*/profiles ~/.hetero-tui/*/profiles.planned"
KEEP = 'for each in ~/.hetero-tui/*/profiles; do cp -r "$each" "$each.planned"; done'
AS_PLANNED = (
    "rm -rf ~/.hetero-tui/*/profiles; "
    'for each in ~/.hetero-tui/*/profiles.planned; do [ ! -e "$each" ] || cp -r "$each" "${each%.planned}"; done'
)
"""On the head: nothing is known of any job; what the plan found is kept; each run begins with that."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way in one fleet; seconds of a step of ``samples``, predicted by the run's plan, and measured.

    Attributes:
        terms: of the prediction.
        compute_s: measured: of the device that computed longest.
        load: of this computer when the run ended, over one minute.
        chosen: of a plan: strategy and hosts; how long it took, and a second one.
    """

    rate_mbit: float
    speeds: str
    model: str
    way: str
    hosts: int = 0
    samples: int = 0
    predicted_s: float = 0.0
    measured_s: float = 0.0
    steps: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    compute_s: float = 0.0
    load: float = 0.0
    chosen: str = ""
    plan_s: tuple[float, ...] = ()
    error: str = ""

    @property
    def fleet(self) -> tuple[float, str, str]:
        """And the model."""
        return self.rate_mbit, self.speeds, self.model

    @property
    def name(self) -> str:
        """As ``--only`` is compared with."""
        return f"{self.rate_mbit:g}/{self.speeds}/{self.model}/{self.way}"

    @property
    def off(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else float("nan")


def measured(cell: Cell, fleet: Fleet, batch: int, seconds: float, way: str, hosts: Sequence[str]) -> Cell:
    """The cell, after its run in this way on these hosts; none: all of the fleet."""
    lab = fleet.lab
    lab.hosts[0].exec(["sh", "-c", FORGET if cell.way == PLAN else AS_PLANNED])
    if cell.way == PLAN:
        planned = _planned(cell, _product(fleet), batch)
        lab.hosts[0].exec(["sh", "-c", KEEP])
        return planned
    product = _product(fleet, hosts)
    strategy, *pairs = way.split(":")
    settings = {"strategy": strategy, "batch_size": batch, "num_iterations": 100_000}
    settings |= dict(pair.split("=") for pair in pairs)
    found = _train(product, JOBS[cell.model], settings, seconds)
    return dataclasses.replace(cell, hosts=len(hosts) or len(fleet.speeds), load=os.getloadavg()[0], **found)


def _product(fleet: Fleet, hosts: Sequence[str] = ()) -> HeteroTui:
    """With these hosts in the inventory (none: all), whose file is always the same: another one would be refused."""
    written = fleet.lab.inventory(hosts=list(hosts) or None)
    file = fleet.lab.laptop.home / "inventory.yaml"
    file.write_text(written.read_text())
    return HeteroTui(fleet.lab.laptop, file)


def _planned(cell: Cell, product: HeteroTui, batch: int) -> Cell:
    times, plans = [], []
    for _ in range(2):
        began = time.monotonic()
        try:
            plans.append(product.document("plan", JOBS[cell.model], *setting({"batch_size": batch}), deadline=PLAN_S))
        except LabError as error:
            return dataclasses.replace(cell, load=os.getloadavg()[0], error=last_line(str(error)))
        times.append(round(time.monotonic() - began, 1))
    best = plans[0]["chosen"]
    return dataclasses.replace(
        cell,
        chosen=f"{best['strategy']} on {','.join(best['hosts'])}",
        predicted_s=best["step_s"],
        samples=best["samples"],
        hosts=len(best["hosts"]),
        plan_s=tuple(times),
        load=os.getloadavg()[0],
        error="the second plan measured again" if plans[1]["measured_now"] else "",
    )


def _train(product: HeteroTui, job: str, settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One run, stopped after so many seconds of steps."""
    plan: protocol.PlanMade | None = None
    run, begun, error = "", 0.0, ""
    steps: list[protocol.Step] = []
    stopped = False
    skipped = max(SKIPPED, first_steps(settings["strategy"]))
    with product.start("train", job, "--json", *setting(settings)) as train:
        assert train.stdout is not None
        assert train.stderr is not None
        guard = threading.Timer(START_S + seconds, train.kill)
        guard.start()
        told: list[str] = []
        reader = threading.Thread(target=lambda pipe: told.append(pipe.read()), args=(train.stderr,))
        reader.start()
        try:
            for line in train.stdout:
                match protocol.decode_event(line):
                    case protocol.RunStarted(run=run):
                        pass
                    case protocol.PlanMade() as made:
                        plan = plan or made
                    case protocol.Step() as step:
                        steps.append(step)
                        begun = begun or time.monotonic()
                        if not stopped and time.monotonic() - begun > seconds and len(steps) > 2 * skipped:
                            stopped = True
                            product.run("stop", run, "--json")
                    case protocol.RunFailed(cause=error):
                        pass
        finally:
            guard.cancel()
            reader.join()
    counted = steps[skipped:]
    if not counted and not error:
        error = f"{len(steps)} steps: {last_line(''.join(told))}"
    computing = [max(worker.compute_s for worker in step.workers) for step in counted if step.workers]
    return {
        "samples": steps[-1].samples if steps else 0,
        "predicted_s": (plan.predicted_step_s or 0.0) if plan is not None else 0.0,
        "terms": plan.terms if plan is not None else {},
        "measured_s": statistics.median(step.seconds for step in counted) if counted else 0.0,
        "compute_s": statistics.median(computing) if computing else 0.0,
        "steps": len(steps),
        "error": error,
    }


# --- The sweep -------------------------------------------------------------------------------------------------------


def sweep(options: argparse.Namespace, known: Sequence[Cell]) -> Iterator[Cell]:
    """All cells that are asked for and not known, fleet by fleet."""
    done = {cell.name for cell in known if not cell.error}
    ends = time.monotonic() + 60 * options.minutes
    for rate in map(float, options.rates.split(",")):
        for speeds in options.speeds.split(","):
            cells = [
                Cell(rate_mbit=rate, speeds=speeds, model=model, way=way)
                for model in options.models.split(",")
                for way in (PLAN, ALONE, *options.ways.split(","), CHOSEN)
            ]
            wanted = to_run(cells, options.only, done)
            if wanted and time.monotonic() < ends:
                with open_fleet(rate, [float(speed) for speed in speeds.split(":")]) as fleet:
                    yield from _on(fleet, wanted, options, ends)


def to_run(cells: Sequence[Cell], patterns: str, done: Collection[str]) -> list[Cell]:
    """Those of a fleet that are to be run, each model's after its plan."""
    asked = [cell for cell in cells if any(fnmatch.fnmatch(cell.name, each) for each in patterns.split(","))]
    models = {cell.model for cell in asked if cell.name not in done and cell.way != CHOSEN}
    open_ = [cell for cell in asked if cell.name not in done]
    return [cell for cell in cells if cell.model in models and (cell.way == PLAN or cell in open_)]


def _on(fleet: Fleet, wanted: Sequence[Cell], options: argparse.Namespace, ends: float) -> Iterator[Cell]:
    product = _product(fleet)
    up = product.run("up", "--json")
    if up.returncode:
        raise SystemExit(f"`up` gave exit code {up.returncode}: {last_line(up.stderr)}")
    plans: dict[tuple[float, str, str], Cell] = {}
    try:
        for cell in wanted:
            if time.monotonic() > ends:
                return
            way, hosts = cell.way, list[str]()
            if cell.way == ALONE:
                way, hosts = "sync", [fleet.lab.hosts[0].name]
            elif cell.way == CHOSEN:
                way, hosts = _chosen(plans.get(cell.fleet), len(fleet.speeds))
                if not hosts:
                    continue
            found = measured(cell, fleet, options.batch, options.seconds, way, hosts)
            if cell.way == PLAN:
                plans[cell.fleet] = found
            yield found
    finally:
        _product(fleet).run("down", "--yes", "--json")


def _chosen(plan: Cell | None, everything: int) -> tuple[str, list[str]]:
    """What a plan chose that no other cell runs: strategy and hosts; no hosts: another one does."""
    if plan is None or plan.hosts in (0, 1, everything):
        return "", []
    strategy, _, hosts = plan.chosen.partition(" on ")
    return strategy, hosts.split(",")


def read(path: Path) -> list[Cell]:
    """What the file holds; of a cell that was run again the newest."""
    if not path.exists():
        return []
    rows = [json.loads(text) for text in path.read_text().splitlines() if text.strip()]
    cells = [Cell(**row | {"plan_s": tuple(row.get("plan_s", ()))}) for row in rows]
    return list({cell.name: cell for cell in cells}.values())


# --- Figures ---------------------------------------------------------------------------------------------------------


def line(cell: Cell) -> str:
    """While the sweep runs."""
    if cell.way == PLAN and not cell.error:
        return f"{cell.name}: {cell.chosen}, {cell.predicted_s:.3f} s a step; plans took {cell.plan_s} s"
    if cell.error:
        return f"{cell.name} failed: {cell.error}"
    terms = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in cell.terms.items())
    return (
        f"{cell.name}: predicted {1e3 * cell.predicted_s:.1f} ms ({terms}), measured {1e3 * cell.measured_s:.1f}"
        f" (compute {1e3 * cell.compute_s:.1f}), {cell.off:+.0%}, {cell.steps} steps, load {cell.load:.1f}"
    )


def errors(cells: Sequence[Cell]) -> tuple[float, float, int]:
    """Median and 90th percentile of the predictions' absolute errors, and of how many."""
    found = sorted(abs(cell.off) for cell in cells if cell.way != PLAN and cell.measured_s and cell.predicted_s)
    if not found:
        return float("nan"), float("nan"), 0
    return statistics.median(found), found[min(len(found) - 1, int(0.9 * len(found)))], len(found)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a plan chose in one fleet for one model, beside what was measured.

    Attributes:
        way: the cell that was chosen.
        best: the exact way with the most samples a second.
        kept: the chosen way's samples a second over the best's.
        alone_is_best: one machine was measurably best.
        said_alone: and that was chosen.
    """

    fleet: tuple[float, str, str]
    way: str
    best: str
    kept: float
    alone_is_best: bool
    said_alone: bool


def choices(cells: Sequence[Cell]) -> list[Kept]:
    """Of each fleet and model whose plan and exact ways were run."""
    found = []
    for plan in (cell for cell in cells if cell.way == PLAN and cell.chosen):
        ways = {cell.way: cell for cell in cells if cell.fleet == plan.fleet and cell.way in EXACT and cell.measured_s}
        strategy, everything = plan.chosen.partition(" on ")[0], len(plan.speeds.split(":"))
        way = ALONE if plan.hosts == 1 else strategy if plan.hosts == everything else CHOSEN
        if way not in ways or len(ways) < 2:
            continue
        best = min(ways.values(), key=lambda cell: cell.measured_s / cell.samples)
        kept = (best.measured_s / best.samples) / (ways[way].measured_s / ways[way].samples)
        found.append(
            Kept(
                fleet=plan.fleet,
                way=way,
                best=best.way,
                kept=kept,
                alone_is_best=best.way == ALONE,
                said_alone=way == ALONE,
            )
        )
    return found


def table(cells: Sequence[Cell]) -> list[str]:
    """For the documentation, as Markdown."""
    rows = [
        "| Mbit/s | speeds | model | way | predicted | measured | off | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in sorted(cells, key=lambda cell: (-cell.rate_mbit, cell.speeds, cell.model)):
        if cell.way == PLAN or not cell.measured_s:
            continue
        rows.append(
            f"| {cell.rate_mbit:g} | {cell.speeds} | {cell.model} | `{cell.way}` | {1e3 * cell.predicted_s:.0f} ms"
            f" | {1e3 * cell.measured_s:.0f} ms | {100 * cell.off:+.0f} % | {cell.load:.1f} |"
        )
    median, most, count = errors(cells)
    rows += ["", f"{count} cells: median error {median:.0%}, 90 % of them within {most:.0%}.", *by_term(cells), ""]
    rows += ["| fleet and model | chosen | best exact way measured | of its speed | one machine is best | said so |"]
    rows += ["|---|---|---|---|---|---|"]
    for each in choices(cells):
        rate, speeds, model = each.fleet
        yes = {True: "yes", False: "no"}
        rows.append(
            f"| {rate:g} Mbit/s, {speeds}, {model} | `{each.way}` | `{each.best}` | {each.kept:.2f}"
            f" | {yes[each.alone_is_best]} | {yes[each.said_alone]} |"
        )
    return [*rows, "", *regret(choices(cells))]


def by_term(cells: Sequence[Cell]) -> list[str]:
    """Measured over predicted seconds of computing, and of all else where that is a twentieth of the step or more."""
    computing, rest = list[float](), list[float]()
    for cell in cells:
        predicted = cell.terms.get(COMPUTE, 0.0)
        if cell.way == PLAN or not cell.measured_s or not predicted:
            continue
        computing.append(cell.compute_s / predicted)
        if cell.predicted_s - predicted > LEAST_PART * cell.predicted_s:
            rest.append((cell.measured_s - cell.compute_s) / (cell.predicted_s - predicted))
    named = (("computing", computing), ("all else", rest))
    return [
        f"{name}: measured over predicted {min(found):.2f} to {max(found):.2f}, median {statistics.median(found):.2f}."
        for name, found in named
        if found
    ]


def regret(found: Sequence[Kept]) -> list[str]:
    """What the chosen ways keep of the best ones' speed, and where one machine is chosen."""
    if not found:
        return []
    kept = [each.kept for each in found]
    right = sum(each.alone_is_best == each.said_alone for each in found)
    return [
        f"Chosen ways have {statistics.median(kept):.2f} of the best one's speed (median), {min(kept):.2f} at worst.",
        f"One machine is chosen where it is best, and nowhere else, in {right} of {len(found)}.",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="1000,100,10", metavar="MBIT,…", help="speeds of the links")
    parser.add_argument("--speeds", default="1:1:1,1:0.4:0.2,1:0.1:0.1", help="speeds of the hosts' devices")
    parser.add_argument("--models", default="small,middle,large", help="of 0.1, 3 and 17 million parameters")
    parser.add_argument("--ways", default=",".join(WAYS), help="strategy[:setting=value…] with commas between")
    parser.add_argument("--only", default="*", metavar="PATTERN,…", help="cells RATE/SPEEDS/MODEL/WAY")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no cell begins later")
    parser.add_argument("--batch", type=int, default=24, help="samples of a step (default: 24)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of steps of each run (default: 8)")
    parser.add_argument("--results", type=Path, default=Path("planner.jsonl"), help="a line for each cell")
    parser.add_argument("--resume", action="store_true", help="leave out cells that the file has")
    parser.add_argument("--table", action="store_true", help="run nothing, print what the file has as Markdown")
    options = parser.parse_args(arguments)
    known = read(options.results) if options.resume or options.table else []
    if not options.table:
        for cell in sweep(options, known):
            print(line(cell), flush=True)
            with options.results.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(cell)) + "\n")
        known = read(options.results)
    print("\n".join(table(known)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
