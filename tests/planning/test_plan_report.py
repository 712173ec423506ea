"""A plan as rows, lines and JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from hetero_tui.planning.plan_report import MAX_ROWS, document, explained, host_rows, way_rows
from remote_agent.planning.choice import Choice
from remote_agent.planning.survey import Device, Host, Survey, Work
from remote_agent.planning.ways import COMPUTE, EXCHANGE, Prediction, Term, Way


def host(name: str, up: float = 118e6, **device: Any) -> Host:
    return Host(name=name, devices=(Device(name=f"{name}/0", speed=40.0, **device),), up=up, down=up / 2)


SURVEY = Survey(
    job="text",
    work=Work(parameters=1000, batch=48),
    hosts=(host("mercer", product="TITAN X"), host("nas", 11.8e6), host("pi", 0.0, estimate="a guess")),
)


def found(hosts: tuple[str, ...], seconds: float = 2.0, **more: Any) -> Prediction:
    way = {key: more.pop(key) for key in ("strategy", "codec", "local_steps", "overlap") if key in more}
    known: dict[str, Any] = {"link": "", "link_s": 0.0, "bound": "computing on mercer/0"} | more
    return Prediction(
        way=Way(strategy=str(way.pop("strategy", "sync")), hosts=hosts, **way),
        terms=(
            Term(name=COMPUTE, seconds=seconds, source="measured"),
            Term(name=EXCHANGE, seconds=0.0, source="links"),
        ),
        samples=48,
        shares={"mercer/0": 36, "nas/0": 12} if len(hosts) > 1 else {f"{hosts[0]}/0": 48},
        busy_s={"mercer/0": 1.5, "nas/0": 2.0} if len(hosts) > 1 else {f"{hosts[0]}/0": seconds},
        parts={"mercer": 0.75, "nas": 0.25} if len(hosts) > 1 else {hosts[0]: 1.0},
        **known,
    )


BOTH = ("mercer", "nas")
BEST = found(BOTH)


def choice(best: Prediction = BEST, *ways: Prediction, **more: Any) -> Choice:
    known: dict[str, Any] = {"gains": {}, "alone": None, "everything": None, "refused": (), "considered": 7} | more
    return Choice(best=best, ways=(best, *ways), **known)


def test_a_row_of_each_device_says_share_time_link_part_and_what_its_host_adds() -> None:
    rows = host_rows(SURVEY, choice(gains={"mercer": 1.5, "nas": 0.25, "pi": -0.2}))
    assert rows == [
        ["mercer", "TITAN X", "75%", "1.5 s", "118.0/59.0", "75%", "+150%"],
        ["nas", "nas/0", "25%", "2 s", "11.8/5.9", "25%", "+25%"],
        ["pi", "pi/0", "-", "-", "n/a", "-", "step +25%: left out"],
    ]


@pytest.mark.parametrize(
    ("best", "gains", "helps"),
    [
        (BEST, {"nas": None}, "needed"),
        (BEST, {}, ""),
        (BEST, {"nas": -0.05}, "step +5%"),
        (found(("mercer",)), {"nas": None}, "left out"),
        (found(("mercer",)), {"nas": -math.inf}, "does not fit: left out"),
        (found(("mercer",)), {"nas": 0.25}, "step -20%: left out"),
    ],
)
def test_what_a_host_helps_is_said_in_a_cell(best: Prediction, gains: dict[str, float | None], helps: str) -> None:
    assert host_rows(SURVEY, choice(best, gains=gains))[1][-1] == helps


def test_of_a_large_fleet_the_hosts_that_take_part_are_shown_first_and_how_many_are_not() -> None:
    names = [*(f"h{number}" for number in range(MAX_ROWS + 3)), *BEST.way.hosts]
    many = Survey(job="text", work=SURVEY.work, hosts=tuple(host(name) for name in names))
    *shown, last = host_rows(many, choice())
    assert len(shown) == MAX_ROWS
    assert tuple(row[0] for row in shown[: len(BEST.way.hosts)]) == BEST.way.hosts
    assert last[0] == f"and {len(names) - MAX_ROWS} more"


def test_ways_are_listed_the_fastest_first_with_the_chosen_one_marked_and_the_fastest_host_alone() -> None:
    ring, rounds = found(BOTH, 4.0, strategy="allreduce"), found(BOTH, 1.0, strategy="local_sgd", local_steps=10)
    alone = found(("mercer",), 3.0)
    rows = way_rows(choice(BEST, ring, rounds, alone=alone))
    assert [row[0] for row in rows] == ["  local_sgd, 10 local steps", "> sync", "  alone", "  allreduce"]
    assert rows[1][1:] == ["mercer and nas", "2 s", "24", "yes", "computing on mercer/0"]
    assert [row[4] for row in rows] == ["no", "yes", "yes", "yes"]


def test_a_step_is_explained_term_by_term_and_by_its_busiest_link() -> None:
    assert explained(BEST) == ["compute: 2 s (measured)", "exchange: 0 ms (links)", "in all: 2 s a step"]
    linked = found(BOTH, link="the link of nas", link_s=0.5)
    assert explained(linked)[-1] == "the link of nas is at work for 500 ms of 2 s"


def test_the_document_for_scripts_is_json_and_has_no_infinite_numbers() -> None:
    best = found(BOTH, strategy="local_sgd", local_steps=10, overlap=True)
    made = document(
        SURVEY,
        choice(best, BEST, gains={"mercer": 1.5, "nas": None, "pi": -math.inf}, refused=("too large",)),
        ("use it",),
        measured=True,
    )
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert (made["job"], made["parameters"], made["batch"], made["measured_now"], made["measured_at"]) == (
        "text",
        1000,
        48,
        True,
        None,
    )
    assert [(each["name"], each["used"], each["gain"]) for each in made["hosts"]] == [
        ("mercer", True, 1.5),
        ("nas", True, None),
        ("pi", False, None),
    ]
    assert [each["devices"][0]["samples"] for each in made["hosts"]] == [36, 12, 0]
    assert [each["devices"][0]["estimate"] for each in made["hosts"]] == [None, None, "a guess"]
    chosen, other = made["chosen"], made["ways"][1]
    assert (chosen["strategy"], chosen["local_steps"], chosen["overlap"], chosen["exact"]) == (
        "local_sgd",
        10,
        True,
        False,
    )
    assert (chosen["step_s"], chosen["samples_per_second"]) == (2.0, 24.0)
    assert (other["strategy"], other["local_steps"], other["exact"]) == ("sync", None, True)
    assert (made["verdicts"], made["does_not_fit"], made["considered"]) == (["use it"], ["too large"], 7)
