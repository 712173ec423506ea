"""Defines the keys of an inventory; values are frozen and already merged with ``defaults``."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from remote_agent.device_kinds import NUMBERED, TORCH_NAMES

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
"""A host's or cluster's name: part of folder names and of Ray labels, so lower case, digits and inner dashes."""

DeviceName = Annotated[str, StringConstraints(pattern=rf"^(cpu|{'|'.join(TORCH_NAMES)}|({'|'.join(NUMBERED)}):\d+)$")]


Jump = re.compile(r"^(?:(?P<user>[^\s:,]+)@)?(?P<address>[^\s@:,\[\]]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?$")
"""A jump host that the inventory does not name: ``[user@]host[:port]``, as in OpenSSH's ProxyJump."""


_NEVER_IN_ADDRESSES = re.compile(r"[/\\,;|&<>*?$\"'\u2018\u2019\u201c\u201d]")
"""Signs of patterns, shells and word processors; neither a name nor ssh's own configuration has them in a host."""


def _word(value: str) -> str:
    """A value that ends up in a connection or on a command line: something, in one piece, and no option."""
    if not value:
        raise ValueError("it is empty")
    if value != value.strip() or not value.isprintable():
        raise ValueError("it has blanks around it, or characters in it that can't be seen")
    if value.startswith("-"):
        raise ValueError("it may not start with a dash")
    return value


def _address(value: str) -> str:
    _word(value)
    if any(character.isspace() for character in value):
        raise ValueError("an address has no blanks")
    if "@" in value:
        raise ValueError("the address holds a user; write it as `user: ...`")
    if "://" in value:
        raise ValueError("an address is no URL: write the host's name or IP address alone")
    if "[" in value:
        raise ValueError("write an IPv6 address without brackets, and a port as `port: ...`")
    if value.count(":") == 1:
        raise ValueError("the address holds a port; write it as `port: ...`")
    if strange := _NEVER_IN_ADDRESSES.search(value):
        raise ValueError(f"an address has no {strange[0]!r}")
    return value


def _jump(value: str) -> str:
    if not Jump.match(_word(value)):
        raise ValueError("it should be a host of this inventory, or [user@]host[:port]")
    return value


def _devices(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("the list is empty; `role: server` is for a host that does not train")
    if len(set(value)) != len(value):
        raise ValueError("a device is named twice")
    return value


Word = Annotated[str, AfterValidator(_word)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Host(_Model):
    """One machine. Only ``name`` and, unless the connection is local, ``address`` are needed."""

    name: Name = Field(description="Its name in the inventory.")
    address: Annotated[str, AfterValidator(_address)] | None = Field(
        default=None, description="Host name or IP address, or a Host of ~/.ssh/config."
    )
    connection: Literal["ssh", "local"] = Field(default="ssh", description="local: this computer, without SSH.")
    port: int | None = Field(default=None, ge=1, le=65535, description="SSH port; ~/.ssh/config's or 22 if not given.")
    user: Word | None = Field(default=None, description="Login; ~/.ssh/config's or your own name if not given.")
    identity_file: Word | None = Field(
        default=None, description="Private key; the agent and the usual keys if not given."
    )
    proxy_jump: Annotated[str, AfterValidator(_jump)] | None = Field(
        default=None, description="A host of this inventory, or [user@]host[:port], to go through."
    )
    known_hosts: Word | None = Field(default=None, description="known_hosts file; ~/.ssh/known_hosts if not given.")
    python: Word | None = Field(default=None, description="A ready Python with ray and torch on the host.")
    devices: Annotated[tuple[DeviceName, ...], AfterValidator(_devices)] | None = Field(
        default=None, description="Devices that may train; all if not given."
    )
    max_batch: int | None = Field(default=None, ge=1, description="Most samples of one step on each of its devices.")
    cpus: int | None = Field(default=None, ge=1, description="CPU slots that Ray may use; all if not given.")
    role: Literal["any", "worker", "server"] = Field(default="any", description="worker trains, server holds weights.")


class Inventory(_Model):
    """A cluster and its hosts, in the file's order."""

    cluster: Name = "hetero"
    head: str | None = None
    security: Literal["token", "tls"] = Field(
        default="token", description="tls: weights and gradients are encrypted too, and not Ray's connections alone."
    )
    network: Literal["direct", "wireguard"] = Field(
        default="direct", description="wireguard: the hosts are connected by a network of their own, encrypted."
    )
    hosts: tuple[Host, ...] = ()

    @property
    def meshed(self) -> bool:
        """Whether the hosts reach each other in a WireGuard network of the cluster's own."""
        return self.network == "wireguard"

    @property
    def encrypted(self) -> bool:
        """Whether all that the hosts send each other has to be under TLS, and not Ray's alone."""
        return self.security == "tls"

    def host(self, name: str) -> Host | None:
        """The host of that name, or None."""
        return next((host for host in self.hosts if host.name == name), None)
