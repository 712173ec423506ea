"""Host keys: what known_hosts says about a key is a pure decision, and only a key that was never seen can be accepted.

asyncssh asks the same question for an unknown and for a changed key, and never writes known_hosts, so both are done
here: line by line, so that one broken line does not hide the others and a changed key can be named by its line.
The file's format is described in sshd(8), section "SSH_KNOWN_HOSTS FILE FORMAT".
"""

from __future__ import annotations

import base64
import fcntl
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

DEFAULT_PORT = 22


class Verdict(Enum):
    """What known_hosts says about a key that a host offered."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file that is about the host in question.

    ``key`` is None for a key of a type that can't be read. ``marker`` is "", "cert-authority" or "revoked".
    ``exact`` is false when the line matches by the address or without the port only.
    """

    path: str
    line: int
    marker: str
    key: asyncssh.SSHKey | None
    exact: bool


@dataclass(frozen=True)
class Target:
    """The host as known_hosts knows it: ``name`` is the host name (or HostKeyAlias), ``address`` its IP or ""."""

    name: str
    port: int
    address: str = ""

    @property
    def entry(self) -> str:
        """The first word of its line in known_hosts."""
        return _entry(self.name, self.port)


@dataclass(frozen=True)
class OfferedKey:
    """A key that was never seen, and all that is needed to accept exactly this one later."""

    target: Target
    key: asyncssh.SSHKey
    path: Path

    @property
    def fingerprint(self) -> str:
        """SHA256 fingerprint as OpenSSH prints it: ``SHA256:`` and unpadded base64."""
        return self.key.get_fingerprint("sha256")

    def accept(self) -> None:
        """Remember the key: append it to the known_hosts file. Raises OSError when that can't be written."""
        accept(self.path, self.target, self.key)


def find(paths: Iterable[Path], target: Target) -> tuple[KnownKey, ...]:
    """All lines about ``target``; a file that is missing holds none.

    OpenSSH's order of trust is kept: the name (with its port) decides. A line for the address, or for the name without
    its port, can make the same key known, but can't make another key a changed one.

    Raises:
        OSError: a file is there, but can't be read: a key that has changed would pass for one that was never seen.
    """
    return tuple(entry for path in paths for entry in _find_in(path, target))


def _find_in(path: Path, target: Target) -> Iterable[KnownKey]:
    try:
        if not path.is_file():  # reading a pipe would wait without end
            return
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError:
        if Path("/etc") in path.parents:  # the system's, for root alone: ssh passes over it, too
            return
        raise
    exact = [target.entry]
    also = [_entry(target.address, target.port)] if target.address else []
    if target.port != DEFAULT_PORT:
        also += [name for name in (target.name, target.address) if name]
    for number, line in enumerate(lines, start=1):
        if not _may_be_about(line, (*exact, *also)):
            continue
        try:
            parsed = asyncssh.import_known_hosts(line)
        except (ValueError, asyncssh.KeyImportError):
            continue
        for names, is_exact in ((exact, True), (also, False)):
            # One name at a time, its port inside it: asyncssh's own fallback would blur which of them matched.
            found = [result for name in names for result in _keys(parsed, name)]
            if found:
                yield from (KnownKey(str(path), number, marker, key, is_exact) for marker, key in found)
                break


def _may_be_about(line: str, names: Iterable[str]) -> bool:
    """Whether a line may name one of these. Parsing takes 40 us a line, and files have thousands."""
    words = line.split(maxsplit=2)
    if len(words) < 2 or words[0].startswith("#"):
        return False
    hosts = words[1 if words[0].startswith("@") else 0]
    if hosts.startswith("|1|"):
        salt, _, digest = hosts[3:].partition("|")
        try:
            wanted, key = base64.b64decode(digest), base64.b64decode(salt)
        except ValueError:
            return False
        return any(hmac.digest(key, name.encode(), "sha1") == wanted for name in names)
    return "*" in hosts or "?" in hosts or any(name in hosts for name in names)


def _keys(parsed: asyncssh.SSHKnownHosts, name: str) -> list[tuple[str, asyncssh.SSHKey]]:
    hosts, authorities, revoked, *_ = parsed.match(name, "", None)
    return [
        *(("", key) for key in hosts),
        *(("cert-authority", key) for key in authorities),
        *(("revoked", key) for key in revoked),
    ]


def decide(known: Iterable[KnownKey], key: asyncssh.SSHKey) -> tuple[Verdict, KnownKey | None]:
    """The verdict on a plain host key, and the line that it rests on (the first that contradicts, if changed)."""
    known = tuple(known)
    for entry in known:
        if entry.marker == "revoked" and entry.key == key:
            return Verdict.REVOKED, entry
    plain = [entry for entry in known if not entry.marker]
    for entry in plain:
        if entry.key == key:
            return Verdict.KNOWN, entry
    contradicting = [entry for entry in plain if entry.exact]
    same_type = [entry for entry in contradicting if entry.key is not None and entry.key.algorithm == key.algorithm]
    for entry in same_type or contradicting:
        return Verdict.CHANGED, entry
    return Verdict.UNKNOWN, None


def trusts_authority(known: Iterable[KnownKey], key: asyncssh.SSHKey) -> bool:
    """Whether ``key`` may sign host certificates for this host (``@cert-authority``, and not ``@revoked``)."""
    known = tuple(known)
    revoked = any(entry.marker == "revoked" and entry.key == key for entry in known)
    return not revoked and any(entry.marker == "cert-authority" and entry.key == key for entry in known)


def algorithms(known: Iterable[KnownKey]) -> list[str]:
    """Host key algorithms to ask for, those of the known keys first: a host known by its Ed25519 key shows that one.

    Certificates are asked for only where an authority is trusted: elsewhere they would hide the plain key.
    """
    known = tuple(known)
    plain = get_default_public_key_algs()
    preferred = [
        algorithm
        for entry in known
        if not entry.marker and entry.key is not None
        for algorithm in entry.key.sig_algorithms
        if algorithm in plain
    ]
    certificates = get_default_certificate_algs() if any(e.marker == "cert-authority" for e in known) else []
    return [name.decode("ascii") for name in dict.fromkeys([*certificates, *preferred, *plain])]


def accept(path: Path, target: Target, key: asyncssh.SSHKey) -> None:
    """Append ``key`` for ``target`` to the known_hosts file at ``path`` (made 0600, its folder 0700, if missing).

    One locked append, so that several processes that accept at once each leave a whole line. Raises OSError.
    """
    public = key.export_public_key("openssh").decode("ascii").strip()
    line = f"{target.entry} {public}\n".encode()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        content = file.read()
        if line in content:
            return
        file.write((b"\n" if content and not content.endswith(b"\n") else b"") + line)


def _entry(name: str, port: int) -> str:
    return name if port == DEFAULT_PORT else f"[{name}]:{port}"
