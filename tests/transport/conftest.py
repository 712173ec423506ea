"""SSH servers to test against: the embedded one and a real OpenSSH sshd, behind one small interface."""

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.inventory import Host, Inventory
from hetero_tui.transport.ssh import SshTransport
from tests.lab.conftest import REQUIRED

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
USER = pwd.getpwuid(os.getuid()).pw_name


@dataclass
class Server:
    """One SSH server: its entry in the inventory, and how it is stopped and started again."""

    kind: str
    host: Host
    home: Path
    stop: Callable[[], Awaitable[None]]
    start: Callable[[], Awaitable[None]]

    def changed(self, **changes: object) -> Host:
        return self.host.model_copy(update=changes)


def wait_for_banner(port: int) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), 30)
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.01)
            continue
        with connection:
            assert connection.recv(4) == b"SSH-"
        return


class OpenSsh:
    """A real sshd as a child of this process, on a high port of 127.0.0.1."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        self.folder = folder
        for name in ("host_key", "client_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        public = (folder / "host_key.pub").read_text().split(" ")[:2]
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {' '.join(public)}\n")
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/client_key.pub\nStrictModes no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 100\n{extra}"
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> Host:
        return Host(
            name="real",
            address="127.0.0.1",
            port=self.port,
            user=USER,
            identity_file=str(self.folder / "client_key"),
            known_hosts=str(self.folder / "known_hosts"),
        )

    async def start(self) -> None:
        await asyncio.to_thread(self.begin)

    async def stop(self) -> None:
        await asyncio.to_thread(self.end)

    async def configure(self, lines: str) -> None:
        """Start again with further settings; the first of two of a kind counts."""
        config = self.folder / "sshd_config"
        config.write_text(f"{lines}\n{config.read_text()}")
        await self.stop()
        await self.start()

    def begin(self) -> None:
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        assert SSHD is not None
        with (self.folder / "log").open("ab") as log:
            command = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self.process = subprocess.Popen(command, stderr=log, start_new_session=True)
        wait_for_banner(self.port)

    def end(self) -> None:
        """Also ends its connections: they are children of the listener, in sessions of their own."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name().startswith("sshd"):
                    child.kill()


def check_installed() -> None:
    """Where the lab is required (CI), so is its SSH server."""
    if SSHD is None and os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but no sshd is installed here")
    if SSHD is None:
        pytest.skip("no sshd is installed here")


@pytest.fixture
async def openssh(tmp_path: Path) -> AsyncIterator[OpenSsh]:
    check_installed()
    server = OpenSsh(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSsh]:
    """For tests that leave its files alone: they differ in what they ask of it."""
    check_installed()
    server = OpenSsh(tmp_path_factory.mktemp("sshd"))
    server.begin()
    yield server
    server.end()


@pytest.fixture(params=["embedded", "openssh"])
async def server(request: pytest.FixtureRequest, short_folder: Path) -> AsyncIterator[Server]:
    """Each test that asks for it runs twice: on an embedded machine and on OpenSSH."""
    if request.param == "embedded":
        async with EmbeddedMachines(short_folder, speeds=(1.0,)) as machines:
            machine = machines.machines[0]
            host = Host(
                name="real",
                address=machine.address,
                port=machine.port,
                user=USER,
                identity_file=str(machines.identity_file),
                known_hosts=str(machines.known_hosts),
            )
            yield Server(
                "embedded",
                host,
                machine.home,
                lambda: machines.unplug(machine.name),
                lambda: machines.plug_in(machine.name),
            )
        return
    real: OpenSsh = request.getfixturevalue("common")
    assert real.process is not None
    if real.process.poll() is not None:
        await real.start()  # a test that stopped it failed
    yield Server("openssh", real.host, Path(pwd.getpwuid(os.getuid()).pw_dir), real.stop, real.start)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., SshTransport]]:
    """Makes transports that are closed after the test; ssh_config is none unless given."""
    made: list[SshTransport] = []

    def make(host: Host, *others: Host, accept: bool = False, config: tuple[Path, ...] = ()) -> SshTransport:
        inventory = Inventory(hosts=(host, *others))
        made.append(SshTransport(host, inventory, accept_new_host_keys=accept, config=config))
        return made[-1]

    yield make
    for transport in made:
        await transport.close()
