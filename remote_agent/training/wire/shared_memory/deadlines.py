"""Every wait of a shared-memory channel has one of these deadlines, in seconds."""

from __future__ import annotations

JOIN_S = 20.0
"""For a process on the same, busy computer to answer."""

CLOSE_S = 5.0
"""For a thread to end once its connection is closed."""

ACCEPT_PAUSE_S = 0.05
"""Until a connection is accepted again after that failed."""
