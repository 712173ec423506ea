"""Names what is measured of a fleet and a job, so that it is found again as long as nothing of it has changed. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from hetero_tui.facts import HostFacts
from hetero_tui.runs.order import Order
from remote_agent import protocol
from remote_agent.strategies import SPECS

OF_NO_MATTER = frozenset(
    {
        *("num_iterations", "epochs", "learning_rate", "schedule", "warmup_steps", "ema_decay", "seed", "strategy"),
        *("allow", "shards", "codec", "local_steps", "local_batch", "overlap", "outer"),
        *("outer_learning_rate", "outer_momentum", "checkpoint_every", "checkpoint_seconds", "keep_checkpoints"),
        *("evaluate_every", "keep_best", "early_stopping", "measure_seconds", "rebalance", "slice_deadline_s"),
        *("in_flight", "log_to"),
    }
)
"""Settings that change nothing of what is measured."""

MEASURED = 5
"""What is measured: another number, and what an earlier version has kept is not found."""


def profile_name(order: Order, archive: bytes | None, spec: protocol.RunSpec, facts: Mapping[str, HostFacts]) -> str:
    """Names what is measured of an order: its code, the settings that matter, and the hosts.

    Of these their devices, addresses (another one is another link), versions, and whether they run on their batteries.
    """
    settings = {name: value for name, value in order.settings.items() if name not in OF_NO_MATTER}
    strategy = order.settings.get("strategy")
    if strategy in SPECS and SPECS[strategy].split:  # then it is the model's blocks that are measured
        settings["strategy"] = strategy
    hosts = sorted({device.host for device in spec.devices})
    about = (
        MEASURED,
        order.job.reference,
        hashlib.sha256(archive or b"").hexdigest(),
        settings,
        sorted((device.host, device.device, device.name, device.max_batch or 0) for device in spec.devices),
        spec.server_host,
        [
            (
                host,
                facts[host].reached or "",
                facts[host].python.version,
                sorted(_versions(facts[host]).items()),
                facts[host].power == "battery",
            )
            for host in hosts
        ],
    )
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _versions(facts: HostFacts) -> dict[str, str]:
    return {name: str(version) for name, version in facts.packages.items() if name in ("ray", "torch", "numpy")}
