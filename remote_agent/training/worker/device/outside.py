"""Looks for what the code changes outside of the model's state: each worker has its own of that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from remote_agent.training.shared.findings import COPY, Findings
from remote_agent.training.shared.slices import Indices
from remote_agent.training.worker.device import batches, held_values
from remote_agent.training.worker.device.comparing import Seen, is_same
from remote_agent.training.worker.device.first_call import Held, set_by_first
from remote_agent.training.worker.device.trained import refuse_own_backward
from remote_agent.training.worker.device.watching import STATE_HINT

TOGETHER = (
    "the loss of a batch is not the mean of its parts' losses: it depends on which samples are together (contrastive?"
    " a std() or norm() over the batch? padded without a mask? time in the first dimension? outputs (n, 1) beside"
    " targets (n)? loss and a figure, which count as (sum, weight)?), or it is a mean over something else than samples"
)
OF_TRAINING = (
    "the loss of a batch is the mean of its parts' losses in evaluation mode, and not in training mode: a term or a"
    " layer of training alone depends on which samples are together (a balance of experts over the batch?)"
)
MOVED = (
    "; forward or loss changes {name}, which is not trained: where the loss uses what a batch makes of it, parts differ"
)
RANDOM = "the loss or the data is random: what the loss is a mean over was checked on average only"
WRITTEN = (
    "loss writes {name}, of which each worker has a copy: samplers, callbacks and evaluate do not see it; return what"
    " is only shown beside the loss"
)
KEPT = (
    "loss changes {name}, on each worker by itself: what is shown of it is of one worker's samples, and no loss may go"
    ' by it; of all samples it is with return loss, {{"name": value}}; a count that loss goes by belongs into a buffer'
)
GROWN = (
    "{name} grows with every call of loss, on each worker by itself: if loss goes by it (a warm-up, a phase), count in"
    " a buffer of the model instead (register_buffer), which is the same on all workers"
)
DIFFERS = f"the loss of the same samples differs from call to call with the same random numbers: {STATE_HINT}"
UNSTEADY = (
    "the loss of the same samples differs from call to call with the same random numbers, and what it is a mean over"
    f" was checked on average only: {STATE_HINT}"
)
BACKWARD = (
    "the gradient of a batch is not the sum of its parts' gradients, though its loss is: backward depends on which"
    " samples are together (a gradient that is divided by its norm?)"
)


def look(
    owner: object,
    model: nn.Module,
    computer: batches.Fetches,
    indices: Indices,
    made: Held | None,
    see: Callable[[int, int, int], Seen],
) -> tuple[Seen, Seen, Findings]:
    """Compute the loss of some samples several times.

    Args:
        owner: the job's object.
        model: without gradients.
        computer: fetches the samples.
        indices: of the samples.
        made: what model and job held before the first call of the loss; None: not known.
        see: gives the loss from one of the samples to another, with random numbers of a seed, from the same state.

    Returns:
        The loss of all samples, the same with other random numbers, and what was found.

    Raises:
        JobError: the loss itself calls ``backward``.
    """
    count = len(indices)
    first = held_values.reached(owner, model)
    taken = batches.taken(computer, indices)
    one = see(0, count, 1)
    refuse_own_backward(model)
    data, others = batches.unlike(computer, indices, taken)
    said: tuple[str, ...] = (others,) if others else ()
    kept = held_values.reached(owner, model)
    other = see(0, count, 2)
    hidden = held_values.changed(kept, held_values.reached(owner, model))
    unsteady = not is_same(one, see(0, count, 1))
    shown = False
    if hidden:  # what the same samples and random numbers give again (features that are kept) is no state
        now = held_values.reached(owner, model)
        grown, hidden = hidden, held_values.changed(kept, now, lengths=unsteady)
        shown = bool(hidden) and not unsteady and held_values.are_figures(kept, now)
        if shown:
            said += (KEPT.format(name=hidden),)
            hidden = ""
        elif not hidden and grown.startswith("len("):  # it is a length alone
            said += (GROWN.format(name=grown),)
    if unsteady and not hidden and not others:  # an iterator over other data, which the loss goes on with
        hidden = next((path for path, value in kept.items() if value == held_values.ITERATOR), "")
    if not hidden and not shown and (written := held_values.changed(first, kept, lengths=False)):
        is_table = unsteady and not others  # of features, which the loss reads before it writes them
        if is_table or held_values.is_elsewhere(kept.get(written)):
            hidden = written
        elif written.startswith("self."):
            said += (WRITTEN.format(name=written),)
    if made is not None and not (hidden or data or others or unsteady):
        whole, part = partial(see, 0, count, 1), partial(see, count // 2, count, 2)
        hidden = set_by_first(owner, model, made, whole, part)
    found = Findings(
        hidden=hidden + (COPY if held_values.is_elsewhere(kept.get(hidden)) else ""),
        carried=held_values.has_rows(kept.get(hidden), count),
        data=data,
        unsteady=unsteady,
        notes=said,
    )
    return one, other, found
