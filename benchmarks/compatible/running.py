"""Runs a script on workers that take unequal parts of each batch, and in plain torch, and compares the two."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset, default_collate

from benchmarks.compatible.table import Script
from remote_agent.planning import units
from remote_agent.protocol import DeviceSpec, RunSpec, encode
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import sources
from remote_agent.training.data import datasets, record
from remote_agent.training.data.extent import Begin
from remote_agent.training.job import loss_function
from remote_agent.training.user_code import losses
from remote_agent.training.worker.device.compute import slice_seed
from tests.training.coordinators import Coordinators
from tests.training.loopback import Cluster

PARTS = {2: (2 / 3, 1 / 3), 3: (1 / 2, 1 / 3, 1 / 6)}
"""The most that each worker takes of a batch, which makes their slices unequal."""

TOLERANCE = 1e-5
"""Largest relative error of a tensor or of a step's loss."""

SMALL = 1e-4
"""Size of a tensor's numbers, at least: a bias that the next layer cancels has a gradient of rounding alone."""

NOISE = 10
"""A tensor may differ by so many times what the last bits of the first weights change in plain torch. Where it counts,
a gradient is nothing but rounding, as that of the bias of an attention's keys, and Adam makes whole steps of it."""

TWIN = "\n\nfrom benchmarks.compatible import accelerator\n\naccelerator.register()\n"
"""Added to a job's file: a device whose tensors are apart from the CPU's, as a GPU's are."""

KILL_AT, RUN_S = 4, 180.0
"""The step in which a worker is killed, and seconds that a run may take."""


class Outcome(enum.StrEnum):
    """Result of a script's run."""

    EQUAL = "equal"
    REFUSED = "refused"
    WRONG = "WRONG"


@dataclass(frozen=True, kw_only=True)
class Way:
    """How scripts are run.

    Attributes:
        killed: a worker is killed in a step; each of them can then take a whole batch.
        device: of the first worker.
    """

    workers: int = 2
    strategy: str = "sync"
    killed: bool = False
    device: str = "cpu"

    def __str__(self) -> str:
        on = "" if self.device == "cpu" else f" on {self.device}"
        return f"{self.strategy}, {self.workers} workers{on}" + (", one killed" if self.killed else "")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Result of a script.

    Attributes:
        error: the largest relative error of a tensor or of a step's loss.
        says: the refusal, what is wrong, or samples of each slice of the last step.
    """

    script: str
    way: Way
    outcome: Outcome
    error: float = math.nan
    says: str = ""
    seconds: float = 0.0


class Wrong(Exception):
    """A result that must not be."""


@dataclass(frozen=True)
class Lab:
    """A cluster with the hosts a, b and c, and what starts runs on it."""

    cluster: Cluster
    coordinators: Coordinators

    def carry_out(self, script: Script, way: Way, folder: Path) -> Row:
        """Run the script and compare; ``folder`` is empty."""
        began, row = time.monotonic(), Row(script=script.name, way=way, outcome=Outcome.WRONG)
        try:
            row = self._judged(script, way, folder, row)
        except Wrong as wrong:
            row = dataclasses.replace(row, says=str(wrong))
        return dataclasses.replace(row, seconds=time.monotonic() - began)

    def _judged(self, script: Script, way: Way, folder: Path, row: Row) -> Row:
        settings = script.config(strategy=way.strategy)
        says = ""
        if script.refused:
            says, unit = refusal(self.run(script, dataclasses.replace(way, killed=False), settings, folder), script)
            if not unit:
                return dataclasses.replace(row, outcome=Outcome.REFUSED, says=says)
            settings, folder = settings | {"unit": unit}, folder.with_name(f"{folder.name}-unit")
        run = self.run(script, way, settings, folder)
        printed = io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            error, slices = compare(script, way, settings, run)
        outcome = Outcome.REFUSED if says else Outcome.EQUAL
        return dataclasses.replace(row, outcome=outcome, says=says or slices, error=error)

    def run(self, script: Script, way: Way, settings: Mapping[str, Any], folder: Path) -> Finished:
        """Train, as ``hetero-tui train FILE.py:NAME`` does.

        Raises:
            Wrong: it did not end.
        """
        folder.mkdir(parents=True)
        file = sys.modules[script.job.__module__].__file__
        assert file is not None, "scripts are files"
        source, name = Path(file).read_text(), script.name
        if way.killed:
            marker = str(folder.absolute() / "killed")
            source += f"\n\nfrom benchmarks.compatible.running import Killed\n\nJob = Killed({name}(), {marker!r})\n"
            name = "Job"
        if way.device == "twin":
            source += TWIN
        (folder / "job.py").write_text(source)
        batch = settings["batch_size"] or 1
        least = max(script.group, settings.get("unit", 0), batch if way.killed else 1)
        devices = tuple(
            DeviceSpec(host=host, device=device, name="test", max_batch=max(round(batch * part), least))
            for host, device, part in zip("abc", (way.device, "cpu", "cpu"), PARTS[way.workers], strict=False)
        )
        spec = RunSpec(
            run=folder.name,
            job=f"job.py:{name}",
            cluster="test",
            host="a",
            ray_address=self.cluster.address,
            node_address="127.0.0.2",
            devices=devices,
            server_host="a",
            config=dict(settings),
        )
        (folder / "run.json").write_text(encode(spec))
        process = self.coordinators.start(folder)
        try:
            process.communicate(RUN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Wrong(f"the run has not ended after {RUN_S:.0f} s") from None
        return Finished(folder, [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()])


@dataclass(frozen=True)
class Finished:
    """The folder and the events of a run that has ended."""

    folder: Path
    events: Sequence[Mapping[str, Any]]

    def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
        """Return its events of a kind."""
        return [event for event in self.events if event["kind"] == kind]


class Killed:
    """A job whose worker is killed in a step, once.

    Args:
        job: the job.
        marker: the file that says that it was done.
    """

    def __init__(self, job: Any, marker: str) -> None:
        self._job, self._marker, self._loss = job, marker, loss_function(job)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._job, name)

    def loss(self, model: nn.Module, batch: Any, step: int) -> Any:
        """The job's, if its process is not killed before."""
        if step == KILL_AT:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return self._loss(model, batch)


# --- The comparison --------------------------------------------------------------------------------------------------


def refusal(run: Finished, script: Script) -> tuple[str, int]:
    """Return the text of the run's refusal, and the unit that it offers; 0: none.

    Raises:
        Wrong: it was not refused, or says something else than it has to.
    """
    assert script.refused is not None, "it is expected to be refused"
    failed = run.of_kind("run_failed")
    if not failed:
        raise Wrong("it was not refused")
    cause, hint = failed[0]["cause"], failed[0]["hint"]
    says = f"{cause}; {hint}".replace("\n", " ")
    steps = len(run.of_kind("step"))
    if steps:
        raise Wrong(f"refused after {steps} steps: {says}")
    if script.refused[0] not in cause or script.refused[1] not in hint:
        raise Wrong(f"refused without {script.refused}: {says}")
    unit = re.search(r"unit=(\d+)", hint)
    return says, int(unit[1]) if unit else 0


def compare(script: Script, way: Way, settings: Mapping[str, Any], run: Finished) -> tuple[float, str]:
    """Return the largest relative error of a run's weights and losses, and the slices of its last step, as text.

    Raises:
        Wrong: it failed, or differs.
    """
    for failed in run.of_kind("run_failed"):
        raise Wrong(f"refused: {failed['cause']}; {failed['hint']} {failed['detail']}".replace("\n", " "))
    if not run.of_kind("run_finished"):
        raise Wrong("the coordinator ended without a result")
    lost = [event["cause"] for event in run.of_kind("worker_lost")]
    if bool(lost) != way.killed:
        raise Wrong(f"lost workers: {lost}")
    steps = record.read(run.folder / record.FILE).values()
    spans = [sorted((each.begin, each.end) for each in step) for step in steps]
    every = [each for step in steps for each in step]
    if len(spans) != settings["num_iterations"] or record.gaps_and_overlaps(every, spans[-1][-1][1]):
        raise Wrong(f"samples were left out, or used twice: {spans}")
    weights, expected = plain(script, settings, spans, run.folder)
    flipped, _ = plain(script, settings, spans, run.folder, flip=True)
    (finished,) = run.of_kind("run_finished")
    found = checkpoint.load(Path(finished["checkpoint"]))
    if found.keys() != weights.keys():
        raise Wrong(f"other tensors: {sorted(found.keys() ^ weights.keys())[:3]}")
    seen = {event["step"]: event["loss"] for event in run.of_kind("step")}  # the last, where steps were made again
    errors = {f"loss {step}": abs(seen[step] - loss) / max(abs(loss), SMALL) for step, loss in enumerate(expected, 1)}
    rounding = []
    for name in weights.keys() - set(script.counts):
        error = relative_error(found[name], weights[name])
        if TOLERANCE < error < NOISE * relative_error(flipped[name], weights[name]):
            rounding.append(name)
        else:
            errors[name] = error
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else math.inf)
    if not errors[worst] <= TOLERANCE:
        raise Wrong(f"{worst} differs by {errors[worst]:.1e}")
    slices = "+".join(str(end - begin) for begin, end in spans[-1])
    return errors[worst], f"{slices}, without {', '.join(rounding)}" if rounding else slices


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return ``norm(found - expected) / norm(expected)``."""
    kind = torch.complex128 if expected.is_complex() else torch.float64
    size = expected.to(kind).norm().clamp_min(SMALL * expected.numel() ** 0.5)
    return float((found.to(kind) - expected.to(kind)).norm() / size)


# --- Plain torch -----------------------------------------------------------------------------------------------------


def plain(
    script: Script,
    settings: Mapping[str, Any],
    spans: Sequence[Sequence[tuple[int, int]]],
    folder: Path,
    *,
    flip: bool = False,
) -> tuple[dict[str, Tensor], list[float]]:
    """Return the weights and the loss of each step of a plain torch loop over the same batches.

    Each step is one forward and backward pass of the whole batch. There are two exceptions, where this is gradient
    accumulation: over units, and over slices where random numbers are drawn, with those of the run. With ``flip`` the
    last bit of each first weight is another one.
    """
    config, job = TrainingConfig(**settings), script.job()
    seed(config.seed)
    model = job.create_model().train()
    data = Data(job, config, folder, of_run=script.random)
    if any(isinstance(each, nn.UninitializedParameter) for each in model.parameters()):
        loss_function(job)(model, data.batch(0, 1))
    for each in model.parameters() if flip else ():
        each.data *= 1 + torch.finfo(each.dtype).eps
    optimizer = job.create_optimizer(model, config) if hasattr(job, "create_optimizer") else default(model, config)
    scheduler = job.create_scheduler(optimizer, config) if hasattr(job, "create_scheduler") else None
    if config.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.num_iterations)
    unit, found = config.unit or script.group, []
    for step, slices in enumerate(spans, start=1):
        first, last = slices[0][0], slices[-1][1]
        parts: Sequence[tuple[int, int]] = [(first, last)]
        if unit:
            parts = [
                (first + begin, first + end) for begin, end in itertools.pairwise(units.bounds(last - first, unit))
            ]
        elif script.random:
            parts = slices
        optimizer.zero_grad()
        losses.at_step(step)
        found.append(accumulate(script, job, model, data, step, parts))
        if config.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        if isinstance(scheduler, ReduceLROnPlateau):
            if step % config.evaluate_every == 0:
                with torch.no_grad():
                    scheduler.step(loss_function(job)(model.eval(), job.create_validation_data()))
                model.train()
        elif scheduler is not None:
            scheduler.step()
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return {name: tensor.detach().clone() for name, tensor in state.items()}, found


def accumulate(
    script: Script, job: Any, model: nn.Module, data: Data, step: int, parts: Sequence[tuple[int, int]]
) -> float:
    """Leave the gradient of the batch's loss with the parameters; returns the loss.

    Each part starts from the same state. Afterwards the state is the parts' mean by samples.
    """
    trained = {id(each) for each in model.parameters() if each.requires_grad}
    state = [each for each in model.state_dict(keep_vars=True).values() if id(each) not in trained]
    before, kept = [each.detach().clone() for each in state], [torch.zeros_like(each).double() for each in state]
    total, weight = 0.0, 0.0
    for number, (begin, end) in enumerate(parts):
        for each, first in zip(state, before, strict=True):
            each.data.copy_(first)
        if script.random:
            seed(slice_seed(TrainingConfig(**script.config()).seed, step, number))
        given = loss_function(job)(model, data.batch(begin, end))
        value, counts = given if isinstance(given, tuple) and not isinstance(given[1], dict) else (given, None)
        value = value[0] if isinstance(value, tuple) else value  # figures beside it
        if counts is None:
            value, counts = (value, 1 / len(parts)) if script.summed else (value * (end - begin), end - begin)
        value.backward()
        total, weight = total + value.item(), weight + float(counts)
        for sum_, each in zip(kept, state, strict=True):
            sum_ += each.detach() * (end - begin)
    for each, sum_ in zip(state, kept, strict=True):
        mean = sum_ / (parts[-1][1] - parts[0][0])
        each.data.copy_(mean if each.is_floating_point() else mean.round())
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= weight
    return total / weight


class Data:
    """A script's batches, by the position of their samples in the run's order.

    Args:
        of_run: samples are drawn with the run's random numbers.
    """

    def __init__(self, job: Any, config: TrainingConfig, folder: Path, *, of_run: bool) -> None:
        seed(config.seed)
        given = job.create_data()
        self._data = given.dataset if isinstance(given, DataLoader) else given
        self._collate = given.collate_fn if isinstance(given, DataLoader) else default_collate
        self._samples = list(self._data) if isinstance(self._data, IterableDataset) else None
        self._order = None
        if self._samples is None:
            (folder / "plain").mkdir(exist_ok=True)
            self._order = sources.source_of(given).open(config, Begin(folder=folder / "plain"))[1]
        self._run = (datasets.as_dataset(given), config.seed) if of_run and self._samples is None else None

    def batch(self, begin: int, end: int) -> Any:
        """Return a batch of the samples at positions ``begin`` to ``end``."""
        if self._samples is not None:
            return self._collate([self._samples[each % len(self._samples)] for each in range(begin, end)])
        assert self._order is not None, "it has an order"
        indices = self._order.take(begin, end)
        if self._run is not None:
            return datasets.fetch(self._run[0], indices, self._run[1], begin)
        if isinstance(self._data, tuple):
            return tuple(part[indices] for part in self._data)
        if isinstance(self._data, dict):
            return {name: part[indices] for name, part in self._data.items()}
        return self._collate([self._data[int(index)] for index in indices])


def seed(number: int) -> None:
    """Seed the global generators."""
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    torch.manual_seed(number)


def default(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the optimizer of a job that makes none."""
    return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
