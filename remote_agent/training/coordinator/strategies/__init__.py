"""How the workers train together; each strategy is one file behind one small interface (``base.Strategy``).

A strategy waits for its workers through ``driver``, which finds out which of them fail.

Which there are, and what each needs, is in the table :mod:`remote_agent.strategies`. ``sync`` is ``streamed`` wherever
``dataplane`` allows it, else ``allreduce``, which gives the same weights (``transfer.suited``). ``ssp`` and ``async``
are both ``stale``, with and without a bound.
"""
