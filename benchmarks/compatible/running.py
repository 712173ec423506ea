"""Carries out a case of the matrix: the script API's run, the plain loop over the same batches, and the outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compatible.case import BATCH, ENDED, EQUAL, ITSELF, REFUSED, SEED, Case
from remote_agent.protocol import DeviceSpec
from remote_agent.training import DistributedTrainer, TrainingError, TrainingResult
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import engine
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.session import Session
from remote_agent.training.data import record

WRONG, CRASH = "WRONG", "CRASH"
"""Outcomes that must not be; the others are EQUAL and REFUSED."""

LIMITS: dict[tuple[int, bool], tuple[int, ...]] = {
    (2, False): (8, 4),
    (3, False): (6, 4, 2),
    # Room for the whole batch without any one of them.
    (2, True): (12, 12),
    (3, True): (12, 12, 8),
}
"""(workers, one is killed): the most samples that each takes, which makes their slices unequal."""

SMALL = 1e-4

MEASURED_WITH = 6
"""Times that the measurement changes the weights: to others than the first ones, and back."""

KILL_AT = 4
"""The step in which a worker is killed."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a case is run."""

    workers: int = 2
    strategy: str = "sync"
    killed: bool = False
    device: str = "cpu"

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f" on {self.device}"
        return f"{self.strategy}, {self.workers} workers{where}" + (", one killed" if self.killed else "")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a case gave.

    Attributes:
        case: its name.
        way: how it was run.
        outcome: EQUAL, REFUSED, ITSELF, WRONG or CRASH.
        error: the largest relative error of a tensor, or of the final loss.
        says: the refusal's line, or what is wrong.
        slices: of the last step.
        seconds: of the run.
    """

    case: str
    way: Way
    outcome: str
    error: float = float("nan")
    says: str = ""
    slices: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass
class Watched:
    """What the harness sees of a run from inside: the order of its samples."""

    session: Session | None = None


def carry_out(case: Case, way: Way, folder: Path) -> Row:
    """Run the case, and compare. ``folder`` is empty."""
    began = time.monotonic()
    row = _judged(case, way, folder)
    return dataclasses.replace(row, seconds=time.monotonic() - began)


def _judged(case: Case, way: Way, folder: Path) -> Row:
    blank = Row(case=case.name, way=way, outcome=CRASH)
    watched = Watched()
    try:
        result = trained(case, way, folder, watched)
    except TrainingError as error:
        return _refused(_expected_refusal(case, way), blank, folder, error, ends=case.expect == ENDED)
    except Exception as error:  # noqa: BLE001 - whatever a user would see instead of a sentence
        return dataclasses.replace(blank, says=f"{type(error).__name__}: {error}")
    slices = tuple(worker["samples"] for worker in result.metrics[-1]["workers"])
    row = dataclasses.replace(blank, slices=slices)
    if case.expect in (REFUSED, ENDED):
        return dataclasses.replace(row, outcome=WRONG, says="it was not refused")
    mistake = _mistake(case, way, result)
    if mistake:
        return dataclasses.replace(row, outcome=WRONG, says=mistake)
    if case.expect == ITSELF:
        again = trained(case, way, folder / "again", Watched(), undisturbed=True)
        same = all(torch.equal(again.state_dict[name], tensor) for name, tensor in result.state_dict.items())
        return dataclasses.replace(row, outcome=ITSELF if same else WRONG, error=0.0 if same else 1.0)
    steps = samples_of(result.events.parent, watched, case)
    mistake = case.mistake_in_order(steps)
    if mistake:
        return dataclasses.replace(row, outcome=WRONG, says=mistake)
    expected, loss = plain_loop(case, steps, unit_of(watched))
    largest, name = relative_error(result.state_dict, expected)
    of_loss = abs(result.final_loss - loss) / max(abs(loss), 1e-12)
    if not of_loss <= largest:
        largest, name = of_loss, "the final loss"
    outcome = EQUAL if largest <= case.tolerance else WRONG
    return dataclasses.replace(row, outcome=outcome, error=largest, says="" if outcome == EQUAL else name)


def _expected_refusal(case: Case, way: Way) -> str | None:
    """What a refusal has to say; None: the case has to train."""
    if way.strategy not in ("sync", "allreduce") and case.settings.get("deterministic"):
        return "deterministic=true needs strategy=sync or strategy=allreduce"
    return case.says if case.expect in (REFUSED, ENDED) else None


def _refused(expected: str | None, row: Row, folder: Path, error: TrainingError, *, ends: bool) -> Row:
    """A refusal is one where it is expected, before the first step unless ``ends``, and says what it has to."""
    says = f"{error.cause}; {error.hint}".replace("\n", " ")
    journal = folder / "events.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    steps = sum(event["kind"] == "step" for event in events)
    if steps and not ends:
        return dataclasses.replace(row, outcome=CRASH, says=f"in the middle: {says}")
    if expected is None:
        return dataclasses.replace(row, outcome=WRONG, says=f"refused: {says}")
    if expected not in says:
        return dataclasses.replace(row, outcome=WRONG, says=f"refused without {expected!r}: {says}")
    return dataclasses.replace(row, outcome=ENDED if ends else REFUSED, says=says)


def _mistake(case: Case, way: Way, result: TrainingResult) -> str:
    """Why equal weights would say nothing of this run; "": they do."""
    events = [json.loads(line) for line in result.events.read_text().splitlines()]
    lost = [event for event in events if event["kind"] == "worker_lost"]
    if way.killed and not lost:
        return "no worker was lost"
    if not way.killed and lost:
        return f"a worker was lost: {lost[0]['cause']}"
    if not any(case.notice in event.get("text", "") for event in events):
        return f"the run did not say {case.notice!r}"
    if len(result.metrics) != case.steps:
        return f"{len(result.metrics)} steps"
    return ""


# --- The run ---------------------------------------------------------------------------------------------------------


def trained(case: Case, way: Way, folder: Path, watched: Watched, *, undisturbed: bool = False) -> TrainingResult:
    """The script API's run, as a user starts it, on devices that take unequal slices; ``undisturbed`` kills none."""
    killed = way.killed and not undisturbed
    factory: Any = Killing(case, str(folder.absolute()) + ".killed") if killed else case
    config = case.config(strategy=way.strategy, num_cpu_workers=way.workers, num_gpu_workers=0)
    trainer = DistributedTrainer(model_factory=factory, data_loader=case.create_data(), config=config)
    torch.manual_seed(0)
    # A device takes whole units.
    limits = [max(most, config.unit) for most in LIMITS[way.workers, way.killed]]
    with unequal(limits, way.device), _watching(watched):
        return trainer.train(folder=folder, progress=False)


@contextlib.contextmanager
def unequal(limits: Sequence[int], device: str = "cpu") -> Iterator[None]:
    """The devices that are chosen for a script take at most so many samples each; the first is a ``device``."""
    choose = placement.choose

    def limited(*arguments: Any) -> tuple[DeviceSpec, ...]:
        names = [device, *["cpu"] * (len(limits) - 1)]
        chosen = zip(choose(*arguments), limits, names, strict=True)
        return tuple(dataclasses.replace(spec, max_batch=most, device=name) for spec, most, name in chosen)

    with mock.patch.object(placement, "choose", limited):
        yield


@contextlib.contextmanager
def _watching(watched: Watched) -> Iterator[None]:
    """Have the session of the run that is started."""
    train = vars(engine)["train"]

    def seen(*arguments: Any, **others: Any) -> Any:
        watched.session = next(value for value in arguments if isinstance(value, Session))
        return train(*arguments, **others)

    with mock.patch.object(engine, "train", seen):
        yield


class Killing:
    """A case whose model kills its process in step :data:`KILL_AT`, once.

    Args:
        case: the case.
        marker: the file that says that it is done.
    """

    def __init__(self, case: Case, marker: str) -> None:
        self._case, self._marker = case, marker

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._case, name)

    def create_model(self) -> nn.Module:
        """The case's model; a step is known from how often its weights have changed."""
        model = self._case.create_model()
        forward, marker = model.forward, self._marker
        seen: list[Tensor] = []
        # What can only be read once is not there for the measurement.
        last = KILL_AT + (0 if self._case.stream else MEASURED_WITH)

        def dying(*arguments: Any, **others: Any) -> Any:
            weight = next(parameter for parameter in model.parameters() if parameter.requires_grad)
            if not seen or not torch.equal(seen[-1], weight):
                seen.append(weight.detach().clone())
            if len(seen) == last:
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
            return forward(*arguments, **others)

        model.forward = dying
        return model


def samples_of(folder: Path, watched: Watched, case: Case) -> list[NDArray[np.int64]]:
    """The samples of each step, as the run's own record has them, in the order of the batch."""
    assert watched.session is not None, "the run was trained"
    order = watched.session.order
    found = []
    for spans in record.read(folder / record.FILE).values():
        begin, end = min(span.begin for span in spans), max(span.end for span in spans)
        assert sum(span.end - span.begin for span in spans) == end - begin, "each sample once"
        found.append(np.arange(begin, end) if case.stream else order.take(begin, end))
    return found


def unit_of(watched: Watched) -> int:
    """Samples that the run always computes together; 0: it has no such units."""
    assert watched.session is not None, "the run was trained"
    return int(getattr(watched.session.config, "unit", 0) or 0)


# --- Plain torch -----------------------------------------------------------------------------------------------------


def plain_loop(case: Case, steps: Sequence[NDArray[np.int64]], unit: int) -> tuple[dict[str, Tensor], float]:
    """Weights and the last step's loss of a plain loop over these batches, in one process.

    Where a unit is smaller than the batch this is gradient accumulation over the units, as torch's users do it where a
    batch does not fit; each starts with the step's buffers, whose mean by samples is kept.
    """
    config = case.config()
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)
    model = case.create_model().train()
    data = case.create_data()
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in model.parameters()):
        loss_of(case, model, case.batch(data, steps[0]))
    create = getattr(case, "create_optimizer", None) or _adamw
    optimizer = create(model, config)
    create_scheduler = getattr(case, "create_scheduler", None)
    scheduler = create_scheduler(optimizer, config) if create_scheduler is not None else None
    cosine = _cosine(optimizer, config.num_iterations) if config.schedule == "cosine" else None
    loss = 0.0
    for indices in steps:
        optimizer.zero_grad()
        loss = _accumulated(case, model, data, indices, unit or BATCH)
        if config.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        for entry in (scheduler, cosine):
            if entry is not None:
                entry.step()
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return {name: tensor.detach().clone() for name, tensor in state.items()}, loss


def _adamw(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)


def _cosine(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


def _accumulated(case: Case, model: nn.Module, data: Any, indices: NDArray[np.int64], unit: int) -> float:
    """Leave the batch's mean gradient; its mean loss."""
    if unit >= len(indices):
        loss = loss_of(case, model, case.batch(data, indices))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    sums = {name: torch.zeros_like(buffer, dtype=torch.float64) for name, buffer in before.items()}
    total = 0.0
    for part in np.array_split(indices, -(-len(indices) // unit)):
        buffers = dict(model.named_buffers())
        for name, buffer in buffers.items():
            buffer.copy_(before[name])
        loss = loss_of(case, model, case.batch(data, part)) * (len(part) / len(indices))
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
        for name, buffer in model.named_buffers():
            sums[name] += buffer.double() * (len(part) / len(indices))
    for name, buffer in model.named_buffers():
        buffer.copy_(sums[name] if buffer.is_floating_point() else sums[name].round())
    return total


def loss_of(case: Case, model: nn.Module, batch: Any) -> Tensor:
    """The batch's mean loss, as plain torch has it."""
    own = getattr(case, "loss", None)
    if isinstance(own, nn.Module):
        return own(model(batch[0]), batch[1])  # type: ignore[no-any-return]
    if own is None:
        x, y = batch.values() if isinstance(batch, dict) else batch
        return functional.cross_entropy(model(x), y)
    loss = own(model, batch)
    if isinstance(loss, tuple) and isinstance(loss[1], dict):  # figures beside the loss
        loss = loss[0]
    if isinstance(loss, tuple):
        return loss[0] / loss[1]  # type: ignore[no-any-return]
    assert isinstance(loss, Tensor)
    return loss


def relative_error(trained: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """The largest over all tensors of ``norm(trained - expected) / norm(expected)``, and that tensor's name.

    A tensor's numbers count as :data:`SMALL` at least: a bias that the next layer cancels has a gradient of rounding.
    """
    missing = sorted(trained.keys() ^ expected.keys())
    if missing:
        return float("inf"), f"other tensors: {', '.join(missing[:3])}"
    worst, name = 0.0, ""
    for key, value in expected.items():
        kind = torch.complex128 if value.is_complex() else torch.float64
        size = value.to(kind).norm().clamp_min(SMALL * value.numel() ** 0.5)
        difference = (trained[key].to(kind) - value.to(kind)).norm() / size
        if not float(difference) <= worst:
            worst, name = float(difference), key
    return worst, name
