"""A race: the two best ways, what their runs did, and who won; runs are recorded events here."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Sequence

import pytest

from hetero_tui.errors import RunError, UsageError
from hetero_tui.runs import racing
from hetero_tui.runs.order import Order, read_order
from hetero_tui.text import HostText
from remote_agent import protocol
from remote_agent.planning.choice import Limits, choose
from tests.agent.planning.fleets import LINK_1G, LINK_10M, host, survey

CHOICE = choose(survey([host("a", 40, LINK_1G), host("b", 40, LINK_1G)]))
INEXACT = choose(survey([host("a", 40, LINK_10M), host("b", 40, LINK_10M)]), Limits(inexact=True))


def steps(count: int, seconds: float, loss: float | None, fall: float = 0.0) -> list[protocol.Step]:
    return [
        protocol.Step(
            seq=number,
            time=float(number),
            step=number,
            loss=None if loss is None else loss - fall * number,
            samples=48,
            seconds=seconds * (10 if number <= racing.SKIPPED else 1),
            bytes_pushed=0,
            bytes_pulled=0,
        )
        for number in range(1, count + 1)
    ]


class Recorded:
    """Runs whose events are known."""

    def __init__(self, *runs: Sequence[protocol.Event]) -> None:
        self.runs = list(runs)
        self.orders: list[Order] = []
        self.stopped: list[str | None] = []

    async def launch(self, order: Order) -> str:
        self.orders.append(order)
        return f"run-{len(self.orders)}"

    async def events_of(self, run: str | None) -> AsyncGenerator[tuple[HostText, protocol.Event]]:
        for event in self.runs[len(self.orders) - 1]:
            if self.stopped[-1:] == [run] and isinstance(event, protocol.Step):
                return
            yield HostText(""), event

    async def stop_run(self, run: str | None = None) -> None:
        self.stopped.append(run)


def silent(_level: object, _text: str) -> None:
    return None


def test_the_chosen_way_races_the_fastest_other_one() -> None:
    first, second = racing.racers(CHOICE)
    assert first is CHOICE.best
    assert (second.way.hosts, second.way.strategy) != (first.way.hosts, first.way.strategy)
    others = [each for each in CHOICE.ways if each is not first]
    assert second.speed >= max(each.speed for each in others if len(each.way.hosts) > 1)
    one = choose(survey([host("a", 40)]), Limits(strategy="sync"))
    with pytest.raises(UsageError, match="only one way"):
        racing.racers(one)


def test_each_runs_in_its_way_on_its_hosts_with_the_users_settings() -> None:
    order = read_order("digits", ["batch_size=96", "strategy=auto"], ())
    local = next(each for each in INEXACT.ways if each.way.strategy == "local_sgd")
    made = racing.order_of(order, dataclasses.replace(local.way, hosts=("b",)))
    assert made.hosts == ("b",)
    assert dict(made.settings) == {
        "batch_size": "96",
        "strategy": "local_sgd",
        "codec": local.way.codec,
        "local_steps": str(local.way.local_steps),
        "overlap": str(local.way.overlap).lower(),
    }


def test_by_speed_the_first_steps_do_not_count_and_by_loss_its_fall_a_second_does() -> None:
    fast = racing.raced(CHOICE.best, "fast", steps(40, 0.5, 4.0, 0.01))
    steep = racing.raced(CHOICE.ways[-1], "steep", steps(40, 1.0, 4.0, 0.05))
    assert fast.speed == pytest.approx(96)
    assert (fast.step_s, fast.steps) == (0.5, 37)
    assert fast.fall == pytest.approx(36 * 0.01 / (37 * 0.5 + 3 * 5.0))
    assert racing.document((fast, steep), "speed")["winner"] == "fast"
    assert racing.document((fast, steep), "loss")["winner"] == "steep"
    assert "won by loss, though" in racing.verdict((fast, steep), "loss")[0]
    assert "won by speed, as predicted: 96 against 48 samples a second" in racing.verdict((fast, steep), "speed")[0]
    large = racing.raced(CHOICE.best, "large", steps(40, 0.001, 4.0))
    assert "as predicted: 48,000 against 48 samples a second" in racing.verdict((large, steep), "speed")[0]
    assert racing.rows((large, steep))[0][4] == "48,000"


def test_what_failed_or_has_no_loss_wins_nothing() -> None:
    good = racing.raced(CHOICE.best, "good", steps(10, 1.0, 1.0))
    bad = racing.raced(CHOICE.ways[-1], "bad", steps(10, 0.1, 1.0), "it fell over")
    blank = racing.raced(CHOICE.ways[-1], "blank", steps(10, 0.1, None))
    short = racing.raced(CHOICE.ways[-1], "short", steps(2, 0.1, 1.0))
    assert racing.document((good, bad), "speed")["winner"] == "good"
    assert racing.verdict((good, bad), "speed")[0].endswith("failed: it fell over")
    assert racing.document((good, blank), "loss")["winner"] == "good"
    assert short.error == "it made 2 steps only"
    assert racing.verdict((short, bad), "speed")[-1] == "neither can be judged"
    assert racing.document((short, bad), "loss")["winner"] is None
    assert [row[3] for row in racing.rows((good, bad))] == ["1 s", "failed"]


def test_an_inexact_way_that_is_faster_is_not_called_better() -> None:
    found = [racing.raced(each, "run", steps(10, 1.0, 1.0)) for each in racing.racers(INEXACT)]
    assert "--by loss" in racing.verdict(found, "speed")[-1]
    assert not any("--by loss" in line for line in racing.verdict(found, "loss"))


async def test_each_run_is_stopped_after_its_time_and_one_that_fails_says_why() -> None:
    failed = protocol.RunFailed(seq=9, time=9.0, step=1, cause="no memory", host="b")
    runs = Recorded([*steps(50, 0.1, 1.0), protocol.Notice(seq=99, time=99.0, step=1, host="a", text="x")], [failed])
    found = await racing.race(runs, read_order("digits", [], ()), CHOICE, silent, 0.0)
    assert (found[0].run, found[0].steps, found[0].error) == ("run-1", racing.LEAST_STEPS + 1 - racing.SKIPPED, "")
    assert (found[1].run, found[1].error) == ("run-2", "no memory")
    assert runs.stopped == ["run-1"]
    assert [order.hosts for order in runs.orders] == [each.way.hosts for each in racing.racers(CHOICE)]


async def test_a_race_that_is_broken_off_leaves_no_run_behind() -> None:
    class Breaking(Recorded):
        async def events_of(self, run: str | None) -> AsyncGenerator[tuple[HostText, protocol.Event]]:
            yield HostText(""), steps(1, 1.0, 1.0)[0]
            raise RunError("the cable is out", step="follow")

    runs = Breaking([])
    with pytest.raises(RunError, match="cable"):
        await racing.race(runs, read_order("digits", [], ()), CHOICE, silent)
    assert runs.stopped == ["run-1"]
