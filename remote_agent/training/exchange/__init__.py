"""The data plane of the sharded parameter server: gradients in, new weights out, over plain TCP, both ways at once.

::

    worker 1 ──┐ gradient chunks ▸   ┌── shard A: chunks 0, 3, 6, ...
    worker 2 ──┼─────────────────────┼── shard B: chunks 1, 4, 7, ...
    worker 3 ──┘   ◂ weight chunks   └── shard C: chunks 2, 5, 8, ...

One flat float32 buffer is cut into chunks (``layout``). Each worker has one connection to each shard (``link``,
``client``); each shard adds a chunk's gradient sums as they stream in, counting each (step, slice, chunk) once
(``sums``), makes the optimizer's step on the chunk as soon as its last slice is in (``update``, ``shard``), and streams
it back to everybody (``outbox``, ``server``). Nothing waits for a whole step, so every link is busy in both directions
from the first chunk to the last.

Where no worker is to wait for another, ``stale_shard``, ``stale_server`` and ``stale_client`` take the place of their
synchronous counterparts: a slice's gradient is applied as it arrives, and answered with fresh weights. A ``service`` is
what both kinds of shard are on the network.

The bytes are described in ``frames``, who may connect in ``handshake``. Needs torch, not Ray: a shard runs in any
process.
"""

from remote_agent.training.exchange.agreement import EXACT, Codecs
from remote_agent.training.exchange.client import ExchangeClient
from remote_agent.training.exchange.errors import ExchangeError
from remote_agent.training.exchange.exchanging import Exchanging
from remote_agent.training.exchange.layout import Layout, plan_layout
from remote_agent.training.exchange.server import ShardServer
from remote_agent.training.exchange.shard import Shard, ShardState
from remote_agent.training.exchange.stale_client import StaleClient
from remote_agent.training.exchange.stale_server import StaleServer
from remote_agent.training.exchange.stale_shard import StaleShard
from remote_agent.training.exchange.steps import Contribution, NewWeights, Timings
from remote_agent.training.exchange.update import OptimizerUpdate, Update

__all__ = [
    "EXACT",
    "Codecs",
    "Contribution",
    "ExchangeClient",
    "ExchangeError",
    "Exchanging",
    "Layout",
    "NewWeights",
    "OptimizerUpdate",
    "Shard",
    "ShardServer",
    "ShardState",
    "StaleClient",
    "StaleServer",
    "StaleShard",
    "Timings",
    "Update",
    "plan_layout",
]
