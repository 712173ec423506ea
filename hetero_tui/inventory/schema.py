"""What an inventory holds; see README for the file. Values are frozen and already merged with ``defaults``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
"""A host's or cluster's name: part of folder names and of Ray labels, so lower case, digits and inner dashes."""

DeviceName = Annotated[str, StringConstraints(pattern=r"^(cpu|mps|cuda(:\d+)?)$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Host(_Model):
    """One machine. Only ``name`` and, unless the connection is local, ``address`` are needed."""

    name: Name = Field(description="Its name in the inventory.")
    address: str | None = Field(default=None, description="Host name or IP address, or a Host of ~/.ssh/config.")
    connection: Literal["ssh", "local"] = Field(default="ssh", description="local: this computer, without SSH.")
    port: int | None = Field(default=None, ge=1, le=65535, description="SSH port; ~/.ssh/config's or 22 if not given.")
    user: str | None = Field(default=None, description="Login; ~/.ssh/config's or your own name if not given.")
    identity_file: str | None = Field(
        default=None, description="Private key; the agent and the usual keys if not given."
    )
    proxy_jump: str | None = Field(
        default=None, description="A host of this inventory, or [user@]host[:port], to go through."
    )
    known_hosts: str | None = Field(default=None, description="known_hosts file; ~/.ssh/known_hosts if not given.")
    python: str | None = Field(default=None, description="A ready Python with ray and torch on the host.")
    devices: tuple[DeviceName, ...] | None = Field(
        default=None, description="Devices that may train; all if not given."
    )
    max_batch: int | None = Field(default=None, ge=1, description="Most samples of one step on each of its devices.")
    cpus: int | None = Field(default=None, ge=1, description="CPU slots that Ray may use; all if not given.")
    role: Literal["any", "worker", "server"] = Field(default="any", description="worker trains, server holds weights.")


class Inventory(_Model):
    """A cluster and its hosts, in the file's order."""

    cluster: Name = "hetero"
    head: str | None = None
    security: Literal["token", "tls"] = "token"
    hosts: tuple[Host, ...] = ()

    def host(self, name: str) -> Host | None:
        """The host of that name, or None."""
        return next((host for host in self.hosts if host.name == name), None)
