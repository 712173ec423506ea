"""Defines what is streamed, the shards' addresses, and the data that a worker needs to join them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from remote_agent.training.shared.dataplane import StreamPlan
from remote_agent.training.wire.codecs import Codecs
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.shared_memory.memory import available


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The streamed parameters and their cut, which stay the same if a shard moves to another host.

    Attributes:
        codecs: the codecs for the network.
        memory: workers may use shared memory for a shard on their computer.
        relay_hosts: hosts with several devices whose shard relays for the workers there.
    """

    plan: StreamPlan
    layout: Layout
    codecs: Codecs
    memory: bool
    relay_hosts: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ShardEndpoint:
    """The addresses of a shard.

    Attributes:
        address: (host, port) of its :class:`~remote_agent.training.server.shard_server.ShardServer`.
        place: the place of its process, see :func:`place`.
        memory: address of its ``SharedMemoryServer``; empty: it has none.
    """

    address: tuple[str, int]
    place: str
    memory: str = ""


@dataclass(frozen=True, kw_only=True)
class StreamInfo:
    """The data that a worker needs to join the shards.

    Attributes:
        shards: the endpoints, in the layout's order.
        secret: the secret of both ends; a worker with an earlier one is refused.
        relays: hosts whose workers connect through a relay on the host, with its address.
        relay: the address of this worker's relay; None: it connects to the shards itself.
    """

    plan: StreamPlan
    layout: Layout
    shards: tuple[ShardEndpoint, ...]
    secret: bytes
    codecs: Codecs
    relays: tuple[tuple[str, tuple[str, int]], ...] = ()
    relay: tuple[str, int] | None = None

    def of(self, host: str) -> StreamInfo:
        """What a worker on ``host`` must know."""
        return dataclasses.replace(self, relay=dict(self.relays).get(host))

    def peer(self, host: str) -> str:
        """The relay of a host; empty: it has none."""
        return host if host in dict(self.relays) else ""


def place() -> str:
    """The name of this process's computer and network name space; equal for two processes without a network between."""
    if not available():
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
