"""Where a worker finds the shards, and what it must know to join them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote_agent.training.shared.dataplane import StreamPlan
from remote_agent.training.wire.agreement import Codecs
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.shared_memory.messages import available


@dataclass(frozen=True, kw_only=True)
class ShardEndpoint:
    """Where a shard can be reached.

    Attributes:
        address: (host, port) of its :class:`~remote_agent.training.server.shard_server.ShardServer`.
        place: of its process, see :func:`place`.
        memory: of its ``SharedMemoryServer``; empty: it has none.
    """

    address: tuple[str, int]
    place: str
    memory: str = ""


@dataclass(frozen=True, kw_only=True)
class StreamInfo:
    """What a worker must know to join the shards.

    Attributes:
        plan: what is streamed.
        layout: how it is cut.
        shards: the endpoints, in the layout's order.
        secret: what both ends must know; a worker with an earlier one is refused.
        codecs: for the network.
    """

    plan: StreamPlan
    layout: Layout
    shards: tuple[ShardEndpoint, ...]
    secret: bytes
    codecs: Codecs


def place() -> str:
    """Names this process's computer and network name space: equal for two processes that no network lies between."""
    if not available():
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
