"""Finds the private keys that a login offers, and explains why others could not be used."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import asyncssh

from hetero_tui.errors import AuthenticationFailed, HostError
from hetero_tui.transport.failures import Place

_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")


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


async def resolve(common: dict[str, Any]) -> asyncssh.SSHClientConnectionOptions:
    """The options of a connection with ssh_config read; ``common`` gets the keys to use where ssh_config needs help.

    ssh passes over an IdentityFile that does not exist, asyncssh gives up: then the existing ones are named.
    """
    options: asyncssh.SSHClientConnectionOptions
    try:
        options = await asyncssh.SSHClientConnectionOptions.construct(**common)
    except FileNotFoundError:
        if "client_keys" in common:
            raise
    else:
        return options
    without = await asyncssh.SSHClientConnectionOptions.construct(**common, client_keys=None)
    existing = [path for path in _configured(without) if path.is_file()]
    common |= {"client_keys": [str(path) for path in existing], "ignore_encrypted": True}
    options = await asyncssh.SSHClientConnectionOptions.construct(**common)
    return options


def offered(identity_file: str | None, options: asyncssh.SSHClientConnectionOptions) -> str:
    """Which keys are offered, for people: file names, those that need a passphrase, and the agent."""
    if identity_file is not None:
        names = [Path(identity_file)]
    else:
        names = _configured(options) or [Path.home() / ".ssh" / name for name in _DEFAULT_KEYS]
    shown = [f"{path}{_needs_passphrase(path)}" for path in names if path.is_file()]
    if options.agent_path:
        shown.append("the SSH agent's keys")
    return ", ".join(shown)


def _configured(options: asyncssh.SSHClientConnectionOptions) -> list[Path]:
    names = options.config.get("IdentityFile", ())
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
