"""Defines the deadlines of waits of the exchange, in seconds."""

from __future__ import annotations

CONNECT_S = 5.0
"""One attempt to connect to a shard, the handshake included."""

JOIN_S = 20.0
"""For a process on the same, busy computer to answer over shared memory."""

HANDSHAKE_S = 5.0
"""Until a new connection to a shard must have proved that it knows the token."""

FRAME_S = 60.0
"""The longest time without progress of a frame that has begun, in either direction."""

SILENCE_S = 10.0
"""Until a host counts as gone whose kernel does not acknowledge bytes or keepalives."""

RECONNECT_S = 20.0
"""From a broken connection until a client gives up a shard."""

RECONNECT_PAUSE_S = 0.05
"""Before the second attempt to connect; doubled for each further one."""

RECONNECT_PAUSE_MOST_S = 1.0
"""The longest pause between two attempts."""

STEP_S = 600.0
"""Default deadline of a step's exchange; the trainer passes its own."""

FETCH_S = 300.0
"""Default deadline of fetching the whole weights."""

CLOSE_S = 5.0
"""For a thread to end once its connection is closed."""

ACCEPT_PAUSE_S = 0.05
"""Pause before the next accept after an accept failed."""
