"""The strategies: how the workers train together. Each is one file, behind one small interface (``base.Strategy``).

A strategy waits for its workers through ``driver``, which detects failed workers.

The table :mod:`remote_agent.strategies` lists the strategies and their needs. ``sync`` is ``streamed`` if ``dataplane``
allows it, else ``allreduce``, which gives the same weights (``transfer.suited``).
"""
