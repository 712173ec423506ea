"""The kinds of devices that a job brings, by name: the coordinator sends them to the workers, which know what they are.

Each is a :class:`~remote_agent.training.worker.device.backend.Backend`.
"""

from __future__ import annotations

from typing import Any

KINDS: dict[str, Any] = {}
