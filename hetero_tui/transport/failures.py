"""Explains every way in which SSH can fail: which host, what happened, what to do next.

:func:`explain` is total: whatever asyncssh, the resolver or the kernel raises becomes one HostError.
"""

from __future__ import annotations

import errno
import re
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import asyncssh

from hetero_tui.errors import AuthenticationFailed, BadAnswer, CommandFailed, HostError, Unreachable
from hetero_tui.text import one_line

SSH_ERRORS = (OSError, asyncssh.Error, asyncssh.ChannelListenError, ValueError, EOFError)
"""What an asyncssh call may raise for reasons outside this program; configuration and keys raise ValueErrors."""

ON_THE_WAY = " (on the way)"
"""Follows the address of a jump host."""

_ERRNO = re.compile(r"\[Errno (-?\d+)\]")
_DOWN = "check that it is switched on and that the address is right"
_NO_ROUTE = frozenset({errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.EACCES})
_NO_NETWORK = frozenset({errno.ENETUNREACH, errno.ENETDOWN})
_BROKEN = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN})


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something failed: the inventory's ``host``, the ``step``, and the address that was really dialled.

    ``endpoint`` is for people, such as ``lab@10.0.0.7 port 2222``; ``keys`` says which keys were offered.
    """

    host: str
    step: str
    endpoint: str
    user: str = ""
    keys: str = ""


def explain(error: BaseException, place: Place) -> HostError:
    """The HostError that says what ``error``, raised while working on ``place``, means to the user."""
    match error:
        case HostError():
            return error
        case asyncssh.PermissionDenied():
            return AuthenticationFailed(
                place.host,
                f"{place.endpoint} refused the login of user '{place.user}' (offered: {place.keys or 'no key'})",
                step=place.step,
                hint=_key_hint(place),
            )
        case asyncssh.DisconnectError() if "too many authentication" in error.reason.lower():
            return AuthenticationFailed(
                place.host,
                f"{place.endpoint} ended the login of user '{place.user}' after so many keys (offered: {place.keys})",
                step=place.step,
                hint="name the right one as `identity_file` in the inventory, which is then the only one offered",
            )
        case asyncssh.KeyExchangeFailed():
            return _failed(
                place,
                f"no common cryptography with {place.endpoint}: {one_line(str(error), 120)}",
                "update the SSH server on the host, or allow the algorithm in ~/.ssh/config",
            )
        case asyncssh.ProtocolNotSupported() | asyncssh.ProtocolError():
            return _unreachable(place, f"what answers at {place.endpoint} is not SSH", "check address and port")
        case asyncssh.ConnectionLost() | asyncssh.DisconnectError():
            return _unreachable(
                place,
                f"the connection to {place.endpoint} was closed: {one_line(str(error), 120)}",
                "try again; if it happens every time, look at the SSH server's log on the host",
            )
        case asyncssh.ChannelOpenError():
            return _channel(error, place)
        case asyncssh.ChannelListenError():
            return _failed(place, f"no local port could be opened: {one_line(str(error), 120)}", "try again")
        case asyncssh.ConfigParseError():
            return _failed(place, f"~/.ssh/config can't be read: {one_line(str(error))}", "mend that line")
        case asyncssh.KeyImportError() | asyncssh.KeyEncryptionError():
            return AuthenticationFailed(
                place.host,
                f"a private key can't be used: {one_line(str(error), 160)}",
                step=place.step,
                hint="run ssh-add with that key (a passphrase is then asked once), or name another identity_file",
            )
        case UnicodeError():
            return _unreachable(place, f"{place.endpoint} is not a valid host name", "check `address` in the inventory")
        case OSError():
            return _network(error, place)
        case _:
            return _configuration(error, place)


def _key_hint(place: Place) -> str:
    """How this user gets in by a key: with one that is there, or a new one."""
    address, _, port = place.endpoint.partition(" (")[0].partition(" port ")
    copy = f"`ssh-copy-id {f'-p {port} ' if port else ''}{shlex.quote(f'{place.user}@{address}')}`"
    if not place.keys:
        return f"make a key by `ssh-keygen -t ed25519`, and have the host know it: {copy}"
    if locked := re.search(r"run (ssh-add [^)]+) first", place.keys):
        return (
            f"run `{locked[1]}` (where it finds no agent, `eval $(ssh-agent)` before); the host has to know it: {copy}"
        )
    return f"set `user` or `identity_file` in the inventory, or have the host know your key: {copy}"


def _configuration(error: BaseException, place: Place) -> HostError:
    match error:
        case OverflowError():
            return _failed(place, f"{place.endpoint} has no port from 1 to 65535", "mend Port in ~/.ssh/config")
        case RecursionError():
            return _failed(place, "~/.ssh/config includes itself", "mend its Include lines")
    name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return _failed(place, f"{name}{one_line(str(error), 160)}", "check ~/.ssh/config and keys")


def timed_out(place: Place, seconds: float, *, connected: bool) -> Unreachable:
    """No login within ``seconds``; ``connected``: something accepted the connection and then kept silent."""
    if connected:
        return _unreachable(
            place,
            f"{place.endpoint} accepted the connection but completed no SSH login within {seconds:g} s",
            "check that the port is an SSH server's, that the host is not overloaded, and that large packets pass",
        )
    hint = f"{_DOWN}; of a name, that this network's name server answers"
    return _unreachable(place, f"no answer from {place.endpoint} within {seconds:g} s", hint)


def login_takes_long(place: Place, seconds: float) -> Unreachable:
    """The server showed its key, and then nobody was logged in within ``seconds``."""
    return _unreachable(
        place,
        f"{place.endpoint} is an SSH server, but logged '{place.user}' in neither nor refused it within {seconds:g} s",
        "see with `ssh-add -l` that your SSH agent answers, and no key waits for a touch; or the host is overloaded, or"
        " its login waits for a name server (`UseDNS no` and `GSSAPIAuthentication no` in its sshd_config end that)",
    )


def config_takes_long(place: Place, seconds: float) -> HostError:
    """ssh_config was not read within ``seconds``."""
    cause = f"reading ~/.ssh/config took longer than {seconds:g} s"
    return _failed(place, cause, "see how long the commands of its `Match exec` lines take")


def dropped(place: Place) -> Unreachable:
    """The other side hung up before anybody was logged in."""
    return _unreachable(
        place,
        f"{place.endpoint} closed the connection during login",
        "check that the port is an SSH server's; if it is, its log on the host says why",
    )


def lost(place: Place) -> Unreachable:
    """The connection broke while something ran over it."""
    return _unreachable(
        place, f"the connection to {place.endpoint} was lost midway", "it is opened again on the next try"
    )


def more_than_a_key(place: Place, wanted: Sequence[str]) -> AuthenticationFailed:
    """The server takes a password or a code, beside the key or in its place: nobody is here to type it."""
    return AuthenticationFailed(
        place.host,
        f"{place.endpoint} wants more than a key from user '{place.user}': {' and '.join(wanted)}"
        f" (offered: {place.keys or 'no key'})",
        step=place.step,
        hint="let this user in by key alone there (sshd_config: Match User, then AuthenticationMethods publickey)",
    )


def behind_jump(error: asyncssh.ChannelOpenError, place: Place) -> Unreachable:
    """The jump host answered, but can't connect to the host behind it, or may not."""
    return _unreachable(
        place,
        f"the jump host can't connect to {place.endpoint}: {one_line(error.reason, 120)}",
        "check the address as the jump host sees it, and that it allows forwarding (AllowTcpForwarding)",
    )


def foreign_answer(place: Place, status: int, said: str) -> CommandFailed:
    """Something else answered: the user's shell runs no commands (``/bin/false``, ``nologin``), or one is forced."""
    shown = f'it said "{said}"' if said else "it said nothing"
    cause = f"the login shell of '{place.user}' runs no commands, or another one is forced"
    return CommandFailed(
        place.host,
        f"{cause}: {shown} and exited with {status}",
        step=place.step,
        hint=f"give the user a shell there (`sudo chsh -s /bin/sh {shlex.quote(place.user)}`); look for ForceCommand in"
        " sshd_config, command= in authorized_keys, and a start-up file that exits",
        output=said,
    )


def prints_without_end(place: Place, limit: int) -> BadAnswer:
    """The user's start-up files print more than any do, and no command comes to run."""
    cause = f"the start-up files of '{place.user}' printed {limit // 2**20} MiB, and no command was run yet"
    return BadAnswer(place.host, cause, step=place.step, hint="look for one that prints without end there")


def _network(error: OSError, place: Place) -> HostError:
    if isinstance(error, socket.gaierror):
        key = "`proxy_jump` (or ProxyJump in ~/.ssh/config)" if ON_THE_WAY in place.endpoint else "`address`"
        return _unreachable(
            place,
            f"the name of {place.endpoint} can't be resolved",
            f"check {key}; a .local name needs the host to be on this network",
        )
    # asyncio joins the errors of several addresses into one text and drops their numbers.
    found = _ERRNO.search(str(error))
    number = error.errno if error.errno is not None else int(found.group(1)) if found else 0
    if isinstance(error, TimeoutError) or number == errno.ETIMEDOUT:
        return _unreachable(place, f"no answer from {place.endpoint}", _DOWN)
    if number == errno.ECONNREFUSED:
        return _unreachable(
            place,
            f"{place.endpoint} refused the connection: nothing listens there",
            "start its SSH server (macOS: Remote Login), or set `port` in the inventory",
        )
    if number in _NO_NETWORK:
        cause = f"no network of this computer leads to {place.endpoint}"
        return _unreachable(place, cause, "check that this computer is connected and that the address is right")
    if number in _NO_ROUTE:
        return _unreachable(place, f"no route to {place.endpoint}", _DOWN)
    if number in _BROKEN:
        return lost(place)
    text = one_line(error.strerror or str(error), 160)
    subject = f" ({error.filename})" if error.filename else ""
    if isinstance(error, FileNotFoundError | PermissionError):
        hint = "check identity_file, known_hosts, and ProxyCommand in ~/.ssh/config"
        return _failed(place, f"a file that SSH needs can't be read: {text}{subject}", hint)
    return _unreachable(place, f"{place.endpoint} could not be reached: {text}{subject}", _DOWN)


def _channel(error: asyncssh.ChannelOpenError, place: Place) -> HostError:
    reason = one_line(error.reason, 120)
    if "connection closed" in reason.lower() or "connection lost" in reason.lower():
        return lost(place)
    if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
        return _failed(
            place,
            f"{place.endpoint} does not allow this: {reason}",
            "its sshd_config may forbid forwarding (AllowTcpForwarding) or more sessions (MaxSessions)",
        )
    if error.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
        return _failed(
            place, f"{place.endpoint} runs no commands for '{place.user}'", "check the user's login shell on the host"
        )
    return _failed(
        place,
        f"{place.endpoint} opened no further session: {reason}",
        "its SSH server may be at its limit: raise MaxSessions in sshd_config, or close other connections",
    )


def _unreachable(place: Place, cause: str, hint: str) -> Unreachable:
    return Unreachable(place.host, cause, step=place.step, hint=hint)


def _failed(place: Place, cause: str, hint: str) -> HostError:
    return HostError(place.host, cause, step=place.step, hint=hint)
