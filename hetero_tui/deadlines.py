"""How long the laptop waits for anything, in seconds: every wait has a deadline, and it is written here once."""

from __future__ import annotations

from collections.abc import Iterator

CONNECT = 10.0
"""TCP connection, key exchange and login of one SSH connection."""

KEEPALIVE_INTERVAL = 5.0
"""Silence on an SSH connection after which a keepalive is sent."""

KEEPALIVE_COUNT = 3
"""Unanswered keepalives after which an SSH connection counts as lost."""

PROBE = 15.0
"""The whole probe of one host, connection included: ``probe`` ends no later than this plus a second."""

PROBE_ON_HOST = 8.0
"""What the probe allows itself on the host; less than :data:`PROBE` so that its own word arrives."""

COMMAND = 20.0
"""A short command of ours on a host."""

SHIP_AGENT = 60.0
"""Sending the agent's files (tens of kilobytes, over a slow link)."""

SHIP_JOB = 300.0
"""Sending a job's files (64 MiB at most, over a slow link)."""

NODE_START = 130.0
"""From the order to start Ray on a host until it has joined; the agent there gives up sooner, and says why."""

NODE_STOP = 45.0
"""Stopping Ray and all runs on one host; ends with SIGKILL well before."""

RUN_START = 30.0
"""From the order to start a run until its events file exists."""

RUN_STOP = 60.0
"""From the order to stop a run until its last event: a step, and a checkpoint."""

SILENCE = 20.0
"""A followed stream that sends neither data nor heartbeat for so long is broken and opened again."""

RECONNECT_FIRST = 0.5
"""First pause before a lost connection is opened again; it doubles up to :data:`RECONNECT_LONGEST`."""

RECONNECT_LONGEST = 10.0
"""Longest pause between two attempts to reach a host again."""

LAST_LINES = 1.0
"""From the end of a run whose logs are followed until the other hosts' last lines must be here."""

HEAD_LOOK_EVERY = 1.0
"""Pause between two looks at whether the head of a run that is followed answers."""

HEAD_ANSWER = 3.0
"""A head that does not answer for so long is asked after: the other hosts are asked whether they reach it."""

WITNESS = 6.0
"""Until another host must have said whether it reaches the head; more than the attempt itself takes there."""

HEAD_LOST_AFTER = 6.0
"""A head that neither laptop nor other hosts have reached for so long is lost. A shorter break of its cable heals."""

STEP_ASIDE = 45.0
"""So long a laptop that did not start the cluster leaves it to the one that did to form it anew without its head."""

FORM_ANEW = NODE_START + RUN_START
"""How long another laptop that has begun to form the cluster anew may take until the run goes on there."""

LOCK_POLL = 0.2
"""Between two looks whether another command of this laptop is done with the cluster."""

CLOSE = 5.0
"""Closing a connection in good order before it is simply dropped."""

COMMAND_END = 0.5
"""From asking a command to end (SIGTERM) until it is killed; added to a command's deadline, so it stays short."""


def reconnect_pauses() -> Iterator[float]:
    """Seconds to wait before each further attempt to reach a host: doubling, up to the longest pause, for ever."""
    pause = RECONNECT_FIRST
    while True:
        yield pause
        pause = min(pause * 2, RECONNECT_LONGEST)
