"""Opening one SSH connection: ssh_config, keys, jump hosts and the host key's verdict, within one deadline.

The inventory's fields win over ``~/.ssh/config``, which wins over the defaults, as on ssh's own command line. Jump
hosts are dialled here, one by one, and not by asyncssh, so that their host keys get the same three outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import asyncssh

from hetero_tui import deadlines
from hetero_tui.errors import HostError, HostKeyChanged, HostKeyUnknown
from hetero_tui.inventory import Host, Inventory
from hetero_tui.inventory.schema import Jump
from hetero_tui.transport import failures, host_keys, identities
from hetero_tui.transport.host_keys import KnownKey, OfferedKey, Target, Verdict

STEP = "connect"
_MAX_JUMPS = 8


@dataclass(frozen=True, kw_only=True)
class Dialled:
    """An open connection, the peer's IP address (None behind a jump or a proxy), and the jumps it goes through."""

    connection: asyncssh.SSHClientConnection
    address: str | None
    place: failures.Place
    known_hosts: tuple[Path, ...]
    jumps: tuple[asyncssh.SSHClientConnection, ...] = ()

    def close(self) -> None:
        """Close it and its jumps, the far end first."""
        for connection in (self.connection, *reversed(self.jumps)):
            connection.close()


@dataclass
class Attempt:
    """What one attempt found out, kept also when it fails: the key that was offered, and how far it came.

    ``trusted``: the server's key is the right one, and the login is under way.
    """

    place: failures.Place
    reads_config: bool = False
    offered: OfferedKey | None = None
    connected: bool = False
    trusted: bool = False


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One SSH server on the way, as the inventory or a ProxyJump names it."""

    address: str
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    proxy_jump: str | None = None


@dataclass(frozen=True)
class Dialler:
    """Opens connections to one host of the inventory.

    Attributes:
        config: ssh_config files; None stands for ``~/.ssh/config``.
        accept_new_host_keys: Whether keys that were never seen are accepted and remembered. Changed ones never are.
    """

    host: Host
    inventory: Inventory
    accept_new_host_keys: bool = False
    config: tuple[Path, ...] | None = None
    deadline: float = field(default=deadlines.CONNECT)

    def attempt(self) -> Attempt:
        """A new attempt, not begun."""
        address = _shown(self.host.address or self.host.name, self.host.port)
        return Attempt(failures.Place(host=self.host.name, step=STEP, endpoint=address))

    async def dial(self, attempt: Attempt) -> Dialled:
        """Connect, through jumps if need be. Raises HostError, whatever went wrong."""
        try:
            async with asyncio.timeout(self.deadline):
                return await self._dial(_endpoint(self.host), attempt, depth=0, through=None)
        except TimeoutError:
            if attempt.reads_config:
                raise failures.config_takes_long(attempt.place, self.deadline) from None
            if attempt.trusted:
                raise failures.login_takes_long(attempt.place, self.deadline) from None
            raise failures.timed_out(attempt.place, self.deadline, connected=attempt.connected) from None
        except HostError:
            raise
        except Exception as error:  # strangers and ssh_config may make asyncssh raise anything
            raise failures.explain(error, attempt.place) from error

    async def _dial(
        self, endpoint: Endpoint, attempt: Attempt, *, depth: int, through: Dialled | None, direct: bool = False
    ) -> Dialled:
        """``through``: the hop before this one; ``direct``: this hop's own ProxyJump in ssh_config is left out."""
        label = failures.ON_THE_WAY if depth else ""
        place = failures.Place(host=self.host.name, step=STEP, endpoint=_shown(endpoint.address, endpoint.port) + label)
        attempt.place, attempt.connected, attempt.trusted = place, False, False
        try:
            common: dict[str, Any] = {
                "host": endpoint.address,
                "config": () if self.config is None else [str(path) for path in self.config],
                "agent_forwarding": False,
                "x11_forwarding": False,
                "request_pty": False,
                "keepalive_interval": deadlines.KEEPALIVE_INTERVAL,
                "keepalive_count_max": deadlines.KEEPALIVE_COUNT,
                "connect_timeout": None,
                "login_timeout": self.deadline,
                "x509_trusted_certs": None,
                "pkcs11_provider": None,  # the agent has a token's keys, and asks for its PIN
                "encoding": None,
            }
            if endpoint.port is not None:
                common["port"] = endpoint.port
            if endpoint.user is not None:
                common["username"] = endpoint.user
            if endpoint.identity_file is not None:
                common |= identities.explicit(endpoint.identity_file, place)
            identities.check_config(self.config, place)
            attempt.reads_config = True
            options = await identities.resolve(common, self.config)
            attempt.reads_config = False
            by = " (by ProxyCommand)" if options.proxy_command and through is None else ""
            place = replace(
                place,
                endpoint=_shown(options.host, options.port) + label + by,
                user=options.username,
                keys=identities.offered(endpoint.identity_file, options),
            )
            attempt.place = place
            hops: list[Endpoint] = [] if through is not None or direct else self._hops(endpoint, options)
            if depth + len(hops) > _MAX_JUMPS:
                cause = f"more than {_MAX_JUMPS} jump hosts lead to {place.endpoint}"
                raise HostError(self.host.name, cause, step=STEP, hint="look for a circle of ProxyJump entries")
        except failures.SSH_ERRORS as error:
            raise failures.explain(error, place) from None
        before = through
        try:
            for hop in hops:
                same = hop.address == endpoint.address  # `Host *` with ProxyJump matches the jump host too
                before = await self._dial(hop, attempt, depth=depth + 1, through=before, direct=same)
            attempt.place, attempt.connected, attempt.trusted = place, False, False
            return await self._login(endpoint, common, options, before, place, attempt)
        except BaseException:
            if before is not None and before is not through:
                before.close()
            raise

    async def _login(
        self,
        endpoint: Endpoint,
        common: dict[str, Any],
        options: asyncssh.SSHClientConnectionOptions,
        through: Dialled | None,
        place: failures.Place,
        attempt: Attempt,
    ) -> Dialled:
        target = Target((options.host_key_alias or options.host).lower(), options.port)
        paths = _known_hosts(endpoint, options)
        gate = _Gate(target, paths, attempt, accept_new=self.accept_new_host_keys)
        sock: socket.socket | None = None
        try:
            async with login_at(options.host, options.port):
                if through is None and not options.proxy_command and not options.config.get("BindAddress"):
                    sock = await first_to_answer(options.host, options.port, options.family)
                connection = await asyncssh.connect(
                    **common,
                    sock=sock,
                    tunnel=through.connection if through else None,
                    known_hosts=((), (), ()),  # every key comes to the gate
                    server_host_key_algs=host_keys.algorithms(host_keys.find(paths, target)),
                    client_factory=lambda: gate,
                )
        except asyncssh.HostKeyNotVerifiable as error:
            raise gate.refusal(error, place) from None
        except asyncssh.PermissionDenied as error:
            if gate.wanted and not gate.refused_keys:
                raise failures.more_than_a_key(place, gate.wanted) from None
            raise failures.explain(error, place) from None
        except asyncssh.ChannelOpenError as error:  # only a jump host opens channels here
            raise failures.behind_jump(error, place) from None
        except (asyncssh.ConnectionLost, ConnectionError) as error:
            if attempt.connected:
                raise failures.dropped(place) from None
            raise failures.explain(error, place) from None
        except failures.SSH_ERRORS as error:
            raise failures.explain(error, place) from None
        finally:
            if sock is not None and not attempt.connected:  # else it is asyncssh's
                sock.close()
        peer = None if through or options.proxy_command else connection.get_extra_info("peername")
        jumps = (*through.jumps, through.connection) if through else ()
        return Dialled(
            connection=connection,
            address=peer[0] if peer else None,
            place=place,
            known_hosts=tuple(paths),
            jumps=jumps,
        )

    def _hops(self, endpoint: Endpoint, options: asyncssh.SSHClientConnectionOptions) -> list[Endpoint]:
        if endpoint.proxy_jump is not None:
            named = self.inventory.host(endpoint.proxy_jump)
            return [_endpoint(named) if named is not None else _jump(endpoint.proxy_jump)]
        configured = options.tunnel if isinstance(options.tunnel, str) else ""
        if configured.strip().lower() in ("", "none"):
            return []
        return [_jump(word.strip()) for word in configured.split(",")]


class _Gate(asyncssh.SSHClient):
    """Decides on the host's key during the key exchange, and remembers why it said no, and what the server asked for.

    Attributes:
        wanted: what it asked for beside keys: a password, a code.
        refused_keys: whether it asked for one more key once all were offered.
    """

    def __init__(self, target: Target, paths: Sequence[Path], attempt: Attempt, *, accept_new: bool) -> None:
        self._target = target
        self._paths = tuple(paths)
        self._attempt = attempt
        self._accept_new = accept_new
        self._verdict: Verdict | None = None
        self._line: host_keys.KnownKey | None = None
        self._offered: OfferedKey | None = None
        self._trouble = ""
        self.wanted: list[str] = []
        self.refused_keys = False

    def public_key_auth_requested(self) -> None:
        self.refused_keys = True

    def password_auth_requested(self) -> None:
        self.wanted.append("a password")

    def kbdint_auth_requested(self) -> None:
        self.wanted.append("a code (keyboard-interactive)")

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._attempt.connected = True

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        known = self._known(addr)
        if known is None:
            return False
        self._verdict, self._line = host_keys.decide(known, key)
        if self._verdict is Verdict.KNOWN:
            self._attempt.trusted = True
            return True
        if self._verdict is not Verdict.UNKNOWN:
            return False
        self._offered = OfferedKey(self._target, key, self._paths[0])
        if not self._accept_new:
            self._attempt.offered = self._offered
            return False
        try:
            self._offered.accept()
        except OSError as error:
            self._trouble = f"{self._offered.path} can't be written: {error.strerror or error}"
            return False
        self._attempt.trusted = True
        return True

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self._attempt.trusted = host_keys.trusts_authority(self._known(addr) or (), key)
        return self._attempt.trusted

    def _known(self, addr: str) -> tuple[KnownKey, ...] | None:
        """The lines of known_hosts about this server; None where these can't be read, which :attr:`_trouble` tells."""
        try:
            return host_keys.find(self._paths, replace(self._target, address=addr or ""))
        except OSError as error:
            self._trouble = f"{error.filename} can't be read: {error.strerror}"
            return None

    def refusal(self, error: asyncssh.HostKeyNotVerifiable, place: failures.Place) -> HostError:
        """The verdict in words."""
        line = self._line
        if self._trouble:
            hint = "give yourself the right to read and write that file"
            return HostError(place.host, self._trouble, step=place.step, hint=hint)
        if self._verdict is Verdict.UNKNOWN and self._offered is not None:
            return HostKeyUnknown(
                place.host,
                f"{place.endpoint} was never seen before; its key is {self._offered.fingerprint}",
                step=place.step,
                hint="compare it with ssh-keygen -lf on the host; then accept it, or pass --accept-new-host-keys",
                fingerprint=self._offered.fingerprint,
                endpoint=place.endpoint,
            )
        if self._verdict is Verdict.CHANGED and line is not None:
            return HostKeyChanged(
                place.host,
                f"{place.endpoint} shows another key than line {line.line} of {line.path}",
                step=place.step,
                hint="if the machine was really set up anew: "
                f"`ssh-keygen -f {shlex.quote(str(line.path))} -R '{self._target.entry}'`, then connect again",
            )
        if self._verdict is Verdict.REVOKED and line is not None:
            return HostKeyChanged(
                place.host,
                f"{place.endpoint} shows a key that line {line.line} of {line.path} revokes",
                step=place.step,
                hint="give the host a new key; a revoked one is never accepted",
            )
        return HostKeyChanged(
            place.host,
            f"{place.endpoint} shows a host certificate that is not valid: {error.reason}",
            step=place.step,
            hint="renew the host's certificate, or mend @cert-authority in known_hosts",
        )


def _endpoint(host: Host) -> Endpoint:
    return Endpoint(
        address=host.address or host.name,
        port=host.port,
        user=host.user,
        identity_file=host.identity_file,
        known_hosts=host.known_hosts,
        proxy_jump=host.proxy_jump,
    )


def _jump(word: str) -> Endpoint:
    found = Jump.match(word.removeprefix("ssh://"))
    if found is None:
        raise ValueError(f"ProxyJump {word!r} is not [user@]host[:port]")
    port = found["port"]
    return Endpoint(address=found["address"].strip("[]"), port=int(port) if port else None, user=found["user"])


def _shown(address: str, port: int | None) -> str:
    return address if port in (None, host_keys.DEFAULT_PORT) else f"{address} port {port}"


def _known_hosts(endpoint: Endpoint, options: asyncssh.SSHClientConnectionOptions) -> list[Path]:
    """known_hosts files, the one to write first; ``UserKnownHostsFile none`` remembers nothing."""
    if endpoint.known_hosts is not None:
        return [Path(endpoint.known_hosts).expanduser()]
    configured = options.known_hosts
    if configured is None:
        return [Path("/dev/null")]
    names = [str(name) for name in configured] if isinstance(configured, list) else []
    paths = [Path(name).expanduser() for name in names]
    home = Path.home() / ".ssh"
    return paths or [home / "known_hosts", home / "known_hosts2", Path("/etc/ssh/ssh_known_hosts")]


AT_ONCE = 6

_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, defaultdict[tuple[str, int], asyncio.Semaphore]]
_servers = WeakKeyDictionary()


def login_at(host: str, port: int) -> asyncio.Semaphore:
    """What a login at this server is to hold, from the TCP connection on."""
    servers = _servers.setdefault(asyncio.get_running_loop(), defaultdict(lambda: asyncio.Semaphore(AT_ONCE)))
    return servers[(host, port)]


HEAD_START = 0.3
"""Seconds that an address has before the next one is tried as well."""


async def first_to_answer(host: str, port: int, family: int = 0) -> socket.socket | None:
    """A TCP connection to the address of ``host`` that answers first; None where there is but one, or none answers.

    Raises:
        OSError: the name can't be resolved.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    if len(found) < 2:
        return None
    tasks = [asyncio.create_task(_attempt(number * HEAD_START, *found[number])) for number in range(len(found))]
    winner: socket.socket | None = None
    try:
        for task in asyncio.as_completed(tasks):
            with contextlib.suppress(OSError):
                winner = await task
                return winner
        return None
    finally:
        for each in tasks:
            each.cancel()
        await _close(tasks, winner)


async def _attempt(
    pause: float, family: int, kind: int, protocol: int, _: str, address: tuple[object, ...]
) -> socket.socket:
    await asyncio.sleep(pause)
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _close(tasks: Sequence[asyncio.Task[socket.socket]], winner: socket.socket | None) -> None:
    """Close the connections that came second."""
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, socket.socket) and outcome is not winner:
            outcome.close()
