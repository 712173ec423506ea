"""Connects to one host: :class:`Transport` is the interface, ``ssh`` and ``local`` implement it."""

from __future__ import annotations

import os

from hetero_tui.inventory import Host, Inventory
from hetero_tui.transport.base import Completed, Conversation, Transport

__all__ = ["Completed", "Conversation", "Transport", "open_transport"]


def open_transport(host: Host, inventory: Inventory, *, accept_new_host_keys: bool = False) -> Transport:
    """The transport for ``host``, not yet connected; ``inventory`` is where its jump hosts are named.

    asyncssh is loaded here and not with this package: it takes a fifth of a second that ``--help`` need not wait for.
    """
    if host.connection == "local":
        from hetero_tui.transport.local import LocalTransport

        return LocalTransport(host)
    from hetero_tui.transport.ssh import SshTransport

    return SshTransport(host, inventory, accept_new_host_keys=accept_new_host_keys)


def shell_command(host: Host, inventory: Inventory) -> tuple[str, ...]:
    """The words that open a shell on ``host`` in a terminal: OpenSSH's own client, by the inventory's settings."""
    if host.connection == "local":
        return (os.environ.get("SHELL", "/bin/sh"), "-l")
    words = ["ssh"]
    if host.port is not None:
        words += ["-p", str(host.port)]
    if host.user is not None:
        words += ["-l", host.user]
    if host.identity_file is not None:
        words += ["-i", host.identity_file]
    if host.known_hosts is not None:
        words += ["-o", f"UserKnownHostsFile={host.known_hosts}"]
    if host.proxy_jump is not None:
        words += ["-J", _jump_words(host.proxy_jump, inventory)]
    return (*words, "--", host.address or host.name)


def _jump_words(jump: str, inventory: Inventory) -> str:
    """A host of the inventory as OpenSSH's ``-J`` names it; what is none is written as it is for that already."""
    known = inventory.host(jump)
    if known is None or known.address is None:
        return jump
    user = f"{known.user}@" if known.user is not None else ""
    port = f":{known.port}" if known.port is not None else ""
    return f"{user}{known.address}{port}"
