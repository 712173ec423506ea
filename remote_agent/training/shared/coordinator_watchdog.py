"""The end of an actor whose coordinator is gone for good."""

from __future__ import annotations

import logging
import os
import threading
import time

from remote_agent.training.deadlines import ORPHAN_S, UNHEARD_S

LOG = logging.getLogger(__name__)


class CoordinatorWatchdog:
    """Ends this process once it is an orphan: it was not pinged for :data:`ORPHAN_S`.

    A run's actors outlive a coordinator that is killed, so that the next one finds them. Where none comes they would
    hold memory and devices until the cluster is taken down. Until the first ping there is more time: large models on
    slow disks are made ready for long.
    """

    def __init__(self) -> None:
        self._heard = time.monotonic() + UNHEARD_S - ORPHAN_S
        threading.Thread(target=self._watch, name="orphan", daemon=True).start()

    def heard(self) -> None:
        self._heard = time.monotonic()

    def _watch(self) -> None:
        while (left := self._heard + ORPHAN_S - time.monotonic()) > 0:
            time.sleep(min(left, ORPHAN_S))  # the first word makes the time shorter
        LOG.info("no ping for %.0f s: the coordinator is gone, and this process ends itself", ORPHAN_S)
        os._exit(0)
