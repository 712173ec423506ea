"""Finds the private keys that a login offers, and explains why others could not be used."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import asyncssh

from hetero_tui.errors import AuthenticationFailed, HostError
from hetero_tui.transport.failures import Place
from hetero_tui.transport.processes import spawn

_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
_AS_THEY_ARE = ("userknownhostsfile", "globalknownhostsfile", "proxycommand")
_TOLD = (
    *("hostname", "user", "port", "addressfamily", "bindaddress", "hostkeyalias", "proxyjump"),
    *("identityfile", "certificatefile", "identitiesonly", "identityagent", *_AS_THEY_ARE),
)
"""What `ssh -G` prints and a connection needs; the values of some are lists of words, and so not put in quotes."""


def explicit(name: str, place: Place) -> dict[str, Any]:
    """An explicit key is the only one offered (as with IdentitiesOnly).

    For one behind a passphrase, or on a security key (FIDO), the agent signs if it has it.

    Raises:
        AuthenticationFailed: the file is missing, or is no private key.
    """
    path = Path(name).expanduser()
    if path.exists() and not path.is_file():  # reading a pipe would wait without end
        cause, hint = f"identity_file {path} is no file", "correct `identity_file` in the inventory"
        raise AuthenticationFailed(place.host, cause, step=place.step, hint=hint)
    try:
        if not _is_on_security_key(asyncssh.read_private_key(path)):
            return {"client_keys": [str(path)], "agent_path": None}  # by its path: so its certificate is found, too
    except OSError as error:
        cause = f"identity_file {path} can't be read: {error.strerror}"
        raise AuthenticationFailed(
            place.host, cause, step=place.step, hint="correct `identity_file` in the inventory"
        ) from None
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        if "passphrase" not in str(error).lower() and not isinstance(error, asyncssh.KeyEncryptionError):
            cause = f"identity_file {path} is not a private key"
            hint = "name the private key, not the .pub file"
            raise AuthenticationFailed(place.host, cause, step=place.step, hint=hint) from None
    # Named all the same: without any, the default keys would be offered in its place.
    only = {"client_keys": [str(path)], "ignore_encrypted": True}
    identities: list[asyncssh.SSHKey | asyncssh.SSHCertificate] = []
    for read, end in ((asyncssh.read_public_key, ".pub"), (asyncssh.read_certificate, "-cert.pub")):
        with contextlib.suppress(OSError, asyncssh.KeyImportError):
            identities.append(read(path.with_name(path.name + end)))
    return only | ({"agent_identities": identities} if identities else {})


def check_config(paths: tuple[Path, ...] | None, place: Place) -> None:
    """Refuse an ssh_config that asyncssh would wait for without end, or not say what is wrong with.

    Raises:
        HostError: it is no file, or no text.
    """
    for path in [Path.home() / ".ssh/config"] if paths is None else paths:
        if not path.exists():
            continue
        if not path.is_file():
            raise HostError(place.host, f"{path} is no file", step=place.step, hint="make it one, or take it away")
        try:
            text = path.read_bytes()
            text.decode()
        except OSError as error:
            cause = f"{path} can't be read: {error.strerror}"
            raise HostError(place.host, cause, step=place.step, hint="look at its owner and mode") from None
        except UnicodeDecodeError as error:
            cause = f"{path}, line {text[: error.start].count(10) + 1} is no text in UTF-8"
            raise HostError(place.host, cause, step=place.step, hint="save it as UTF-8") from None


async def resolve(common: dict[str, Any], paths: tuple[Path, ...] | None = None) -> asyncssh.SSHClientConnectionOptions:
    """The options of a connection with ssh_config read (``paths``; None: the user's own).

    ``common`` gets what ssh_config needs help with. OpenSSH knows more of its language than asyncssh does (comments at
    the end of a line, some conditions of `Match`): what asyncssh can't read, `ssh -G` is asked about.
    """
    try:
        return await _resolved(common)
    except asyncssh.ConfigParseError:
        told = await _told_by_openssh(common, paths)
        if not told:
            raise
    with tempfile.NamedTemporaryFile("w", prefix="hetero-tui-", encoding="utf-8") as file:
        file.write(told)
        file.flush()
        common["config"] = [file.name]
        options = await _resolved(common)
    common |= {"options": options, "config": None}
    return options


async def _resolved(common: dict[str, Any]) -> asyncssh.SSHClientConnectionOptions:
    """Passes over keys and certificates that do not exist, as ssh does; asyncssh gives up at the first."""
    options: asyncssh.SSHClientConnectionOptions
    try:
        options = await asyncssh.SSHClientConnectionOptions.construct(**common)
    except FileNotFoundError:
        if "client_keys" in common:
            raise
        without = await asyncssh.SSHClientConnectionOptions.construct(**common, client_keys=None)
        for option, name in (("client_keys", "IdentityFile"), ("client_certs", "CertificateFile")):
            common[option] = [str(path) for path in _configured(without, name) if path.is_file()]
        common["ignore_encrypted"] = True
        options = await asyncssh.SSHClientConnectionOptions.construct(**common)
    agent = str(options.agent_path or "")
    if agent == "SSH_AUTH_SOCK" or agent.startswith("$"):  # ssh_config(5), IdentityAgent: a variable, and no path
        common["agent_path"] = os.environ.get(agent.strip("${}")) or None
        options = await asyncssh.SSHClientConnectionOptions.construct(**common)
    return options


async def _told_by_openssh(common: dict[str, Any], paths: tuple[Path, ...] | None) -> str:
    """What ssh_config says of this host, as lines of one that asyncssh can read; empty: ssh can't read it either."""
    words = ["ssh", "-G"]
    for flag, value in (("-F", paths and paths[0]), ("-p", common.get("port")), ("-l", common.get("username"))):
        words += [flag, str(value)] if value else []
    try:
        async with spawn([*words, "--", str(common["host"])], cwd=Path.home(), env=os.environ) as asked:
            asked.stdin.close()
            said, _, status = await asyncio.gather(asked.stdout.read(), asked.stderr.read(), asked.wait())
    except OSError:  # there is no ssh
        return ""
    if status != 0:
        return ""
    pairs = (line.partition(" ")[::2] for line in said.decode("utf-8", "replace").splitlines())
    quoted = ((key, value if key in _AS_THEY_ARE else f'"{value}"') for key, value in pairs if key in _TOLD)
    return "".join(f"{key} {value}\n" for key, value in quoted)


def offered(identity_file: str | None, options: asyncssh.SSHClientConnectionOptions) -> str:
    """Which keys are offered, for people: file names, those that need a passphrase, and the agent."""
    if identity_file is not None:
        names = [Path(identity_file)]
    else:
        names = _configured(options) or [Path.home() / ".ssh" / name for name in _DEFAULT_KEYS]
    shown = [f"{path}{_needs_passphrase(path)}" for path in names if path.is_file()]
    token = str(options.config.get("PKCS11Provider") or "none")
    if token.lower() != "none":
        shown.append(f"the keys of {token} (run ssh-add -s {token} first)")
    if options.agent_path:
        shown.append("the SSH agent's keys")
    return ", ".join(shown)


def _configured(options: asyncssh.SSHClientConnectionOptions, name: str = "IdentityFile") -> list[Path]:
    names = options.config.get(name, ())
    return [Path(str(name)).expanduser() for name in names] if isinstance(names, list | tuple) else []


def _needs_passphrase(path: Path) -> str:
    try:
        key = asyncssh.read_private_key(path)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
        return f" (behind a passphrase: run ssh-add {path} first)"
    except OSError:
        return " (unreadable)"
    return f" (on a security key: run ssh-add {path} first)" if _is_on_security_key(key) else ""


def _is_on_security_key(key: asyncssh.SSHKey) -> bool:
    """Whether it signs only through FIDO hardware, which OpenSSH's agent can use and asyncssh alone can't."""
    return key.algorithm.startswith(b"sk-")
