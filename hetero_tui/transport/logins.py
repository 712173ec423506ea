"""Limits parallel logins on one SSH server; beyond MaxStartups (10 by default) OpenSSH drops some at random.

A jump host gets one for each host behind it, all at once. See sshd_config(5).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from weakref import WeakKeyDictionary

AT_ONCE = 6

_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, defaultdict[tuple[str, int], asyncio.Semaphore]]
_servers = WeakKeyDictionary()


def login_at(host: str, port: int) -> asyncio.Semaphore:
    """What a login at this server is to hold, from the TCP connection on."""
    servers = _servers.setdefault(asyncio.get_running_loop(), defaultdict(lambda: asyncio.Semaphore(AT_ONCE)))
    return servers[(host, port)]
