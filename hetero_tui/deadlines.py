"""Defines the deadlines of waits on the laptop, in seconds."""

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

VANISHED = 10
"""What is sent input ends on the host by itself so long after its deadline: where a laptop has lost its power, nothing
else tells the host of that for two hours."""

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

EXPORT = 900.0
"""Making files of a checkpoint on the head: a large model is read, changed and written."""

DESCRIBE = 300.0
"""Importing a job's file on the head, with all that it imports, and its archive's way there."""

MEASURE = 300.0
"""For a plan, until devices and links are measured: the first import of torch on slow disks takes most of it."""

RUN_STOP = 60.0
"""From the order to stop a run until its last event: a step, and a checkpoint."""

RAYS_COMMAND = 300.0
"""A command of Ray's own that prints nothing for so long is given up: some wait for the head for a minute and more."""

SILENCE = 20.0
"""A followed stream that sends neither data nor heartbeat for so long is broken and opened again."""

STALE = 6.0
"""Seconds after which a host's last sample is old; samples come about once a second."""

SIGN_OF_LIFE = 15.0
"""Between two signs of life to what prints lines for this laptop on a host; it ends after 60 s without one."""

RECONNECT_FIRST = 0.5
"""First pause before a lost connection is opened again; it doubles up to :data:`RECONNECT_LONGEST`."""

RECONNECT_LONGEST = 10.0
"""Longest pause between two attempts to reach a host again."""

LAST_LINES = 1.0
"""From the end of a run whose logs are followed until the other hosts' last lines must be here."""

LAST_EVENT = 3.0
"""From the end of a teardown until the last event of a run that it ended must be here."""

AGENT_LOOK = 2.0
"""Between two looks whether a host has our agent by now, which another laptop has sent."""

RUN_RESUMED = 15.0
"""A coordinator that is there so long after its run's last event is one that lets the run go on."""

HEAD_LOOK_EVERY = 1.0
"""Pause between two looks at whether the head of a run that is followed answers."""

HEAD_ASKED_AFTER = 1.0
"""A head that does not answer for so long is asked after: the other hosts are asked whether they reach it ..."""

HEAD_ANSWER = 3.0
"""... while it has so long to answer."""

WITNESS = 6.0
"""Until another host must have said whether it reaches the head; more than the attempt itself takes there."""

HEAD_LOST_AFTER = 4.0
"""A head that neither laptop nor other hosts have reached for so long is lost. A shorter break of its cable heals.

One look takes so long: the others try for three of these seconds."""

HOLD_READY = 8.0
"""A host that is not connected and ready to be held by then is left out: other commands meet on the others. Less than
:data:`CONNECT`, so that what follows joins the same attempt to connect."""

HOLD_BEAT, HOLD_SILENCE = 5.0, 20.0
"""Between two signs of life to the hosts that are held, and the silence after which they let go by themselves."""

HOLD_WAIT = 2 * NODE_START + NODE_STOP
"""How long a command waits for those of other laptops that change the same cluster."""

REACH_ATTEMPT = 3.0
"""One connection from host to host; without an answer in this time a firewall is dropping the packets."""

MESH_REACH_ATTEMPT = 12.0
"""The same through WireGuard, which says again that it is there after 5 s, and after 10, where its packet got lost."""

REACH_TRANSFER = 1.0
"""So long each host sends to another one, for the speed of their links."""

REACH = 20.0
"""All of these, from all hosts at once."""

MESH = 30.0
"""Looking at, or bringing up, one host's end of the cluster's WireGuard network: a few commands of 5 s at most."""

FIND_PYTHONS = 60.0
"""Until a host has said which Pythons it has: uv asks each of them, and a first start of one takes a while."""

FETCH_SILENCE = 300.0
"""Collecting wheels on the laptop (gigabytes, for CUDA) is given up if nothing more has arrived for so long."""

SEND_PIECE = 120.0
"""Sending a piece of a large file to a host: 64 KiB at least, more over a faster link."""

INSTALL_SILENCE = 60.0
"""An installation on a host says how it stands every 2 s; after such a silence it counts as lost."""

VERIFY = 180.0
"""Importing torch and Ray for the first time and using each device, on the slowest of machines."""

PURGE = 300.0
"""Removing an environment: tens of thousands of files, on the slowest of disks."""

CLOSE = 5.0
"""Closing a connection in good order before it is simply dropped."""

APP_QUIT = 10.0
"""From closing a page in the browser until its app has quit; then it is killed."""

COMMAND_END = 0.5
"""From asking a command to end (SIGTERM) until it is killed; added to a command's deadline, so it stays short."""


def reconnect_pauses() -> Iterator[float]:
    """Seconds to wait before each further attempt to reach a host: doubling, up to the longest pause, for ever."""
    pause = RECONNECT_FIRST
    while True:
        yield pause
        pause = min(pause * 2, RECONNECT_LONGEST)
