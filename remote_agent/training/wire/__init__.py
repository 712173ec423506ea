"""The data plane of the sharded parameter server: gradients in, new weights out, over plain TCP, both ways at once.

::

    worker 1 ──┐ gradient chunks ▸   ┌── shard A: chunks 0, 3, 6, ...
    worker 2 ──┼─────────────────────┼── shard B: chunks 1, 4, 7, ...
    worker 3 ──┘   ◂ weight chunks   └── shard C: chunks 2, 5, 8, ...

One flat float32 buffer is cut into chunks (``layout``). Each worker has one connection to each shard (``link``,
``client``); each shard adds a chunk's gradient sums as they stream in, counting each (step, slice, chunk) once
(``server.sums``), makes the optimizer's step on the chunk as soon as its last slice is in (``server.update``,
``server.shard``), and streams it back to all workers (``outbox``, ``server.shard_server``). Nothing waits for a whole
step, so every link is busy in both directions from the first chunk to the last.

Where no worker is to wait for another, ``server.stale_shard``, ``server.stale_server`` and ``stale_client`` take the
place of their synchronous counterparts: a slice's gradient is applied as it arrives, and answered with fresh weights. A
``server.service`` is what both kinds of shard are on the network.

The bytes are described in ``frames``, authentication in ``handshake``. Needs torch, not Ray: a shard runs in any
process.
"""
