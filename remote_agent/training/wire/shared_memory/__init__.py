"""The data plane between a worker and a shard on one computer: shared memory, no copy through a socket.

::

    worker 1 ── gradient 1 ──┐                    ┌── weights of even steps ──▸ all workers' parameters
    worker 2 ── gradient 2 ──┴▸ sums, optimizer ──┴── weights of odd steps ───▸ are views into one or the other

Gradients lie in memory that the worker made, weights in memory that the shard made (``memory``); each is handed to the
other process as a file descriptor and has no name, so nothing is left behind however a process ends. Over the socket
(``client``, ``server.shared_memory_server``) go messages of a few bytes: a slice's gradient is there, a step's weights
are whole (``messages``).

The socket's name is an abstract one, which exists within one network name space only, and the kernel says which
user is at its other end. So only processes of one user on one computer, between which there is no network, can meet
here; all others use the network. Linux only.
"""
