"""A sweep's words: what is taken, and that every mistake is said at once, before anything starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hetero_tui.errors import OrderError, RunError
from hetero_tui.runs.sweep import order_from, parse_parameter, read_sweep
from remote_agent import settings
from remote_agent.protocol import SweepResult, Trial
from remote_agent.search import Parameter

KNOWN = settings.hints()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learning_rate=1e-4..1e-2:log", Parameter(name="learning_rate", low=1e-4, high=1e-2, log=True)),
        ("learning_rate=.1..1.5", Parameter(name="learning_rate", low=0.1, high=1.5)),
        ("lr=.1..1.5", Parameter(name="learning_rate", low=0.1, high=1.5)),
        ("clip_norm=0..5", Parameter(name="clip_norm", low=0, high=5)),
        ("lora_rank=4..64:log", Parameter(name="lora_rank", low=4, high=64, log=True, whole=True)),
        ("schedule=linear, cosine", Parameter(name="schedule", choices=("linear", "cosine"))),
        ("batch_size=16,32", Parameter(name="batch_size", choices=("16", "32"))),
    ],
)
def test_parameters_are_read(text: str, expected: Parameter) -> None:
    assert parse_parameter(text, KNOWN) == expected


def test_a_setting_that_only_the_host_knows_is_taken_by_its_looks() -> None:
    assert parse_parameter("depth=2..8", KNOWN, is_open=True) == Parameter(name="depth", low=2, high=8, whole=True)
    assert parse_parameter("depth=2..8.0", KNOWN, is_open=True) == Parameter(name="depth", low=2, high=8)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("learning_rate", "is not NAME="),
        ("=1..2", "is not NAME="),
        ("learning_rate=", "is not NAME="),
        ("learnin_rate=1..2", "did you mean 'learning_rate'?"),
        ("learning_rate=1", "needs LOW..HIGH"),
        ("learning_rate=1,1", "different values"),
        ("learning_rate=1,", "different values"),
        ("learning_rate=2..1", "2 is not below 1"),
        ("learning_rate=1..1", "1 is not below 1"),
        ("learning_rate=0..1:log", "begins above 0"),
        ("learning_rate=1e-4...1e-2", "LOW..HIGH:log"),
        ("learning_rate=1..2:lin", "LOW..HIGH:log"),
        ("learning_rate=1..2:log:log", "LOW..HIGH:log"),
        ("learning_rate=a..b", "are numbers"),
        ("learning_rate=nan..1", "is not below"),
        ("learning_rate=1..inf", "is not below"),
        ("learning_rate=..1", "are numbers"),
        ("learning_rate=1..", "are numbers"),
        ("batch_size=1.5..4", "is a whole number"),
        ("schedule=1..2", "is no number"),
    ],
)
def test_what_is_wrong_with_a_parameter_is_said(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match=re.escape(cause)):
        parse_parameter(text, KNOWN)


def test_all_mistakes_are_said_at_once() -> None:
    with pytest.raises(OrderError) as caught:
        read_sweep(
            "digit",
            [
                "learning_rate=1..",
                "num_iterations=1..9",
                "seed=1,2",
                "seed=3,4",
                "clip_norm=-1..1",
                "momentum=1..2",
                "strategy=sync,local_sgd",
            ],
            0,
            "speed",
            ["seeed=1"],
        )
    said = "\n".join(caught.value.mistakes)
    for part in (
        "did you mean 'digits'?",
        "--set seeed",
        "--trials 0",
        "--by speed: say min:speed",
        "--param learning_rate=1..: ",
        "num_iterations is no parameter of a sweep",
        "seed is given twice",
        "strategy is no parameter",
    ):
        assert part in said, said
    with pytest.raises(OrderError) as caught:
        read_sweep(
            "digits",
            ["clip_norm=-1..1", "momentum=1..2", "batch_size=0,x", "seed=1,2", "schedule=linear,cos"],
            5,
            pairs=["seed=1"],
        )
    said = "\n".join(caught.value.mistakes)
    for part in (
        "clip_norm=-1: must be at least 0",
        "momentum=1..2: no such setting",
        "batch_size=x: expected a whole number",
        "--set seed gives all trials the same",
        "schedule=cos: did you mean 'cosine'?",
        "needs --set epochs",
    ):
        assert part in said, said


@pytest.mark.parametrize(
    ("parameter", "why"),
    [
        ("lora_alpha=1..9", "it counts with lora_rank=16 or another"),
        ("outer_momentum=0.1..0.9", "it counts with outer=nesterov"),
        ("clip_norm=1..9", ""),
    ],
)
def test_a_sweep_over_a_setting_without_effect_is_refused_before_anything_starts(parameter: str, why: str) -> None:
    if not why:
        assert read_sweep("digits", [parameter], 5).search is not None
        return
    with pytest.raises(OrderError, match=re.escape(why)):
        read_sweep("digits", [parameter], 5)


def test_a_sweep_without_parameters_is_refused() -> None:
    with pytest.raises(OrderError, match="no --param"):
        read_sweep("digits", [], 5)


def test_a_sweep_is_an_order_that_is_carried_out_as_a_script(tmp_path: Path) -> None:
    job = (
        "class Job:\n def create_model(self): ...\n def create_data(self): ...\n create_validation_data = create_data\n"
        " def metrics(self, model, batch): return {'score': 1.0}\n"
    )
    (tmp_path / "job.py").write_text(job)
    order = read_sweep(
        str(tmp_path / "job.py"), ["learning_rate=1e-4..1e-2:log"], 20, "max:score", ["num_iterations=50", "seed=7"]
    )
    assert order.search is not None
    assert (order.search.trials, order.search.metric, order.search.sign, order.search.seed) == (20, "score", -1, 7)
    assert order.script == ()
    assert order.code is not None
    assert order.settings == {"num_iterations": "50", "seed": "7"}


def result(job: str = "digits", cause: str = "") -> SweepResult:
    trial = Trial(number=3, settings={"learning_rate": "0.003"}, steps=50, figure=0.1, cause=cause)
    config = {"num_iterations": "50", "seed": "7"}
    return SweepResult(run="sweep-x", job=job, metric="loss", config=config, trials=(trial,), finished=True)


def test_training_takes_the_best_settings_and_the_users_own_count_more() -> None:
    order = order_from(result(), None, ["num_iterations=900"])
    assert order.job.name == "digits"
    assert order.settings == {"num_iterations": "900", "seed": "7", "learning_rate": "0.003"}
    with pytest.raises(OrderError, match="'nonsense' is not key=value"):
        order_from(result(), None, ["nonsense"])


def test_few_combinations_are_each_tried_once() -> None:
    parameters = ["schedule=constant,cosine", "warmup_steps=0..2"]
    order = read_sweep("digits", parameters, 20)
    assert order.search is not None
    rows = [tuple(sorted(row.items())) for row in order.search.values()]
    assert order.search.trials == len(rows) == len(set(rows)) == 6
    fewer = read_sweep("digits", parameters, 5).search
    assert fewer is not None
    assert fewer.trials == 5
    mixed = read_sweep("digits", [*parameters, "learning_rate=1e-4..1e-2"], 20).search
    assert mixed is not None
    assert mixed.trials == 20


def test_what_can_not_be_trained_from_a_sweep_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="none of its trials ended well"):
        order_from(result(cause="the loss is nan"), None)
    with pytest.raises(OrderError, match="is not in this folder") as caught:
        order_from(result("job.py:Job"), None)
    assert "train path/to/job.py:Job --from sweep-x" in caught.value.hint


def test_a_sweep_whose_trials_were_to_have_several_shards_is_refused() -> None:
    with pytest.raises(OrderError, match="--set shards=3: each trial is on one device"):
        read_sweep("digits", ["learning_rate=1e-4..1"], 5, pairs=["shards=3"])
    assert read_sweep("digits", ["learning_rate=1e-4..1"], 5, pairs=["shards=1"]).search is not None
