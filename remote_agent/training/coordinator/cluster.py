"""Connects to Ray, from the coordinator (a given head, a deadline) or from a user's script (any cluster)."""

from __future__ import annotations

import logging
import os
import socket

import ray
from ray._private import worker

from remote_agent.errors import first_line
from remote_agent.training.deadlines import CONNECT_S
from remote_agent.training.errors import ClusterUnreachable


def connect(address: str, node_address: str) -> None:
    """Join the cluster at ``address`` (``host:port`` of its GCS) as a driver on the node at ``node_address``.

    The token is taken by Ray from the environment (``RAY_AUTH_MODE``, ``RAY_AUTH_TOKEN_PATH``).

    Raises:
        ClusterUnreachable: no process listens there, or it refuses this driver.
    """
    hint = "see `hetero-tui status`; `hetero-tui up` brings the cluster up"
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # answers of lost workers are not waited for any more
    host, _, port = address.rpartition(":")
    try:
        # Ray itself would try for a minute, and then end this process.
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise ClusterUnreachable(f"Ray's head at {address} can't be reached: {error}", hint=hint) from error
    failure = f"Ray's head at {address} refused the coordinator"
    _init(failure, hint, address=address, _node_ip_address=node_address)


def connect_script() -> bool:
    """Use the connected Ray, a running one, or start one; True if we connected. Raises ClusterUnreachable."""
    if ray.is_initialized():
        return False
    _init("can't connect to Ray", "check RAY_ADDRESS, or unset it")
    return True


def _init(failure: str, hint: str, **options: str) -> None:
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise ClusterUnreachable(f"{failure}: {first_line(error)}", hint=hint) from None
    # Ray prints about lost workers on stdout, but a lost worker is an event of the run.
    worker.print_to_stdstream = lambda *_, **__: None


def disconnect() -> None:
    """Leave the cluster, and end one that :func:`connect_script` started."""
    ray.shutdown()
