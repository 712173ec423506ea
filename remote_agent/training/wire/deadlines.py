"""Every wait of the exchange has one of these deadlines, in seconds."""

from __future__ import annotations

CONNECT_S = 5.0
"""One attempt to connect to a shard, the handshake included."""

JOIN_S = 20.0
"""For a process on the same, busy computer to answer over shared memory."""

HANDSHAKE_S = 5.0
"""A shard's patience with a new connection until it has proved that it knows the token."""

FRAME_S = 60.0
"""The longest that a frame may make no progress, on its way in or out, once it has begun."""

SILENCE_S = 10.0
"""Bytes sent and not acknowledged, or keepalive unanswered, for this long: the other host is gone."""

RECONNECT_S = 20.0
"""From a broken connection until a client gives the shard up."""

RECONNECT_PAUSE_S = 0.05
"""Before the second attempt to connect; doubled for each further one."""

RECONNECT_PAUSE_MOST_S = 1.0
"""The longest pause between two attempts."""

STEP_S = 600.0
"""Default for how long a step's exchange may take; the trainer passes its own."""

FETCH_S = 300.0
"""Default for how long fetching the whole weights may take."""

CLOSE_S = 5.0
"""For a thread to end once its connection is closed."""

ACCEPT_PAUSE_S = 0.05
"""Until a connection is accepted again after that failed."""
