"""Defines the deadlines of waits of the engine, in seconds."""

from __future__ import annotations

CONNECT_S = 30.0
"""Until Ray's head must have answered the coordinator."""

PLACEMENT_S = 90.0
"""Until an actor must run on its host; the first import of torch on a slow disk can take most of a minute."""

OPEN_S = 180.0
"""Until a worker has fetched job and data and built the model on its device, or must have answered a ping."""

LOAD_S = 3600.0
"""The same while it answers pings: weights may have to be downloaded, and data to come through a slow link."""

MEASURE_S = 120.0
"""Until a worker that is measured must have begun another call of the user's code (lazy initialisation and kernel
compilation included). A slow device needs longer in all."""

SERVER_S = 120.0
"""Until the server must have applied a step, beyond what the transfer of the gradients took so far."""

DATA_S = 300.0
"""Until data that is read from its beginning must have given the next sample."""

TRANSFER_S = 300.0
"""Until weights or the initial state must have reached the coordinator."""

SLICE_FACTOR = 10.0
"""A slice is given up after ``slice_deadline_s`` plus this many times what its worker's slices took so far: see
:func:`given_up_after`."""

PRINTS_S = 0.5
"""Between two looks at what the workers have printed."""

LAST_PRINTS_S = 1.0
"""Until a worker must have said, at the end, what it printed last."""

LAST_CALL_S = 15.0
"""Until a host must have said what a worker was at that died there."""

BUSY_S = 2.0
"""A call of the user's code that takes so long is reported with a worker's answers to pings."""

CLOSE_S = 5.0
"""Until an actor that is released must have got the call that ends it."""

HISTORY_EVERY_S = 1.0
"""Between two looks for what is new in a run's history, to copy it to the other hosts."""

HISTORY_S = 15.0
"""Until another host must have what was sent of a run's history; then its copy begins anew."""

HISTORY_AGAIN_S = 10.0
"""Pause before a copy of a run's history that failed begins anew."""

CHECKPOINT_END_S = 20.0
"""Until the run's last checkpoint must be on other hosts; the run's end does not wait longer for that."""

HISTORY_END_S = 2.0
"""Until the other hosts must have a run's last event; the run's end does not wait longer for that."""

SLOW_DISK_S = 2.0
"""Until a checkpoint must be on the disk when the next one is due; else training goes on without the next one."""

PING_S = 10.0
"""Until a living actor must answer when something is wrong elsewhere."""

HEARTBEAT_S = 5.0
"""Until a worker must say that it lives, where it could not come back: while its slice is due, or overdue."""

PULSE_S = 0.3
"""Between two pings of the heartbeat."""

SILENT_S = 1.5
SILENT_SOONEST_S = 0.8
SILENT_FACTOR = 4.0
"""A process that has not answered a ping for so long is silent: its host may be cut off. The first is the most; one
whose answers come sooner is silent after this many times the longest wait for one, and no sooner than the second."""

ORPHAN_S = 600.0
"""Until a coordinator must have been heard again by the actors of one that was killed; then they end."""

UNHEARD_S = 3600.0
"""The same until the first word after an actor was opened."""

ACCOUNT_S = 5.0
"""Until the actors of a killed coordinator must have reported their state to its successor."""

LAST_SILENT_S = 15.0
"""Until the last worker, with which the weights would go, is lost for its silence: code may hold Python's lock."""

SERVER_SILENT_S = 3.0
"""Until a shard's process that is silent, and no worker on its host with it, is lost: its copy is gone back to."""

HANGS_S = 60.0
"""A worker's process that is silent for so long hangs, if its host's node lives: it is started again."""

LOOK_S = 0.1
"""Between two checks of the heartbeat and of the workers that are away, while a step is waited for."""

LATE_FACTOR = 2.0
LATE_S = 2.0
"""A slice is late after this many times its expected seconds plus these, and another worker gets it as well: see
:func:`late_after`."""

HUNG_DEADLINES = 5
"""A worker is taken to hang when its slice has taken this many of these deadlines."""

ALONE_S = 60.0
"""Until a worker must be back when none is left that could go on."""

FOLLOW_S = 0.05
"""Until a worker that only follows looks whether it is to take part again."""

JOINING_S = 3.0
"""Until the other hosts must have joined a new head; one that takes longer takes part later, and is measured alone."""

NODES_S = 1.0
"""Between two looks at which hosts have a living node."""

EXCHANGE_S = 24 * 3600.0
"""Until a worker must have a step's new weights; the coordinator, which sees all workers, gives up far sooner."""

REPAIR_S = 1.0
"""Until a worker that is to do a lost slice must have come to its step, or is asked again: a lost slice of the step
before, which the worker waits for, may be next in its queue."""

LINK_S = 0.6
"""Of one transfer in the measurement of links."""

LINK_ALONE_S = 0.3
"""Of one while no other host sends."""

TRIAL_S = 4.0
"""Of steps that are made before a plan is told."""

LINK_CONNECT_S = 2.0
"""Until another host must have let us connect in the measurement of links."""

LINK_NONCE_S = 0.5
"""Until a process that connects in the measurement of links must have shown that it belongs to the run."""

LINK_ANSWER_S = 60.0
"""Until an actor must have answered in the measurement of links."""

GROUP_S = 20.0
"""Until the members of a group for all-reduce must have found and connected each other."""

REDUCE_S = 60.0
"""Until a piece of an all-reduce must have come through gloo; the coordinator frees a waiting worker sooner."""


def late_after(slice_deadline_s: float, expected_s: float) -> float:
    """Seconds after which a slice is late, where another worker can do it."""
    return min(slice_deadline_s, LATE_FACTOR * expected_s + LATE_S)


def given_up_after(slice_deadline_s: float, expected_s: float) -> float:
    """Seconds after which work is given up that no other worker can do."""
    return slice_deadline_s + SLICE_FACTOR * expected_s
