"""What is said of a loss whose parts do not give what the whole gives, or of which that is not sure."""

from __future__ import annotations

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
