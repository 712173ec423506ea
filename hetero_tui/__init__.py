"""The laptop's side of hetero-tui: it reaches machines, plans, starts, follows and tears down; it never trains.

Rooms: ``inventory`` (which machines), ``transport`` (how to reach one), ``fleet`` (what they are, cluster up and
down), ``planning`` (pure decisions), ``runs`` (training runs), ``demo`` (machines in this process), ``ui`` (screens).
Dependencies point inwards; torch, ray and, outside ``ui``, textual are never imported here.
"""

__version__ = "0.1.0"
