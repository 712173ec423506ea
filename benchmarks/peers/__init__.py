"""The others: what people use today to train one model on several computers, each on the task that ours is measured on.

A peer is a script that runs once on every host, as ``python -m benchmarks.peers.NAME SETTINGS`` with
:class:`~benchmarks.peers.task.Settings` as JSON. :data:`PEERS` says what each one is, and its settings in words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One row of a comparison.

    Attributes:
        name: as on the command line and in the tables.
        module: the script, in this package.
        variant: which of the script's ways.
        about: its settings, in words for the table; ``{h}`` stands for the inner steps of a round, ``{b}`` for the
            samples of one of its steps on one host.
        package: what must be installed beside torch; see :mod:`benchmarks.peers.environment`.
        hosts: how many of the hosts it uses; None means all.
        local: whether it makes steps of its own, so that their size is free (``Plan.local_batch``).
        long_rounds: whether a round keeps its samples when its steps become smaller: hivemind needs seconds to find
            partners, and stands still when its rounds are shorter than that.
    """

    name: str
    module: str
    variant: str
    about: str
    package: str = ""
    hosts: int | None = None
    local: bool = False
    long_rounds: bool = False


PEERS = (
    Peer(
        name="single", module="single", variant="", about="one process on the fastest host, {b} samples a step", hosts=1
    ),
    Peer(
        name="single-local",
        module="single",
        variant="",
        about="one process on the fastest host, {b} samples a step, as the local steps of the others",
        hosts=1,
        local=True,
    ),
    Peer(name="ddp", module="ddp", variant="fp32", about="torch DDP over gloo, {b} samples a host, fp32"),
    Peer(
        name="ddp-bf16",
        module="ddp",
        variant="bf16",
        about="the same with gradients as bf16 on the wire (a hook of our own: torch's refuses gloo)",
    ),
    Peer(
        name="naive",
        module="naive",
        variant="",
        about="parameter server as commonly written: dicts of tensors, by value, through one driver; even split, fp32",
    ),
    Peer(
        name="torchft-localsgd",
        module="torchft_rounds",
        variant="localsgd",
        about="torchft 0.2.0 LocalSGD, {b} samples a step and host, fp32, parameters averaged every {h} steps",
        package="torchft",
        local=True,
    ),
    Peer(
        name="torchft-diloco",
        module="torchft_rounds",
        variant="diloco",
        about="torchft 0.2.0 DiLoCo, {b} samples a step and host, fp32, outer Nesterov 0.7/0.9 every {h} steps",
        package="torchft",
        local=True,
    ),
    Peer(
        name="hivemind",
        module="hivemind_rounds",
        variant="",
        about="hivemind 1.1.12 local updates, {b} samples a step and host, fp16, averaged in the background every {h}"
        " steps of all",
        package="hivemind",
        local=True,
        long_rounds=True,
    ),
)
"""All peers, in the order of the tables."""
