"""Decides whether the parts of a batch give what the whole batch gives, and what follows for the run if not. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from remote_agent.planning import units
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError

LATER_HINT = (
    "what was trained up to here may not be what plain torch trains: return (sum, weight) from loss where it is a mean"
    " over something else, or set unit to the batch size, and start anew; loss_reduction=mean takes the loss as it is"
)

CHANGES_HINT = (
    "leave changes to the optimizer, or express them in forward (torch.nn.utils.parametrize); of an Embedding with"
    " max_norm, normalise its output"
)

CARRIED_HINT = (
    "begin each batch anew (with zeros), and let a sample be as long a sequence as gradients are to reach: a hidden"
    " state that one batch leaves to the next (truncated backpropagation through time) can't be divided among workers"
)

HIDDEN_HINT = (
    "make it a buffer of the model (register_buffer), and a module, such as a target network, a part of the model: it"
    " then starts each step the same everywhere, and afterwards is the mean over the parts (of whole numbers the"
    " largest); draw random numbers from torch's, numpy's or Python's global generators, which are seeded for each"
    ' slice; return what is only shown beside the loss: return loss, {"name": value}'
)

APART = (
    "{what} differs from that of its parts by {apart:.0e} of it, which is more than rounding: something depends a"
    " little on which samples are together (steps or iterations that go by a norm over the batch? a small term that is"
    " no mean over samples?), and the weights come to differ from plain torch's, perhaps by more; with"
    " unit=batch_size one device computes a batch undivided, as in plain torch"
)

COPY = " in the job's own copy"
"""Follows the name of something in an optimizer, a sampler or a data set that the job keeps."""

COPY_HINT = (
    "each worker has a copy of the job, and training uses another optimizer, sampler and data set than those in it:"
    " give create_scheduler(optimizer, config) for the optimizer's options; what samples or their order are to go by"
    " has to be known before training"
)

FIRST = "the first call of loss sets "
"""Before the name of something that only that call sets."""

FIRST_HINT = (
    "compute it in create_model or in __init__, from data that is the same on all machines, and keep it as a buffer of"
    " the model (register_buffer): in a run each worker's first samples are others, and a worker that joins later"
    " begins with later ones"
)

UNIT_HINT = "set unit={batch} (the batch size): one device then computes a whole batch, as in plain torch"


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was found.

    Attributes:
        summed: the loss adds its samples up, it is no mean.
        together: why parts of a batch do not give what it gives; empty when they do.
        state: why parts do not give what the whole makes of the model's state; empty when they do.
        hidden: what the code changes outside of the model's state; empty when nothing was seen.
        carried: that has a row for each sample: a hidden state, which the next batch begins with.
        data: why the same samples are others each time that they are taken; empty when they are not.
        unsteady: the same samples with the same random numbers gave another loss.
        batch_statistics: the model normalises by the statistics of the samples that are together.
        moved: the model's buffers and frozen parameters that the code changes.
        apart: how far the gradient of a batch is from the sum of its parts', as a part of it, where that is more than
            rounding does, and too little to refuse; 0: no farther.
        unchecked: no two samples could be computed together, so that nothing was compared.
    """

    summed: bool = False
    together: str = ""
    state: str = ""
    hidden: str = ""
    carried: bool = False
    data: str = ""
    unsteady: bool = False
    batch_statistics: bool = False
    moved: frozenset[str] = frozenset()
    apart: float = 0.0
    unchecked: bool = False
    notes: tuple[str, ...] = ()

    def __or__(self, other: Findings) -> Findings:
        return Findings(
            summed=self.summed or other.summed,
            together=self.together or other.together,
            state=self.state or other.state,
            hidden=self.hidden or other.hidden,
            carried=self.carried or other.carried,
            data=self.data or other.data,
            unsteady=self.unsteady or other.unsteady,
            batch_statistics=self.batch_statistics or other.batch_statistics,
            moved=self.moved | other.moved,
            apart=max(self.apart, other.apart),
            unchecked=self.unchecked and other.unchecked,
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
        )


def settle(
    config: TrainingConfig, findings: Findings, changed: Iterable[str], devices: int, room: int | None = None
) -> TrainingConfig:
    """``config`` with the unit and the loss's kind as they will be.

    Args:
        findings: of all devices.
        changed: trained parameters that forward or backward themselves change.
        room: samples that each of them may take at a time, as it was set; None: any.

    Raises:
        JobError: the batch can't be cut without changing the result.
    """
    batch = config.batch_size
    moved = sorted(changed)
    if moved:
        raise JobError(
            f"forward or loss itself changes the trained parameter {moved[0]}, and such a change would be lost",
            hint=CHANGES_HINT,
        )
    if findings.hidden.startswith(FIRST):
        cause = f"{findings.hidden}, from its samples or random numbers, and each worker would have its own"
        raise JobError(cause, hint=FIRST_HINT)
    if findings.hidden:
        hint = COPY_HINT if findings.hidden.endswith(COPY) else HIDDEN_HINT
        raise JobError(
            f"{findings.hidden} changes with every call of loss, and each worker would have its own",
            hint=CARRIED_HINT if findings.carried else hint,
        )
    if findings.data:
        raise JobError(
            findings.data,
            hint="let a sample depend on its index and on random numbers of the global generators alone, and have loss"
            " work on a copy (x = x / 255, not x /= 255); what changes in the course of training belongs into a buffer"
            " of the model, which loss reads",
        )
    if findings.unsteady and config.deterministic:
        raise JobError(
            "the loss of the same samples differs from call to call with the same random numbers, so that"
            " deterministic=true can't hold",
            hint="draw from torch's, numpy's or Python's global generators, which are seeded, in place of a generator"
            " of your own, the clock or the system's entropy; or leave deterministic out",
        )
    if findings.state and config.unit < batch:
        raise JobError(findings.state, hint=UNIT_HINT.format(batch=batch))
    if findings.together and not config.unit and config.loss_reduction == "auto":
        raise JobError(
            findings.together,
            hint="return (sum, weight) from loss where it is a mean over something else; or "
            + UNIT_HINT.format(batch=batch),
        )
    reduction = ("sum" if findings.summed else "mean") if config.loss_reduction == "auto" else config.loss_reduction
    unit = config.unit
    if not unit and (findings.batch_statistics or config.deterministic):
        unit = min(units.default_unit(batch, devices), room or batch)
    return dataclasses.replace(config, loss_reduction=reduction, unit=unit)


def is_watched(config: TrainingConfig) -> bool:
    """Whether the loss is looked at in the run, too: not where the user has said what it is."""
    return config.loss_reduction == "auto" and not config.unit and not config.deterministic


def differs(given: TrainingConfig, config: TrainingConfig, findings: Findings) -> str:
    """What the user has to know of ``config``, settled from what was ``given``: it is not what plain torch does."""
    if findings.apart and not config.unit:
        return APART.format(what="the gradient of a batch", apart=findings.apart)
    if given.unit or not findings.batch_statistics or config.unit >= config.batch_size:
        return ""
    return (
        f"batch normalisation sees groups of {config.unit} samples, not the whole batch, so that devices can share it;"
        f" with --set unit={config.batch_size} one device computes it undivided, as in plain torch"
    )


def about(config: TrainingConfig, findings: Findings) -> tuple[str, ...]:
    """What the plan says of the settled ``config``."""
    said = list(findings.notes)
    if findings.unchecked and config.batch_size > 1:
        said.append(
            "what the loss is a mean over was not checked: two samples could not be computed together (the first steps"
            " have one each, or memory is full); loss_reduction says what it is"
        )
    if config.loss_reduction == "sum":
        said.append("the loss adds its samples up: gradients are added up, not averaged")
    if config.unit >= config.batch_size:
        said.append("unit=batch_size: each step's batch is undivided, and one device computes it")
    elif config.unit:
        why = "batch normalisation" if findings.batch_statistics else "all that depends on which samples are together"
        said.append(
            f"unit={config.unit}: {why} sees groups of {config.unit} samples, as in plain torch with gradients"
            " accumulated over them; running statistics are averaged by samples"
        )
    if config.deterministic:
        said.append("deterministic: each unit's gradient travels by itself, and they are added up in order")
    return tuple(said)


def kinds_apart(config: TrainingConfig, devices: Iterable[str]) -> str:
    """What there is to say where ``deterministic`` holds for each device, but not for all of them; "": nothing."""
    kinds = sorted({device.partition(":")[0] for device in devices})
    if not config.deterministic or len(kinds) < 2:
        return ""
    return (
        f"deterministic=true gives the same bits on devices of one kind; {' and '.join(kinds)} round and draw random"
        " numbers each in its own way: other shares, or a lost worker, give other weights"
    )
