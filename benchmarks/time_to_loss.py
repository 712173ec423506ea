"""Time until the same validation loss: ours beside each peer, on the same shaped links, in one run.

``python -m benchmarks.time_to_loss --rate 100 --seeds 3 --target 2.6 [--peers ddp,single] [--ours sync] [--csv FILE]``

The ready job ``text`` on hosts of unlike simulated speed. All train the same model from the same weights on the
same order of samples, with the same learning rate, and is evaluated on the same held-out text by the same function. A
common step has the same samples over all hosts for all; a step that a host makes alone has ``--local-batch`` samples,
ours and the peers', wherever they make such steps (a single process is shown with both). One after the other, in an
order that is rotated from seed to seed. The clock runs from the first step (measuring the devices before it is not
counted, nor is a peer's start). Copies of the weights are evaluated after the clock has stopped; for ours they are its
checkpoints, whose writing is counted against it.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ours
from benchmarks.lab import Fleet, Outcome, Plan, open_fleet, simulated_notes
from benchmarks.ours import OurWay, chosen_ways
from benchmarks.peers import Peer, runner
from benchmarks.peers.runner import chosen_peers
from remote_agent.planning.device_profile import DeviceProfile

PEERS_SHOWN = "single,single-local,ddp,torchft-localsgd,hivemind"
"""By default: with three seeds the others would take too long."""

OURS_SHOWN = "local_sgd:local_steps=20:overlap=true:codec=int8"

DRIFT = 0.1
"""Difference of a run's own measurement of this computer from the peers' reference that is worth a warning."""


@dataclass(frozen=True)
class Row:
    """One way of training, over all seeds. A time of None: not within the time; ``megabytes``: sent by all, a step."""

    name: str
    about: str
    times: tuple[float | None, ...]
    best_losses: tuple[float, ...]
    samples_per_second: float
    megabytes: float
    errors: tuple[str, ...]

    @property
    def median(self) -> float | None:
        """Seconds; a run that did not reach the target counts as longer than any that did."""
        if not self.times:
            return None
        middle = sorted(float("inf") if time is None else time for time in self.times)
        found = statistics.median(middle)
        return None if found == float("inf") else found


def time_to(target: float, outcome: Outcome) -> float | None:
    """Seconds until the validation loss was ``target``, between two evaluations by a straight line; None: never."""
    before = None
    for point in outcome.points:
        if point.validation_loss <= target:
            if before is None or before.validation_loss == point.validation_loss:
                return point.time
            part = (before.validation_loss - target) / (before.validation_loss - point.validation_loss)
            return before.time + part * (point.time - before.time)
        before = point
    return None


def megabytes_a_step(outcome: Outcome, batch: int) -> float:
    """What all hosts' network devices sent, for each ``batch`` samples."""
    return sum(outcome.sent) / 1e6 * batch / outcome.samples if outcome.samples else 0.0


def row_of(name: str, outcomes: Sequence[Outcome], target: float, batch: int) -> Row:
    """One way's row from its runs."""
    good = [outcome for outcome in outcomes if not outcome.error]
    return Row(
        name=name,
        about=outcomes[0].about,
        times=tuple(time_to(target, outcome) for outcome in good),
        best_losses=tuple(min(point.validation_loss for point in outcome.points) for outcome in good if outcome.points),
        samples_per_second=statistics.median([outcome.samples_per_second for outcome in good]) if good else 0.0,
        megabytes=statistics.median([megabytes_a_step(outcome, batch) for outcome in good]) if good else 0.0,
        errors=tuple(dict.fromkeys(outcome.error for outcome in outcomes if outcome.error)),
    )


def one_seed(
    fleet: Fleet, peers: Sequence[Peer], ways: Sequence[OurWay], plan: Plan, reference: DeviceProfile, turn: int
) -> list[Outcome]:
    """Each way once, in an order rotated by ``turn``; ours in one go, since its cluster comes up for it."""
    entries: list[Peer | None] = [*([None] if ways else []), *peers]
    start = turn % len(entries)
    outcomes: list[Outcome] = []
    for entry in entries[start:] + entries[:start]:
        found = ours.run(fleet, ways, plan) if entry is None else [runner.run(fleet, entry, plan, reference)]
        for outcome in found:
            narrate(outcome, plan)
            outcomes.append(outcome)
    return outcomes


def narrate(outcome: Outcome, plan: Plan) -> None:
    """One run, on stderr while the others go on."""
    losses = [f"{point.time:.0f} s {point.validation_loss:.3f}" for point in outcome.points]
    print(
        f"  seed {plan.seed} {outcome.name}: "
        + (outcome.error or f"{outcome.steps} steps, {outcome.samples} samples in {outcome.seconds:.1f} s; ")
        + ", ".join(losses),
        file=sys.stderr,
        flush=True,
    )


def drift(outcomes: Sequence[Outcome], plan: Plan, reference: DeviceProfile) -> list[str]:
    """A line on how far our runs' own measurements of this computer are from what the peers were given."""
    measured = [one.reference.seconds(plan.batch) for one in outcomes if one.reference is not None]
    if not measured:
        return []
    least, most = (time / reference.seconds(plan.batch) for time in (min(measured), max(measured)))
    warning = " (MORE THAN 10 %: this computer was not quiet)" if max(1 - least, most - 1) > DRIFT else ""
    return [f"Our runs measure this computer themselves: {least:.2f}-{most:.2f} of the peers' time a step{warning}."]


def table(rows: Sequence[Row], target: float, best: float | None) -> list[str]:
    """The rows as lines; the ratio is a row's median over our best median."""
    lines = [f"{'':34} {'median s':>9} {'x ours':>7} {'samples/s':>10} {'MB/step':>8} {'best loss':>10}  each seed (s)"]
    for row in rows:
        if not row.times:
            lines.append(f"{row.name:34} failed: {'; '.join(row.errors)}")
            continue
        median = row.median
        shown = "not" if median is None else f"{median:.1f}"
        ratio = "" if median is None or best is None else f"{median / best:.2f}"
        each = ", ".join("not" if time is None else f"{time:.1f}" for time in row.times)
        loss = f"{min(row.best_losses):.3f}" if row.best_losses else ""
        figures = f"{row.samples_per_second:>10.1f} {row.megabytes:>8.1f} {loss:>10}"
        lines.append(f"{row.name:34} {shown:>9} {ratio:>7} {figures}  {each}")
        lines += [f"{'':34} one seed failed: {error}" for error in row.errors]
    return [f'Seconds until a validation loss of {target:g} ("not": not within the time)', *lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 when nothing of ours reached the target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_to_loss", description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=100.0, metavar="MBIT", help="speed of each link (default: 100)")
    parser.add_argument("--speeds", default="1,0.4,0.2", help="the hosts' simulated speeds (default: 1,0.4,0.2)")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default: 3)")
    parser.add_argument("--target", type=float, default=2.6, help="the validation loss (default: 2.6)")
    parser.add_argument("--seconds", type=float, default=60.0, help="longest training of each (default: 60)")
    parser.add_argument("--steps", type=int, default=100_000, help="most steps of each (default: as many as fit)")
    parser.add_argument("--batch", type=int, default=48, help="samples of a step, over all hosts (default: 48)")
    parser.add_argument("--every", type=int, default=5, help="steps between two evaluations (default: 5)")
    parser.add_argument("--round", type=int, default=10, help="inner steps of the peers' rounds (default: 10)")
    parser.add_argument(
        "--local-batch", type=int, default=2, help="samples of a step that a host makes alone (default: 2; 0: its part)"
    )
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of all ways (default: 0.0005)")
    parser.add_argument("--peers", default=PEERS_SHOWN, help=f"names with commas between, all or none ({PEERS_SHOWN})")
    parser.add_argument(
        "--ours", default=OURS_SHOWN, help=f"strategy[:setting=value…] with commas between, all or none ({OURS_SHOWN})"
    )
    parser.add_argument("--csv", type=Path, help="write every evaluation to this file")
    parser.add_argument("--plot", type=Path, help="draw validation loss over time into this file (needs matplotlib)")
    options = parser.parse_args(arguments)
    try:
        peers, ways = chosen_peers(options.peers), chosen_ways(options.ours)
        speeds = tuple(float(speed) for speed in options.speeds.split(","))
    except ValueError as error:
        parser.error(str(error))
    outcomes: list[tuple[int, Outcome]] = []
    with open_fleet(options.rate, speeds) as fleet:
        plan = Plan(
            job="text",
            job_class="remote_agent.jobs.text:Text",
            batch=options.batch,
            seed=0,
            steps=options.steps,
            seconds=options.seconds,
            snapshot_every=options.every,
            round_steps=options.round,
            local_batch=options.local_batch,
            learning_rate=options.learning_rate,
        )
        reference = runner.calibrate(fleet, plan)
        for seed in range(options.seeds):
            of_seed = Plan(**vars(plan) | {"seed": seed})
            outcomes += [(seed, one) for one in one_seed(fleet, peers, ways, of_seed, reference, seed)]
    names = [*(way.name for way in ways), *(peer.name for peer in peers)]
    rows = [
        row_of(name, [one for _, one in outcomes if one.name == name], options.target, options.batch) for name in names
    ]
    medians = [row.median for row in rows if row.name.startswith("ours:") and row.median is not None]
    best = min(medians, default=None)
    print("\n".join(table(rows, options.target, best)))
    print(f"\ntext job, 1.03M parameters, {options.batch} samples a step over all hosts, {options.seeds} seeds,")
    print(
        f"learning rate {options.learning_rate:g} for all, {options.local_batch} samples a step that a host makes alone"
    )
    notes = simulated_notes(options.rate, speeds, reference)
    print("\n".join(notes + drift([one for _, one in outcomes], plan, reference)))
    print("\n".join(f"{row.name}: {row.about}" for row in rows))
    if options.csv:
        write_csv(options.csv, outcomes)
    if options.plot:
        draw(options.plot, outcomes)
    return 0 if best is not None or not ways else 1


def write_csv(path: Path, outcomes: Sequence[tuple[int, Outcome]]) -> None:
    """Every evaluation of every run."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "name", "time_s", "step", "samples", "validation_loss", "error"])
        for seed, one in outcomes:
            if one.error:
                writer.writerow([seed, one.name, "", "", "", "", one.error])
            for point in one.points:
                writer.writerow([seed, one.name, point.time, point.step, point.samples, point.validation_loss, ""])


def draw(path: Path, outcomes: Sequence[tuple[int, Outcome]]) -> None:
    """Validation loss over time, one colour a way; says so where matplotlib is missing."""
    try:
        from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    figure, axes = pyplot.subplots(figsize=(8, 5))
    names = list(dict.fromkeys(one.name for _, one in outcomes))
    for seed, one in outcomes:
        times, losses = [point.time for point in one.points], [point.validation_loss for point in one.points]
        label = one.name if seed == 0 else None
        axes.plot(times, losses, color=f"C{names.index(one.name)}", label=label, linewidth=1)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation loss, nats a byte")
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
