"""The data plane between a worker and a shard on one computer: shared memory, without a copy through a socket.

::

    worker 1 ── gradient 1 ──┐                    ┌── weights of even steps ──▸ all workers' parameters
    worker 2 ── gradient 2 ──┴▸ sums, optimizer ──┴── weights of odd steps ───▸ are views into one or the other

Gradients are in memory that the worker made, weights in memory that the shard made (``memory``). The other process gets
each as a file descriptor. The memory has no name, so nothing is left behind however a process ends. The socket
(``client``, ``server.shared_memory_server``) carries messages of a few bytes: a slice's gradient is ready, a step's
weights are complete (``messages``).

The socket has an abstract name, which exists in one network name space only, and the kernel tells the user at the other
end. So only processes of one user on one computer and in one network name space connect here; all others use the
network. Linux only.
"""
