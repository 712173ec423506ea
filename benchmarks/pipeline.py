"""How fast a model trains that is cut by layers over unlike hosts, beside what its plan said and what the cut allows.

``python -m benchmarks.pipeline [--rates 1000,100] [--speeds 1,0.4,0.2] [--ways …] [--peers …] [--steps 8]
[--csv FILE]``

The hosts are those of :mod:`benchmarks.lab` (Linux, root): name spaces on this computer with shaped links; a device's
computation is real, and stretched by a sleep to the pace of a device of its speed. The model is like ``text``'s, with
12 layers and 10 million parameters. Each way is a run of the product, by its command line. A row says:

- ``predicted``: seconds of a step as the run's plan says;
- ``measured``: the median of the steps' seconds, the first one left out (of one process the first eight, whose loss is
  looked at once more);
- ``bound``: the least that a step of this cut can take, whatever the order of work and over links that take no time: a
  stage computes all micro-batches, and has none before the stages before it have had one;
- ``of bound``: ``bound`` over ``measured``: 1.00 would be a pipeline without any waste;
- ``of one``: samples a second over those of the fastest host alone (the same run with that host only, ``sync``).

``in_flight=1`` is one micro-batch in flight; the cut is then the best for that, which may be one host. Then the peers
(:mod:`benchmarks.peers.pipelining`) train the same model on the same hosts at the same pace, without a plan:

- ``same``: torch.distributed.pipelining (gloo), 1F1B, cut as in the first run of ours, on the same hosts;
- ``even``: the same with as many layers on each host, as one cuts who knows no speeds;
- ``one``: HeteroShard's scheme: one micro-batch in flight, as many layers on each host.

All of it takes half an hour. ``--rates 1000 --no-one --ways pipeline --peers one --steps 3`` takes three minutes: the
product beside HeteroShard's scheme.

``apart`` is the largest relative difference of their weights from those of one process after all steps.

``--foreseen`` runs nothing: it prints what the planner foresees for 2, 3 and 5 hosts and a model of 24 layers
that exchange 1.5 MB, and how many times as long a step takes with one micro-batch in flight and fp32: with the same
cut, and with as many layers on each host. ``--side-by-side`` prints what two pipelines would save, each of a part of
the hosts and of the micro-batches, and up to how many megabytes of trained weights (fp32) this pays, as the two
exchange their gradients in each step.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, pairwise
from itertools import product as each_of
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from benchmarks.lab import SETUP_DEADLINE, Fleet, Plan, job_of, last_line, open_fleet, write_csv
from benchmarks.ours import OurWay, first_steps
from benchmarks.peers import environment, runner
from benchmarks.peers.pipelining import WEIGHTS
from benchmarks.sized_text import Deep
from remote_agent.planning import cuts
from remote_agent.planning.blocks import BlockCost, DeviceBlocks
from remote_agent.planning.cuts import Links, least_seconds
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.survey import Host
from remote_agent.protocol import Event, PlanMade, RunFailed, Step
from tests.lab.product import HeteroTui, event, setting
from tests.training import plain

JOB = f"{Path(__file__).with_name('sized_text.py')}:Deep"

WAYS = ("pipeline", "pipeline:codec=int8", "pipeline:in_flight=1")

PEERS = {"same": "1f1b", "even": "1f1b", "one": "one"}
"""Ways of :mod:`benchmarks.peers.pipelining`, with their schedules."""

PEER_MODULE = "benchmarks.peers.pipelining"

ONE = "one process"

STEP_DEADLINE = 30.0
"""Seconds that a step may take."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run. Seconds are of a step."""

    way: str
    rate_mbit: float
    steps: int
    predicted: float
    measured: float
    bound: float
    cut: str
    hosts: tuple[str, ...] = ()
    bounds: tuple[int, ...] = ()

    @property
    def of_bound(self) -> float:
        """1: no waste."""
        return self.bound / self.measured

    @property
    def off(self) -> float:
        """By how much the prediction is off, as a part of what was measured."""
        return self.predicted / self.measured - 1


HEAD = (
    f"{'':34} {'Mbit/s':>6} {'predicted':>9} {'measured':>9} {'off':>6} {'bound':>7} {'of bound':>8} {'of one':>6}  cut"
)


def line(row: Row, one: float | None) -> str:
    """A row of the table; ``one``: seconds of the fastest host alone."""
    of_one = "" if one is None else f"{one / row.measured:.2f}"
    foreseen = f"{row.predicted:>7.3f} s", f"{row.off:>+6.1%}", f"{row.bound:>5.3f} s", f"{row.of_bound:>8.2f}"
    predicted, off, bound, of_bound = ("n/a",) * 4 if math.isnan(row.predicted) else foreseen
    return (
        f"{row.way:34} {row.rate_mbit:>6g} {predicted:>9} {row.measured:>7.3f} s {off:>6} {bound:>7} {of_bound:>8}"
        f" {of_one:>6}  {row.cut}"
    )


def row_of(way: str, rate: float, passed: int, events: Sequence[Event]) -> Row:
    """What a run's events say; so many first steps do not count.

    Raises:
        RuntimeError: it failed.
    """
    failed = [each for each in events if isinstance(each, RunFailed)]
    if failed:
        raise RuntimeError(f"{way}: {failed[0].cause}")
    plan = next(each for each in events if isinstance(each, PlanMade))
    seconds = [each.seconds for each in events if isinstance(each, Step)][passed:]
    assert plan.predicted_step_s is not None, "each strategy predicts its steps"
    bound = least_seconds([stage.seconds for stage in plan.stages], plan.micro_batches) if plan.stages else 0.0
    cut = ", ".join(f"{each.worker.partition('/')[0]} {each.last - each.first}" for each in plan.stages)
    flying = f"; {plan.in_flight} of {plan.micro_batches} in flight" if plan.stages else ""
    return Row(
        way=way,
        rate_mbit=rate,
        steps=len(seconds),
        predicted=plan.predicted_step_s,
        measured=statistics.median(seconds),
        bound=bound,
        cut=cut + flying,
        hosts=tuple(each.worker.partition("/")[0] for each in plan.stages),
        bounds=(0, *(each.last for each in plan.stages)),
    )


def run(
    fleet: Fleet,
    ways: Sequence[tuple[str, OurWay]],
    rate: float,
    batch: int,
    steps: int,
    one: float | None = None,
) -> list[Row]:
    """Each way once, on one cluster; ``one``: seconds of the fastest host alone.

    Raises:
        RuntimeError: one failed.
    """
    product = HeteroTui(fleet.lab.laptop, fleet.lab.inventory())
    up = product.run("up", "--json")
    if up.returncode:
        raise RuntimeError(f"`up` gave exit code {up.returncode}: {up.stderr[-500:]}")
    rows = []
    try:
        for name, way in ways:
            passed = max(1, first_steps(way.strategy))
            made = steps + passed - 1
            chosen = {"strategy": way.strategy, "batch_size": batch, "num_iterations": made, "checkpoint_seconds": 0}
            words = setting({**chosen, **way.settings})
            done = product.run("train", JOB, "--json", *words, deadline=SETUP_DEADLINE + made * STEP_DEADLINE)
            rows.append(row_of(name, rate, passed, [event(each) for each in done.stdout.splitlines()]))
            print(line(rows[-1], one), flush=True)
    finally:
        product.run("down", "--yes", "--json")
    return rows


def beside(
    fleet: Fleet, names: Sequence[str], ours: Row, rate: float, plan: Plan, one: float | None = None
) -> list[Row]:
    """The peers of these names once; ``ours`` is the run whose cut ``same`` has.

    Raises:
        RuntimeError: one failed.
    """
    reference = runner.calibrate(fleet, plan)
    all_hosts, expected, rows = tuple(host.name for host in fleet.lab.hosts), plain_weights(plan), []
    even = tuple(round(number * Deep.depth / len(all_hosts)) for number in range(len(all_hosts) + 1))
    for name in names:
        hosts, bounds = (ours.hosts, ours.bounds) if name == "same" else (all_hosts, even)
        seconds, weights = peer_run(fleet, plan, reference, PEERS[name], hosts, bounds)
        apart = max(plain.errors(weights, expected).values())
        stages = ", ".join(
            f"{host} {last - first}" for host, (first, last) in zip(hosts, pairwise(bounds), strict=True)
        )
        row = Row(
            way=f"{name}: {PEERS[name]} of torch",
            rate_mbit=rate,
            steps=len(seconds) - 1,
            predicted=math.nan,
            measured=statistics.median(seconds[1:]),
            bound=math.nan,
            cut=f"{stages}; apart {apart:.1e}",
            hosts=tuple(hosts),
            bounds=tuple(bounds),
        )
        rows.append(row)
        print(line(row, one), flush=True)
    return rows


def plain_weights(plan: Plan) -> dict[str, Tensor]:
    """Those of one process after the plan's steps."""
    job = job_of(plan)
    config = dataclasses.replace(job.config, batch_size=plan.batch, seed=plan.seed, num_iterations=plan.steps)
    return plain.train(job, config)


def peer_run(
    fleet: Fleet, plan: Plan, reference: DeviceProfile, schedule: str, hosts: Sequence[str], bounds: Sequence[int]
) -> tuple[list[float], dict[str, Tensor]]:
    """Seconds of each step, and the weights at the end.

    Raises:
        RuntimeError: it failed, or took too long.
    """
    chosen = [fleet.lab.host(name) for name in hosts]
    speeds = dict(zip((host.name for host in fleet.lab.hosts), fleet.speeds, strict=True))
    variant = f"{schedule}:{','.join(map(str, bounds))}"
    each = [
        dataclasses.replace(
            runner.settings_of(fleet, plan, reference, hosts=len(chosen), rank=rank, variant=variant),
            addresses=tuple(host.address for host in chosen),
            speeds=tuple(speeds[name] for name in hosts),
        )
        for rank in range(len(chosen))
    ]
    python, deadline = environment.python_with("")[0], plan.seconds + SETUP_DEADLINE
    try:
        with ThreadPoolExecutor(len(chosen)) as pool:
            done = list(
                pool.map(lambda host, own: runner.start(host, python, PEER_MODULE, own, deadline), chosen, each)
            )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{variant} did not end within {late.timeout:.0f} s") from late
    finally:
        for host in chosen:
            runner.end_processes(host, PEER_MODULE)
    for one in done:
        if one.returncode:
            raise RuntimeError(f"{variant}: {last_line(one.stderr)}")
    weights = {name: value for host in chosen for name, value in load_file(host.home / WEIGHTS).items()}
    return json.loads(done[0].stdout.splitlines()[-1])["seconds"], weights


LARGER: tuple[tuple[float, ...], ...] = ((1.0,) * 4, (1.0,) * 6, (1.0, 1.0, 0.4, 0.4, 0.2, 0.2))
FLEETS: tuple[tuple[float, ...], ...] = ((1.0, 0.4), (1.0, 0.4, 0.2), (1.0, 0.8, 0.4, 0.4, 0.2), (1.0,) * 5)
LAYERS, LAYER_S, EXCHANGED, MICRO_BATCHES = 24, 0.025, 1.5e6, 8
PAYLOAD = 0.94
"""Part of a link's rate that is left for what it carries."""


def _fleet(speeds: Sequence[float], rate: float) -> tuple[list[DeviceBlocks], Links]:
    """A model's layers on hosts of these speeds."""
    devices = [
        DeviceBlocks(
            blocks=(
                BlockCost(
                    forward_s=LAYER_S / 3 / speed,
                    backward_s=LAYER_S * 2 / 3 / speed,
                    weights=0,
                    trained=0,
                    held=0,
                    boundary=int(EXCHANGED),
                    numbers=int(EXCHANGED / 4),
                ),
            )
            * LAYERS,
            room=float("inf"),
            host=f"host {number}",
        )
        for number, speed in enumerate(speeds)
    ]
    link = PAYLOAD * rate * 1e6 / 8
    return devices, Links(
        hosts=tuple(Host(name=each.host, devices=(), up=link, down=link, latency_s=5e-4) for each in devices)
    )


def foreseen(speeds: Sequence[float], rate: float, codec: str) -> str:
    """A row of ``--foreseen``."""
    devices, links = _fleet(speeds, rate)
    found = cuts.cut(devices, MICRO_BATCHES, links, codecs=(codec,))
    bound = least_seconds([stage.seconds for stage in found.stages], MICRO_BATCHES)
    order, count = tuple(stage.device for stage in found.stages), len(devices)
    even = tuple(round(number * LAYERS / count) for number in range(count + 1))
    same_s = cuts.seconds_of(devices, MICRO_BATCHES, links, order, found.bounds, "fp32", in_flight=1)
    even_s = cuts.seconds_of(devices, MICRO_BATCHES, links, tuple(range(count)), even, "fp32", in_flight=1)
    stages = ", ".join(f"{stage.last - stage.first} on {speeds[stage.device]:g}" for stage in found.stages)
    alone = MICRO_BATCHES * LAYERS * LAYER_S / max(speeds)
    return (
        f"{' : '.join(f'{each:g}' for each in speeds):26} {rate:>6g} {codec:5} {found.seconds:>7.2f} s"
        f" {bound / found.seconds:>8.2f} {alone / found.seconds:>6.2f} {same_s / found.seconds:>9.2f}"
        f" {even_s / found.seconds:>9.2f}  {stages}; {found.in_flight} in flight"
    )


def side_by_side(speeds: Sequence[float], rate: float, micro_batches: int) -> str:
    """A row of ``--side-by-side``: one pipeline over all hosts, and the best two that share hosts and micro-batches."""

    def seconds(of: Sequence[float], count: int) -> float:
        devices, links = _fleet(of, rate)
        return cuts.cut(devices, count, links, codecs=("bf16",)).seconds

    one, two, seen = seconds(speeds, micro_batches), math.inf, set[tuple[float, ...]]()
    for chosen in (each for count in range(2, len(speeds) - 1) for each in combinations(range(len(speeds)), count)):
        first = tuple(speeds[number] for number in chosen)
        second = tuple(speed for number, speed in enumerate(speeds) if number not in chosen)
        if first in seen:
            continue
        seen.add(first)
        fair = round(micro_batches * sum(first) / sum(speeds))
        for count in {min(max(fair + more, 1), micro_batches - 1) for more in (-1, 0, 1)}:
            two = min(two, max(seconds(first, count), seconds(second, micro_batches - count)))
    # What a pair of stages exchanges at once, both ways: more of it takes longer than what is saved.
    most = max(0.0, one - two) * PAYLOAD * rate / 8 * len(speeds) / 2
    return (
        f"{' : '.join(f'{each:g}' for each in speeds):30} {rate:>6g} {micro_batches:>5} {one:>7.2f} s {two:>7.2f} s"
        f" {one / two:>6.2f} {most:>8.1f} MB"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="1000,100", metavar="MBIT,…", help="speeds of the links (default: 1000,100)")
    parser.add_argument("--speeds", default="1,0.4,0.2", help="the hosts' simulated speeds (default: 1,0.4,0.2)")
    parser.add_argument("--ways", default=",".join(WAYS), help="strategy[:setting=value…] with commas between")
    parser.add_argument("--peers", default=",".join(PEERS), help="with commas between, or none (default: all)")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step (default: 32)")
    parser.add_argument("--steps", type=int, default=8, help="of each run (default: 8)")
    parser.add_argument("--no-one", action="store_true", help="without the fastest host alone")
    parser.add_argument("--foreseen", action="store_true", help="what the planner foresees, without a run")
    parser.add_argument("--side-by-side", action="store_true", help="two pipelines beside one, as the planner foresees")
    parser.add_argument("--csv", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    try:
        ways = [(way.name.removeprefix("ours:"), way) for way in map(OurWay.parse, options.ways.split(","))]
        speeds = tuple(float(speed) for speed in options.speeds.split(","))
        rates = tuple(float(rate) for rate in options.rates.split(","))
        peers = [] if options.peers == "none" else options.peers.split(",")
        if unknown := [name for name in peers if name not in PEERS]:
            raise ValueError(f"--peers {unknown[0]}: there are {', '.join(PEERS)}")
    except ValueError as error:
        parser.error(str(error))
    if options.foreseen:
        print(
            f"{'':26} {'Mbit/s':>6} {'':5} {'step':>9} {'of bound':>8} {'of one':>6} {'same, one':>9} {'even, one':>9}"
        )
        for fleet_speeds in FLEETS:
            for link, codec in ((1000.0, "fp32"), (100.0, "int8"), (100.0, "fp32")):
                print(foreseen(fleet_speeds, link, codec))
        return 0
    if options.side_by_side:
        print(f"{'':30} {'Mbit/s':>6} {'parts':>5} {'one':>9} {'two':>9} {'faster':>6} {'trained':>11}")
        for fleet_speeds, link, parts in each_of((*FLEETS[-2:], *LARGER), (1000.0, 100.0), (MICRO_BATCHES, 32)):
            print(side_by_side(fleet_speeds, link, parts), flush=True)
        return 0
    plan = Plan(
        job=JOB,
        job_class="benchmarks.sized_text:Deep",
        batch=options.batch,
        seed=0,
        steps=options.steps,
        seconds=options.steps * STEP_DEADLINE,
        snapshot_every=0,
        round_steps=0,
    )
    print("Simulated: device speeds by a sleep, links by tc. Real: computation, traffic, the optimizer's step.")
    print(HEAD)
    rows: list[Row] = []
    try:
        if not options.no_one:
            with open_fleet(rates[0], speeds[:1]) as fleet:
                rows += run(fleet, [(ONE, OurWay("sync", {}))], rates[0], options.batch, options.steps)
        one = rows[0].measured if rows else None
        for rate in rates:
            with open_fleet(rate, speeds) as fleet:
                found = run(fleet, ways, rate, options.batch, options.steps, one)
                rows += found + (beside(fleet, peers, found[0], rate, plan, one) if peers else [])
    except RuntimeError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    if options.csv:
        write_csv(options.csv, Row, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
