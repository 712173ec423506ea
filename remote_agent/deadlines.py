"""Defines the deadlines of waits of the agent, in seconds."""

from __future__ import annotations

POLL_SECONDS = 0.05
"""Between two looks at a process that is to start or end."""

EXEC_SECONDS = 2.0
"""A process that becomes a program has no environment to look at; longer than a slow disk needs to bring it in."""

EXEC_POLL_SECONDS = 0.001
"""Between two looks at one; it takes less than a millisecond as a rule."""

LAUNCH_SECONDS = 20.0
"""From starting a program until it runs and its record is written; a small busy machine needs seconds for a Python."""

CONNECT_SECONDS = 3.0
"""One attempt to connect to the head; without an answer in this time a firewall is dropping the packets."""

HEAD_POLL_SECONDS = 0.25
"""Between two attempts."""

HEAD_POLL_LONGEST_SECONDS = 1.0
"""Between two attempts when the head has been away for long; the pause doubles from :data:`HEAD_POLL_SECONDS`."""

WATCH_SECONDS = 2.0
"""Between two looks of the supervisor at a Ray that runs and at the head's port. On Linux Ray's end is seen at once."""

STOPPED_LOOKS = 4
"""Ray's manager on this machine is ended after so many such looks in a row that find it stopped: the head has declared
the machine dead by then, for good."""

CUT_OFF_SECONDS = 10.0
"""Without an answer from the head's port for so long, this machine has left the cluster: the head declares a silent
machine dead within 6 s, for good. Its Ray is ended then, so that the next one can start once the head answers. On the
head the same shows that Ray's control store hangs, and no other machine is in the cluster then."""

CLUSTER_GONE_SECONDS = 3600.0
"""Without an answer from the head for so long, the cluster is gone: this machine takes away what it has of it. The next
`up` has it join again."""

RESTART_FIRST_SECONDS = 1.0
"""Pause before the second attempt in a row to start Ray; it doubles up to :data:`RESTART_LONGEST_SECONDS`."""

RESTART_LONGEST_SECONDS = 10.0
"""Longest pause between two attempts to start Ray."""

STABLE_SECONDS = 30.0
"""Ray that ran for so long has recovered: when it ends, the pauses begin anew."""

STOP_SECONDS = 10.0
"""From SIGTERM to SIGKILL, for one process of ours."""

KILL_SECONDS = 5.0
"""From SIGKILL until the kernel has ended the process. Longer means that it hangs in a driver."""

OLDER_STOP_SECONDS = 0.5
"""From SIGTERM to SIGKILL, for what a machine has of a cluster that was replaced: nothing waits for what it does."""

STRAY_STOP_SECONDS = 2.0
"""From SIGTERM to SIGKILL, for what is left of ours once Ray and the runs have been stopped."""

SUPERVISOR_STOP_SECONDS = STOP_SECONDS + STRAY_STOP_SECONDS + CONNECT_SECONDS
"""The supervisor's time, from SIGTERM, to end Ray and what Ray started; it may be looking for the head just then."""

RUN_STOP_SECONDS = 10.0
"""A run's time to save its checkpoint after SIGTERM, unless the caller says otherwise."""

HEAD_REACHABLE_SECONDS = 45.0
"""How long a worker waits for the head's port: both start at the same time, and the head has to come first."""

JOIN_SECONDS = 60.0
"""From starting Ray until this machine is a node of the cluster."""

LOCK_SECONDS = HEAD_REACHABLE_SECONDS + JOIN_SECONDS + LAUNCH_SECONDS
"""How long ``start`` and ``stop`` wait for another one on this machine. A waiting ``stop`` ends a ``start`` at once."""

MESH_COMMAND_SECONDS = 5.0
"""One ``ip`` or ``wg``: the first may load the kernel's module."""

MESH_END_SECONDS = 5.0
"""From removing the interface of our WireGuard network until ``wireguard-go``, where that drove it, has ended."""

DELAY_SECONDS = 1.0
"""A round trip to the head that takes longer is not shown: the host's samples wait for it."""

DELAY_EVERY_SECONDS = 5.0
"""Between two measurements of it."""

FILE_APPEARS_SECONDS = 30.0
"""How long ``follow`` waits for a file that no known process is about to create."""

PROCESS_BEGINS_SECONDS = 300.0
"""How long ``follow`` waits for the file of a process that lives: a busy computer takes a minute to load torch."""

FOLLOW_POLL_SECONDS = 0.1
"""Between two looks at a followed file for new lines."""

HEARTBEAT_SECONDS = 5.0
"""Silence after which ``follow`` prints an empty line, so that both ends notice a dead connection."""

READER_SILENCE_SECONDS = 60.0
"""Without a sign of life from the laptop for so long, what prints lines for it ends: its connection is dead."""

VENDOR_COMMAND_SECONDS = 2.0
"""A vendor's program that reads live use."""

REQUEST_SECONDS = 60.0
"""A client of ``serve`` that is silent for so long has gone."""

SWEEP_POLL_SECONDS = 0.25
"""Between two looks of a sweep at the figures of its trials; a trial's end is seen at once."""

SEAT_PAUSE_SECONDS = 10.0
"""A device whose trial was lost with its host gets the next one so much later; it doubles with each that is lost, up to
:data:`SEAT_LONGEST_SECONDS`."""

SEAT_LONGEST_SECONDS = 300.0
"""Longest pause of such a device."""
