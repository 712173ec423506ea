"""hivemind with local updates: every host trains alone, and averages its parameters with the others now and then.

Ryabinin et al., "Moshpit SGD" (2021). A round (hivemind: an epoch) ends when all hosts together have seen
``round_steps * batch`` samples, so a slow host does fewer steps. Parameters travel as fp16, as in hivemind's own
examples, and are averaged in the background. What is evaluated is the first host's model at the end of each round.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers.task import PEER_PORT, START_DEADLINE, Meeting, Record, Settings, Task

MATCHMAKING_S = 2.0
"""hivemind's time to find partners; its documentation says 3-5 s for small local runs, and less for a fast network."""

AVERAGING_DEADLINE = 60.0
POLL_S = 0.2
"""Between two looks at who is there: hivemind has no event for it."""


def main() -> None:
    """Train."""
    import hivemind  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from hivemind.compression import Float16Compression  # type: ignore[import-not-found,import-untyped,unused-ignore]

    settings = Settings.from_command_line()
    task = Task(settings)
    task.warm_up()
    meeting = Meeting(settings)
    address = [f"/ip4/{settings.addresses[settings.rank]}/tcp/{PEER_PORT}"]
    if settings.rank == 0:
        dht = hivemind.DHT(host_maddrs=address, start=True)
        meeting.store.set("first", " ".join(str(one) for one in dht.get_visible_maddrs()))
    else:
        first = meeting.store.get("first").decode().split()
        dht = hivemind.DHT(host_maddrs=address, initial_peers=first, start=True)
    meeting.wait_for_all()
    _wait_for_partners(dht, settings)
    part = len(task.even_part(1))
    target = settings.round_steps * settings.batch
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="benchmark",
        batch_size_per_step=part,
        target_batch_size=target,
        optimizer=task.optimizer,
        use_local_updates=True,
        matchmaking_time=MATCHMAKING_S,
        averaging_timeout=AVERAGING_DEADLINE,
        state_averaging_compression=Float16Compression(),
        averager_opts={"request_timeout": MATCHMAKING_S / 2},
        tracker_opts={"min_refresh_period": POLL_S, "default_refresh_period": POLL_S},
    )
    meeting.wait_for_all()
    record = Record(task)
    record.start()
    step = epoch = 0
    while epoch * target < settings.steps * settings.batch:
        step += 1
        indices = task.even_part(step)
        task.gradient(indices)
        optimizer.step()
        record.step(len(indices))
        if optimizer.local_epoch != epoch:
            epoch = optimizer.local_epoch
            record.snapshot(samples=epoch * target)
    record.finish()


def _wait_for_partners(dht: Any, settings: Settings) -> None:
    """Return when this host finds all hosts in hivemind's hash table: those that start apart can stay apart.

    Raises:
        TimeoutError: it found fewer at the deadline.
    """
    from hivemind.utils import get_dht_time  # type: ignore[import-not-found,import-untyped,unused-ignore]

    deadline = time.monotonic() + START_DEADLINE
    there: set[str] = set()
    while len(there) < settings.hosts:
        if time.monotonic() > deadline:
            raise TimeoutError(f"hivemind finds {len(there)} of {settings.hosts} hosts")
        time.sleep(POLL_S)
        dht.store("present", subkey=str(settings.rank), value=1, expiration_time=get_dht_time() + START_DEADLINE)
        found = dht.get("present", latest=True)
        there = set(found.value) if found else set()


if __name__ == "__main__":
    main()
