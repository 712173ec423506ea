"""What a sweep makes of its trials' ends: their order, hosts that fail, and mistakes of the job's; no process runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remote_agent import protocol
from remote_agent.protocol import DeviceSpec, RunFailed, RunFinished, RunStarted
from remote_agent.raw_ray import append_event
from remote_agent.search import Parameter, Search
from remote_agent.sweep import BY_ITSELF, Failed, Sweep, _Running
from remote_agent.trial_events import TrialEvents
from tests.specs import run_spec, run_step

PLACE = Parameter(name="batch_size", choices=("8", "64"))


def sweep(tmp_path: Path, hosts: str = "ab", trials: int = 4, metric: str = "loss") -> Sweep:
    devices = tuple(DeviceSpec(host=host, device="cpu", name="test") for host in hosts)
    search = Search(parameters=(PLACE,), trials=trials, metric=metric)
    spec = run_spec("sweep", "job.py:Job", devices=devices, search=search)
    return Sweep(tmp_path, spec)


def begin(made: Sweep, tmp_path: Path, host: str, iterations: int = 27) -> _Running:
    """The next trial for ``host``, on it; nothing is started."""
    found = made._next_for(host)
    assert found is not None, f"nothing is left for {host}"
    made._waiting.remove(found)
    number, settings = found
    made._attempts[number] += 1
    path = tmp_path / f"{number}-{made._attempts[number]}.jsonl"
    about: dict[str, Any] = {"run": "r", "job": "j", "host": host, "batch_size": 8, "parameters": 1, "config": {}}
    append_event(path, RunStarted(seq=1, time=0.0, **about, iterations=iterations))
    process = SimpleNamespace(exitcode=None, terminate=lambda: None)
    trial = protocol.Trial(number=number, settings=dict(settings), host=host, device="cpu")
    device = next(seat.device for seat in made._seats if seat.device.host == host)
    return _Running(trial, device, cast("Any", process), TrialEvents(path))


def step(each: _Running, number: int, loss: float) -> None:
    append_event(each.events.path, run_step(number, seq=2, loss=loss))


def test_a_trials_checkpoints_go_with_its_end(tmp_path: Path) -> None:
    made = sweep(tmp_path)
    each = begin(made, tmp_path, "a")
    kept = each.events.path.parent / "checkpoints" / "step-00000027.safetensors"
    kept.parent.mkdir()
    kept.touch()
    end(made, each)
    assert not kept.parent.exists()
    assert each.events.path.exists()


def end(made: Sweep, each: _Running, code: int = 0, *, cause: str = "", steps: int = 27) -> None:
    """Its process ended so."""
    if cause:
        append_event(each.events.path, RunFailed(seq=9, time=0.0, step=0, host=each.trial.host, cause=cause, hint=""))
    elif not each.stopped:
        figures: dict[str, Any] = {"samples": 8, "final_loss": None, "samples_per_second": 1.0, "checkpoint": ""}
        append_event(each.events.path, RunFinished(seq=9, time=0.0, steps=steps, **figures))
    cast("Any", each.process).exitcode = code
    each.events.read()
    made._conclude(each)


def test_more_steps_of_smaller_batches_do_not_make_a_trial_the_best(tmp_path: Path) -> None:
    made = sweep(tmp_path)
    many, few, early = (begin(made, tmp_path, "a", steps) for steps in (270, 27, 270))
    for each, steps, loss in ((many, 270, 0.9), (few, 27, 0.1), (early, 90, 0.01)):
        for number in range(1, steps + 1):
            step(each, number, loss)
    early.events.read()
    made._halving.goes_on(99, -1, 0.001)
    made._judge(early)
    assert early.stopped
    for each, steps in ((many, 270), (few, 27), (early, 90)):
        end(made, each, steps=steps)
    assert [trial.number for trial in made.result().trials] == [few.trial.number, many.trial.number, early.trial.number]


def test_an_unfit_host_takes_no_trials_from_the_others(tmp_path: Path) -> None:
    made = sweep(tmp_path, trials=8)
    for _ in range(4):  # a fails each at once; b makes it
        failed = begin(made, tmp_path, "a")
        end(made, failed, BY_ITSELF, cause="no transformers on this host")
        again = begin(made, tmp_path, "b")
        assert again.trial.number == failed.trial.number
        step(again, 27, 0.5)
        end(made, again)
    assert [trial.cause for trial in made.result().trials] == [""] * 4
    unfit = next(seat for seat in made._seats if seat.device.host == "a")
    assert unfit.pause > 60, "it is asked less and less often"


def test_a_mistake_of_the_jobs_ends_the_sweep_once_two_hosts_have_it(tmp_path: Path) -> None:
    made = sweep(tmp_path, trials=8)
    for number, host in ((0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a")):
        each = begin(made, tmp_path, host)
        assert each.trial.number == number
        end(made, each, BY_ITSELF, cause="planted")
    last = begin(made, tmp_path, "b")
    with pytest.raises(Failed, match="every trial failed: planted"):
        end(made, last, BY_ITSELF, cause="planted")
    assert all(seat.pause == 0.0 for seat in made._seats if seat.device.host == "a")


def test_it_goes_on_while_a_trial_makes_steps(tmp_path: Path) -> None:
    made = sweep(tmp_path, hosts="a", trials=8)
    good = begin(made, tmp_path, "a")
    step(good, 1, 0.5)
    good.events.read()
    made._running.append(good)
    for _ in range(4):
        end(made, begin(made, tmp_path, "a"), BY_ITSELF, cause="planted")
    assert len(made.result().trials) == 4


def test_a_failure_after_steps_is_the_trials_own(tmp_path: Path) -> None:
    made = sweep(tmp_path)
    each = begin(made, tmp_path, "a")
    step(each, 1, 0.5)
    end(made, each, BY_ITSELF, cause="loss is NaN")
    assert [trial.cause for trial in made.result().trials] == ["loss is NaN"]
