"""Parses the name of a new machine: ``user@host:port``, or a Host of ``~/.ssh/config``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from hetero_tui.errors import UsageError

_TARGET = re.compile(
    r"(?:(?P<user>[^\s:\[\]]+)@)?(?:(?P<address>[^\s@:\[\]/\\,;|&<>*?]+)|\[(?P<ipv6>[0-9A-Fa-f:.]+)\])"
    r"(?::(?P<port>\d{1,5}))?"
)


def parse_target(text: str) -> dict[str, object]:
    """The fields of a host: address, and user and port where they are named.

    Raises:
        UsageError: it is no ``[user@]host[:port]``; an IPv6 address stands in brackets.
    """
    found = _TARGET.fullmatch(text)
    port = int(found["port"]) if found is not None and found["port"] else None
    if found is None or text.startswith("-") or (port is not None and not 0 < port < 2**16):
        hint = "such as me@mercer.local, me@192.168.1.12:2222, or a Host of ~/.ssh/config"
        raise UsageError(f"{text!r} is not [user@]host[:port]", step="add", hint=hint)
    fields: dict[str, object] = {"address": found["address"] or found["ipv6"]}
    if found["user"]:
        fields["user"] = found["user"]
    if port is not None:
        fields["port"] = port
    return fields


def target_of(fields: Mapping[str, object]) -> str:
    """The other way: ``[user@]host[:port]`` of a host's fields."""
    address, user, port = str(fields.get("address", "")), fields.get("user"), fields.get("port")
    shown = f"[{address}]" if ":" in address else address
    return f"{f'{user}@' if user else ''}{shown}{f':{port}' if port else ''}"


def free_name(address: str, taken: Collection[str]) -> str:
    """A name for the host at an address that no other has: the first label of a host name, or ``host-`` and an IP's."""
    is_ip = re.fullmatch(r"[\d.]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", address)
    base = f"host-{address}" if is_ip else address.partition(".")[0]
    base = re.sub(r"[^a-z0-9]+", "-", base.lower()).strip("-")[:36].rstrip("-") or "host"
    names = (base, *(f"{base}-{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)
