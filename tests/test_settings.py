"""Settings of a run: what is taken, what is refused, and that every mistake is named at once."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from hetero_tui.text import meant
from remote_agent import settings
from remote_agent.errors import ConfigError
from remote_agent.kinds import nearest
from remote_agent.settings import TrainingConfig


def test_settings_may_be_strings() -> None:
    config = TrainingConfig.from_settings(
        {"num_iterations": "50", "learning_rate": "1e-2", "rebalance": "off", "num_cpu_workers": "none"}
    )
    assert config == TrainingConfig(num_iterations=50, learning_rate=0.01, rebalance=False)


@pytest.mark.parametrize("name", ["_x", "x_", "a__b", "", "_"])
def test_a_name_with_any_underscores_is_looked_for(name: str) -> None:
    assert nearest("lr", (name, "learning_rate")) == "learning_rate"
    assert nearest(name or "q", (name or "q",)) == (name or "q")
    assert (nearest("BF16", ("fp16", "bf16")), nearest("NF4", ("none", "nf4"))) == ("bf16", "nf4")


@pytest.mark.parametrize(
    ("name", "known", "is_meant"),
    [
        ("nope-1234", "unet-1c4b", False),
        ("nofile", "unet", False),
        ("gossip", "ring", False),
        ("unet-1c4c", "unet-1c4b", True),
        ("batch", "batch_size", True),
        ("mercr", "mercer", True),
    ],
)
def test_what_has_half_its_letters_in_common_is_no_slip(name: str, known: str, is_meant: bool) -> None:
    assert nearest(name, (known,)) == (known if is_meant else "")
    assert (f"did you mean {known!r}?" in meant(name, (known,))) is is_meant


def test_settings_that_are_not_named_keep_the_jobs_own_defaults() -> None:
    assert TrainingConfig.from_settings({"seed": "4"}, TrainingConfig(batch_size=7)) == TrainingConfig(
        batch_size=7, seed=4
    )


def test_every_mistake_is_named_with_the_nearest_valid_setting() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig.from_settings({"batchsize": "8", "seed": "1.5", "learning_rate": "-1", "strategy": "asink"})
    text = "\n".join(caught.value.mistakes)
    assert len(caught.value.mistakes) == 4
    for part in (
        "'batch_size'",
        "seed=1.5: expected a whole number",
        "learning_rate=-1: must be above 0",
        "strategy=asink",
    ):
        assert part in text


@pytest.mark.parametrize("parse", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("strategy", "ssp", "strategy=ssp was removed: local_sgd with overlap is faster and closer"),
        ("staleness", "3", "staleness was removed: it belonged to strategy=ssp; use strategy=local_sgd"),
        ("codec", "topk", "codec=topk was removed: codec=int8 with local_sgd sends less and is closer"),
    ],
)
def test_what_was_removed_is_answered_by_one_line(name: str, value: str, line: str, parse: bool) -> None:
    assert settings.check({name: value}, parse=parse, is_open=True) == (line,)


def test_settings_without_a_name_are_refused_as_such() -> None:
    with pytest.raises(ConfigError, match="5: settings are given by name"):
        TrainingConfig(*[5])


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("num_iterations", np.int64(7), 7),
        ("num_iterations", np.uint8(7), 7),
        ("num_iterations", torch.tensor(7), 7),
        ("num_iterations", 7.0, 7),
        ("learning_rate", np.float32(0.5), 0.5),
        ("learning_rate", 1, 1.0),
        ("learning_rate", Fraction(1, 2), 0.5),
        ("rebalance", np.False_, False),
        ("strategy", np.str_("sync"), "sync"),
        ("num_cpu_workers", None, None),
        ("num_cpu_workers", np.int32(2), 2),
    ],
)
def test_numbers_of_numpy_become_plain_ones(name: str, value: Any, taken: Any) -> None:
    (got,) = (getattr(TrainingConfig(**{name: value}), name),)
    assert got == taken
    assert type(got) is type(taken)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rebalance", "no", "rebalance='no': expected False, without quotes"),
        ("overlap", "yes", "overlap='yes': expected True, without quotes"),
        ("rebalance", 0, "expected True or False"),
        ("num_iterations", 2.5, "num_iterations=2.5: expected a whole number"),
        ("num_iterations", "50", "expected a whole number"),
        ("num_iterations", True, "expected a whole number"),
        ("num_iterations", math.inf, "expected a whole number"),
        ("num_iterations", np.array([3]), "expected a whole number"),
        ("num_iterations", 0, "must be at least 1"),
        ("learning_rate", "1e-3", "expected a number"),
        ("learning_rate", math.nan, "expected a finite number"),
        ("learning_rate", math.inf, "expected a finite number"),
        ("learning_rate", 10**400, "expected a finite number"),
        ("learning_rate", 0.0, "must be above 0"),
        ("clip_norm", -0.1, "must be at least 0"),
        ("outer_momentum", 1.0, "must be at least 0 and below 1"),
        ("seed", 2**64, "must be at least 0 and at most"),
        ("strategy", b"sync", "expected text"),
        ("strategy", "Sync", "valid: sync, "),
        ("num_gpu_workers", "none", "expected a whole number"),
    ],
)
def test_a_value_of_another_kind_or_out_of_range_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(**{name: value})
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{name}=")


@pytest.mark.parametrize(
    "name", ["num_iterations", "epochs", "batch_size", "micro_batch", "warmup_steps", "local_steps"]
)
def test_a_number_that_events_could_not_carry_is_refused(name: str) -> None:
    """`epochs=1e23` made a run whose host was not listed any more, as its answer had a number of more than 64 bits."""
    (mistake,) = settings.check({name: "9" * 23})
    assert "at most 1e+" in mistake
    most = 10**6 if name == "epochs" else 10**12
    assert settings.check({name: str(most)}) == ()
    assert most * 10**6 < 2**63, "steps of that many passes over that much data can be told"


@pytest.mark.parametrize(
    ("name", "text", "taken"),
    [
        ("num_iterations", " 50 ", 50),
        ("num_iterations", "1e3", 1000),
        ("num_iterations", "10_000", 10_000),
        ("seed", str(2**62 + 1), 2**62 + 1),  # not by way of a float, which has no such number
        ("rebalance", "No", False),
        ("overlap", "yes", True),
        ("num_gpu_workers", "none", None),
        ("learning_rate", "1e-2", 0.01),
    ],
)
def test_texts_are_parsed_where_they_come_from_the_command_line(name: str, text: str, taken: Any) -> None:
    got = getattr(TrainingConfig.from_settings({name: text}), name)
    assert got == taken
    assert type(got) is type(taken)


def test_a_number_of_steps_replaces_the_jobs_epochs_and_both_at_once_are_refused() -> None:
    counted = TrainingConfig(epochs=3)
    assert TrainingConfig.from_settings({"num_iterations": "50"}, counted).epochs == 0
    assert TrainingConfig.from_settings({"seed": "1"}, counted).epochs == 3
    assert TrainingConfig.from_settings({"num_iterations": "50", "epochs": "0"}, counted).epochs == 0
    both = {"num_iterations": "50", "epochs": "2"}
    assert settings.check(both) == ("num_iterations=50: epochs=2 is set too; set one",)
    with pytest.raises(ConfigError, match="epochs=2 is set too"):
        TrainingConfig.from_settings(both)


def test_the_laptop_leaves_to_the_head_what_depends_on_the_jobs_own_settings() -> None:
    assert settings.check({"codec": "int8"}) == ()
    with pytest.raises(ConfigError, match="codec=int8: strategy=allreduce"):
        TrainingConfig.from_settings({"codec": "int8"}, TrainingConfig(strategy="allreduce"))


def test_every_default_is_valid_and_a_configuration_travels() -> None:
    config = TrainingConfig()
    assert pickle.loads(pickle.dumps(config)) == config


PAIRS = [
    ({"unit": 32, "micro_batch": 8, "batch_size": 64}, "micro_batch=8: unit=32 has 32 samples computed together"),
    ({"unit": 99, "micro_batch": 8, "batch_size": 64}, "micro_batch=8: unit=99 has 64 samples computed together"),
    ({"unit": 33, "micro_batch": 32, "batch_size": 64}, ""),
    ({"unit": 32, "micro_batch": 8}, ""),
    ({"micro_batch": 8, "batch_size": 64}, ""),
    ({"unit": 32, "micro_batch": 8, "batch_size": 64, "strategy": "pipeline"}, ""),
    ({"early_stopping": 3}, "early_stopping=3: needs keep_best=METRIC"),
    ({"early_stopping": 3, "keep_best": "loss"}, ""),
    ({"deterministic": True, "strategy": "local_sgd"}, "strategy=local_sgd: deterministic=true needs strategy=sync or"),
    ({"deterministic": True, "strategy": "allreduce"}, ""),
    ({"deterministic": True, "codec": "int8"}, "codec=int8: deterministic=true needs codec=fp32"),
    ({"deterministic": True, "precision": "fp16"}, "precision=fp16: deterministic=true needs"),
    ({"deterministic": True, "precision": "bf16"}, ""),
    ({"quantize": "nf4"}, "quantize=nf4: frozen weights need adapters; set lora_rank=16"),
    ({"lora_targets": "q_proj"}, "lora_targets=q_proj: needs adapters; set lora_rank=16"),
    ({"quantize": "nf4", "lora_rank": 4}, ""),
    ({"precision": "fp16", "strategy": "pipeline"}, "precision=fp16: strategy=pipeline needs"),
    ({"precision": "bf16", "strategy": "pipeline"}, ""),
    ({"codec": "bf16", "strategy": "allreduce"}, "codec=bf16: strategy=allreduce sends fp32 only"),
]


@pytest.mark.parametrize(("given", "said"), PAIRS, ids=str)
def test_settings_that_do_not_go_together_are_refused_and_those_that_do_are_not(given: Any, said: str) -> None:
    if not said:
        assert TrainingConfig(**given)
        assert settings.check(given, parse=False) == ()
        return
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(**given)
    (mistake,) = caught.value.mistakes
    assert mistake.startswith(said)


def test_a_mistake_does_not_hide_those_after_it_nor_a_jobs_own_setting_what_follows() -> None:
    mistakes = settings.check({"xyzzy": "1", "seed": "x", "num_iterations": "0"})
    assert [mistake.partition(":")[0].partition("=")[0] for mistake in mistakes] == ["xyzzy", "seed", "num_iterations"]
    assert [each.partition("=")[0] for each in settings.check({"mine": "1", "seed": "x"}, is_open=True)] == ["seed"]
