"""The lab's machines: hosts that run a real OpenSSH server, and the laptop that the product is started on.

A host has its own process, network, mount and host name space. The first process in them is its SSH server; when that
ends, the kernel ends everything else on the host, as a power cut does. The laptop has no process of its own: each
command brings its mounts along, so that the PID that a test sees is the product's own and can be killed.
"""

from __future__ import annotations

import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.lab import disks, mounts, network
from tests.lab.network import LabError

PROGRAM_DEADLINE = 600.0
"""Seconds for a command on a machine when the test names no other."""

END_DEADLINE = 60.0
"""Seconds for the processes of a machine to be gone after SIGKILL."""

SSH_PORT = 22
_LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HostProcess(NamedTuple):
    """A process on a host: its PID as the host counts, and the words of its command line that are not empty."""

    pid: int
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HostSpec:
    """What a host of the lab is to be.

    ``rate_mbit`` is its link's speed in Mbit/s (None: the lab's own). ``simulated_speed`` is set in the environment of
    everything that starts there. ``cpus`` goes into the inventory. Without ``has_python``, none can be found there.
    With ``disk_mb`` the home folder is on a disk of its own, of that size. ``server`` are lines of its sshd_config that
    win over the lab's own, ``files`` the contents of files in its home folder, and ``arrange`` is run by a shell on it,
    as root, before its SSH server starts.
    """

    name: str
    rate_mbit: float | None = None
    simulated_speed: float | None = None
    cpus: int | None = None
    has_python: bool = True
    disk_mb: int | None = None
    server: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    arrange: str = ""


def login() -> pwd.struct_passwd:
    """The user who runs the lab and logs in on its hosts."""
    return pwd.getpwuid(os.getuid())


class Machine:
    """What a host and the laptop have in common: a folder, a name space, a cable and an address."""

    def __init__(
        self,
        *,
        name: str,
        run: str,
        number: int,
        address: str,
        rate_mbit: float | None,
        folder: Path,
        shared: bool = False,
    ) -> None:
        self.name = name
        self._shared = shared
        self.address = address
        self.rate_mbit = rate_mbit
        self.folder = folder
        self.namespace = f"{run}-{name}"
        self._switch = f"{run}-{network.BRIDGE}"
        self._port = f"port{number}"
        for part in ("home/.ssh", "tmp", "empty", "etc"):
            (folder / part).mkdir(parents=True)
        (folder / "home/.ssh").chmod(0o700)
        (folder / "tmp").chmod(0o1777)

    @property
    def home(self) -> Path:
        """The machine's home folder, as this computer sees it."""
        return self.folder / "home"

    def plug_in(self) -> None:
        """Make the machine's name space and lay its cable."""
        network.add_namespace(self.namespace)
        network.connect(
            self._switch,
            self.namespace,
            port=self._port,
            address=self._with_prefix,
            rate_mbit=self.rate_mbit,
            shared=self._shared,
        )

    @property
    def _with_prefix(self) -> str:
        return f"{self.address}/{64 if ':' in self.address else 24}"

    def move(self, address: str) -> None:
        """Give the machine another address, as a router may do; nothing that runs on it is told."""
        self.address = address
        if self.namespace in network.namespaces(self.namespace):
            network.readdress(self.namespace, self._with_prefix)

    def cut(self) -> None:
        """Pull the network cable: from now on there is silence in both directions."""
        network.set_port(self._switch, self._port, up=False)

    def mend(self) -> None:
        """Plug the network cable in again."""
        network.set_port(self._switch, self._port, up=True)

    def lose(self, *, into: str = "", out: str = "") -> None:
        """Lose packets that match an expression of nft's, of those to the machine and of those from it; "": none."""
        network.drop(self.namespace, network.INTERFACE, into)
        network.drop(self._switch, self._port, out)

    def narrow(self, rate_mbit: float | None) -> None:
        """Have the cable carry so many Mbit/s in each direction; None: as many as before."""
        network.shape(self._switch, self.namespace, self._port, rate_mbit or self.rate_mbit or 10_000.0)


class Host(Machine):
    """A machine with an SSH server; see :class:`HostSpec`."""

    def __init__(
        self,
        spec: HostSpec,
        *,
        run: str,
        number: int,
        address: str,
        folder: Path,
        rate_mbit: float | None,
        shared: bool = False,
    ) -> None:
        rate = spec.rate_mbit if spec.rate_mbit is not None else rate_mbit
        super().__init__(
            name=spec.name, run=run, number=number, address=address, rate_mbit=rate, folder=folder, shared=shared
        )
        self.spec = spec
        if spec.disk_mb is not None:
            disks.add(folder / "disk", self.home, spec.disk_mb)
            (self.home / ".ssh").mkdir(0o700)
        for name, text in spec.files.items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(text)
            (self.home / name).chmod(0o700)
        self._outer: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Connect the host and start its SSH server; :meth:`Lab.await_hosts` tells when it answers."""
        if self._outer is not None:
            raise LabError(f"{self.name} is already running")
        self.plug_in()
        user = login()
        script = mounts.script(
            folder=self.folder,
            home=Path(user.pw_dir),
            hostname=self.name,
            is_host=True,
            has_python=self.spec.has_python,
            arrange=self.spec.arrange,
        )
        # setpriv: should the tests be killed with SIGKILL, no host outlives them.
        outer = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.namespace]
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--mount-proc"]
        server = [_sshd(), "-D", "-e", "-f", str(self.folder / "etc/sshd_config")]
        with (self.folder / "sshd.log").open("ab") as log:
            self._outer = subprocess.Popen(
                [*outer, *apart, "sh", "-c", script, "host", *server],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": _SYSTEM_PATH, "HOME": user.pw_dir, "LANG": "C.UTF-8"},
                cwd="/",
            )

    @property
    def is_on(self) -> bool:
        """Whether it was booted and not switched off."""
        return self._outer is not None

    def pull_plug(self) -> None:
        """Cut the power: the host falls silent at once, its processes and memory are gone, its disk stays."""
        if self._outer is None:
            raise LabError(f"{self.name} is not running")
        self.cut()  # first, so that no process says goodbye
        self._end_processes()
        network.disconnect(self._switch, self._port)
        network.delete_namespace(self.namespace)

    def shut_down(self) -> None:
        """End everything on the host and remove its name space; idempotent."""
        if self._outer is not None:
            self._end_processes()
        network.delete_namespace(self.namespace)
        disks.remove(self.home)

    def _end_processes(self) -> None:
        assert self._outer is not None
        waiting = []
        for pid in self._pids():
            with suppress(ProcessLookupError):  # it ended while we looked
                waiting.append(os.pidfd_open(pid))
        self._outer.kill()
        try:
            self._outer.wait(END_DEADLINE)
            for descriptor in waiting:
                if not select.select([descriptor], [], [], END_DEADLINE)[0]:
                    raise LabError(f"{self.name}: a process outlived SIGKILL by {END_DEADLINE:g} s")
        finally:
            for descriptor in waiting:
                os.close(descriptor)
        self._outer = None

    @property
    def log(self) -> str:
        """What the host's SSH server has written so far."""
        return (self.folder / "sshd.log").read_text(errors="replace")

    def exec(
        self, argv: Sequence[str], *, deadline: float = PROGRAM_DEADLINE, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, as its user at its console would; the exit status is not checked."""
        user = login()
        environment = {"HOME": user.pw_dir, "USER": user.pw_name, "PATH": _SYSTEM_PATH, "LANG": "C.UTF-8"}
        enter = ["nsenter", "--target", str(self._init()), "--net", "--mount", "--uts", "--pid", f"--wd={user.pw_dir}"]
        return subprocess.run(
            [*enter, "--", *argv],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
            input=stdin if stdin is not None else "",
            env=environment,
        )

    def processes(self) -> tuple[HostProcess, ...]:
        """All processes that live on the host, apart from its SSH server and its sessions.

        It is looked twice, and who is there both times counts: one that starts another is there as a copy of itself for
        a moment, before the copy becomes the other.
        """
        found = self._look()
        return tuple(one for one in self._look() if one in found) if found else ()

    def _look(self) -> tuple[HostProcess, ...]:
        found: list[HostProcess] = []
        for pid in self._pids():
            try:
                process = psutil.Process(pid)
                if process.status() == psutil.STATUS_ZOMBIE or Path(process.exe()).name in ("sshd", "sshd-session"):
                    continue
                argv = tuple(word for word in process.cmdline() if word)
                if argv:  # one that ends right now has let go of its memory, and of its command line with it
                    found.append(HostProcess(_pid_on_host(pid), argv))
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
        return tuple(found)

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process of the host, by its PID there."""
        done = self.exec(["kill", f"-{number.value}", str(pid)])
        if done.returncode != 0:
            raise LabError(f"{self.name}: {done.stderr.strip()}")

    def suspend(self, *, asleep: bool) -> None:
        """Stop everything on the host, its SSH server too, as a machine that falls asleep; or let it go on."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if asleep else signal.SIGCONT)

    def listening_ports(self) -> frozenset[int]:
        """TCP ports that anything but the SSH server listens on, on any address of the host."""
        ports: set[int] = set()
        for table in ("tcp", "tcp6"):
            lines = Path(f"/proc/{self._init()}/net/{table}").read_text().splitlines()[1:]
            fields = [line.split() for line in lines]
            ports |= {int(row[1].rpartition(":")[2], 16) for row in fields if row[3] == _LISTEN}
        return frozenset(ports - {SSH_PORT})

    def _init(self) -> int:
        """PID of the host's first process, as this computer counts."""
        if self._outer is None:
            raise LabError(f"{self.name} is not running")
        children = psutil.Process(self._outer.pid).children()
        if not children:
            raise LabError(f"{self.name} has ended: {self.log[-500:]}")
        return int(children[0].pid)

    def _pids(self) -> tuple[int, ...]:
        """PIDs, as this computer counts, of all processes in the host's process name space."""
        space = _process_namespace(self._init())
        return tuple(pid for pid in psutil.pids() if space is not None and _process_namespace(pid) == space)

    def write_server_config(self, *, host_key: Path, authorized_keys: Path) -> None:
        """Write the SSH server's configuration; :meth:`boot` reads it."""
        lines = [
            f"Port {SSH_PORT}",
            f"HostKey {host_key}",
            f"AuthorizedKeysFile {authorized_keys}",
            f"AllowUsers {login().pw_name}",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "StrictModes no",
            "UsePAM no",
            "UseDNS no",
            "PrintMotd no",
            "PrintLastLog no",
            "PidFile none",
            "MaxStartups 100",
            "MaxSessions 100",
            "Subsystem sftp internal-sftp",
        ]
        chosen = {line.split()[0] for line in self.spec.server}
        lines = [*self.spec.server, *(line for line in lines if line.split()[0] not in chosen)]
        if self.spec.simulated_speed is not None:
            lines.append(f"SetEnv HETERO_TUI_SIMULATED_SPEED={self.spec.simulated_speed:g}")
        (self.folder / "etc/sshd_config").write_text("\n".join(lines) + "\n")


class Laptop(Machine):
    """The machine that the product is started on, with a home folder and a key of its own."""

    def __init__(self, *, run: str, number: int, address: str, folder: Path, rate_mbit: float | None) -> None:
        super().__init__(name="laptop", run=run, number=number, address=address, rate_mbit=rate_mbit, folder=folder)

    def popen(self, argv: Sequence[str], **extra: object) -> subprocess.Popen[str]:
        """Start a command on the laptop; ``extra`` environment variables by name. Its PID is the command's own.

        Standard input is empty; standard output and error are pipes of text.
        """
        user = login()
        environment = {
            "HOME": user.pw_dir,
            "USER": user.pw_name,
            "LOGNAME": user.pw_name,
            "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(mounts.REPOSITORY),  # this checkout's, wherever the environment's own leads
        } | {name: str(value) for name, value in extra.items()}
        script = mounts.script(
            folder=self.folder,
            home=Path(user.pw_dir),
            hostname=self.name,
            is_host=False,
            fresh_memory=False,
        )
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--uts", "sh", "-c", script, "laptop"]
        return subprocess.Popen(
            [*enter, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )

    def run(
        self, argv: Sequence[str], *, deadline: float = PROGRAM_DEADLINE, **extra: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the laptop to its end; the exit status is not checked.

        Raises:
            LabError: it took longer than ``deadline`` seconds; the message ends with what it had written.
        """
        with self.popen(argv, **extra) as process:
            try:
                stdout, stderr = process.communicate(timeout=deadline)
            except subprocess.TimeoutExpired:
                process.kill()
                stdout, stderr = process.communicate()
                words = " ".join(argv)
                raise LabError(f"{words} took more than {deadline:g} s\n{stdout[-2000:]}\n{stderr[-2000:]}") from None
        return subprocess.CompletedProcess(list(argv), process.returncode, stdout, stderr)

    def shut_down(self) -> None:
        """End everything that was started on the laptop and remove its name space; idempotent."""
        if self.namespace in network.namespaces(self.namespace):
            left = []
            for pid in network.processes_in(self.namespace):
                with suppress(psutil.NoSuchProcess):  # it ended while we looked
                    left.append(psutil.Process(pid))
                    left[-1].kill()
            _, alive = psutil.wait_procs(left, timeout=END_DEADLINE)
            if alive:
                raise LabError(f"laptop: {alive} outlived SIGKILL by {END_DEADLINE:g} s")
        network.delete_namespace(self.namespace)


def _sshd() -> str:
    found = shutil.which("sshd", path=_SYSTEM_PATH)
    if found is None:
        raise LabError("no sshd on this computer: install the package openssh-server")
    return found


def _process_namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it ended, or is not ours to look at
        return None


def _pid_on_host(pid: int) -> int:
    """The innermost of a process's PIDs: the one that it has in its own name space."""
    status = Path(f"/proc/{pid}/status").read_text()
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(numbers.split()[-1])
