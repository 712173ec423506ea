"""Says what finishes an operation that was cut off half-way, for a command that is interrupted and an app that is left.

Each operation that changes machines has its word here, by which a session says that it is under way.
"""

from __future__ import annotations

STARTING, ADDING, TRAINING, RESUMING = "starting", "adding hosts", "starting a run", "resuming"
"""Of a cluster, of hosts in one that is there already, and of a run, which brings a cluster up that is down."""

PLANNING = "planning"
"""Devices and links are measured, for which a cluster is brought up."""

ASKING, PROBING = "asking hosts", "probing"
"""Of what only looks: how the hosts stand, and what they are."""

_FINISHED_BY = {
    "stopping": "`hetero-tui down` finishes it",
    STARTING: "`hetero-tui up` finishes it, `hetero-tui down` undoes it",
    ADDING: "`hetero-tui up` finishes it",
    TRAINING: "`hetero-tui train` starts it anew, `hetero-tui down` takes down what came of it",
    "installing": "`hetero-tui bootstrap` finishes it",
    "mending": "`hetero-tui check --fix` finishes it",
    PLANNING: "`hetero-tui plan` starts it anew; a cluster that it brought up stays, and `hetero-tui down` ends it",
    RESUMING: "`hetero-tui resume` finishes it",
    "failing over": "`hetero-tui resume` finishes it",
    "ending the run": "`hetero-tui stop` finishes it",
    "draining": "`hetero-tui drain` finishes it",
    "bringing back": "`hetero-tui undrain` finishes it",
}


def half_way(word: str) -> str:
    """What is said of the operation of that word where it is cut off; empty where nothing is left half-done."""
    return f"interrupted while {word}: {_FINISHED_BY[word]}" if word in _FINISHED_BY else ""
