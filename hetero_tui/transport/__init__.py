"""How one host is reached: :class:`Transport` is the seam, ``ssh`` and ``local`` are its two forms."""

from __future__ import annotations

from hetero_tui.inventory import Host, Inventory
from hetero_tui.transport.base import Completed, Transport

__all__ = ["Completed", "Transport", "open_transport"]


def open_transport(host: Host, inventory: Inventory, *, accept_new_host_keys: bool = False) -> Transport:
    """The transport for ``host``, not yet connected; ``inventory`` is where its jump hosts are named.

    asyncssh is loaded here and not with this package: it takes a fifth of a second that ``--help`` need not wait for.
    """
    if host.connection == "local":
        from hetero_tui.transport.local import LocalTransport

        return LocalTransport(host)
    from hetero_tui.transport.ssh import SshTransport

    return SshTransport(host, inventory, accept_new_host_keys=accept_new_host_keys)
