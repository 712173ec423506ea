"""The data plane of the sharded parameter server: sends gradients and new weights over TCP, full duplex.

::

    worker 1 ──┐ gradient chunks ▸   ┌── shard A: chunks 0, 3, 6, ...
    worker 2 ──┼─────────────────────┼── shard B: chunks 1, 4, 7, ...
    worker 3 ──┘   ◂ weight chunks   └── shard C: chunks 2, 5, 8, ...

One flat float32 buffer is cut into chunks (``layout``). Each worker has one connection to each shard (``link``,
``client``). A shard adds a chunk's gradient sums as they arrive, and counts each (step, slice, chunk) once
(``server.sums``). It makes the optimizer's step for a chunk as soon as the chunk's last slice has arrived
(``server.update``, ``server.shard``), and streams the chunk to all workers (``outbox``, ``server.shard_server``). No
chunk waits for a whole step, so every link is busy in both directions from the first chunk to the last.

``frames`` describes the bytes, ``handshake`` the authentication. This package needs torch, but not Ray: a shard runs in
any process.
"""
