"""Says which ports of other machines this one can connect to, and lets them try its own: measured, before Ray starts.

One file, the standard library only: it is sent as an argument, before anything else of ours is on a machine::

    python3 -c "$(cat reach.py)" SECONDS

It listens where Ray and training would, and prints a :class:`remote_agent.protocol.Listening`. Then comes one line on
stdin, the ``doors`` of the others (a list of address, port and word), and a :class:`remote_agent.protocol.Reached` goes
back: what became of each, an attempt having SECONDS. Who connects is sent this process's word, a random one, so that
a machine that another one's address leads to is told from the right one. Further lines, an object with ``send`` (a door
of another) and ``seconds``, have it send zeros there for so long, while another host does so to this one; each is
answered with a :class:`remote_agent.protocol.Received`. It ends when stdin does, or is silent for :data:`SILENCE`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HEAD_PORTS, WORKER_PORTS = range(6389, 6399), range(10002, 20000)
"""Where the head's control service and Ray's workers listen.

Everything else takes a port that the kernel gives: Ray's node and object managers and its metrics, and in training the
wire of workers and servers, gloo, and the place where members of a group meet.
"""

KERNEL_PORTS = 2
"""How many of these are tried, beside the first and the last of them that is free."""

_KERNELS_RANGE = (49152, 65535)
"""Where nothing tells which ports the kernel gives: RFC 6335's, and macOS's."""

NO_ANSWER, REFUSED, NO_ROUTE, ANOTHER = "no answer", "refused", "no route", "another machine answers there"
SILENCE = 60.0
"""Seconds without a line after which the laptop is gone: a connection whose address is gone stays open for hours."""

_PIECE = 1 << 18
_SETTLING = 0.3  # seconds of a transfer that do not count: TCP finds the link's rate
_WORD_BYTES = 16
_EXTRA_PATH = ("/usr/sbin", "/sbin", "/usr/local/sbin")


def listen(ports: Sequence[int]) -> socket.socket | None:
    """A socket that listens on the first of these ports that is free, on every address; None: none is."""
    for port in ports:
        for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
            try:
                server = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # this machine has no IPv6
            try:
                if family == socket.AF_INET6:
                    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                if sys.platform == "linux":  # elsewhere this option lets two sockets share a port
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((everywhere, port))
                server.listen(128)
            except OSError:
                server.close()
                continue
            return server
    return None


def kernel_ports(path: str = "/proc/sys/net/ipv4/ip_local_port_range") -> range:
    """The ports that the kernel gives to those who name none."""
    first, last = _KERNELS_RANGE
    with contextlib.suppress(OSError, ValueError):
        first, last = map(int, Path(path).read_text(encoding="ascii").split())
    return range(first, last + 1)


def active_firewall(path: str, root: Path = Path("/")) -> str:
    """The program that sets the firewall that is active, as far as a user who is not root can tell.

    Ubuntu has ufw, which is off at first, and others have several programs. Rules can't be read without root, so where
    neither ufw nor firewalld is active and no service loads rules for nft, iptables is named, which many tools use.
    """

    def matches(pattern: str, place: str) -> bool:
        for file in root.glob(place):
            with contextlib.suppress(OSError):  # a process that has ended
                if re.search(pattern, file.read_text(errors="replace"), re.MULTILINE):
                    return True
        return False

    if matches("microsoft.*WSL2", "proc/sys/kernel/osrelease"):  # Windows stands between it and the network
        return "wsl"
    if matches("^ENABLED=yes$", "etc/ufw/ufw.conf"):
        return "ufw"
    if matches("^firewalld$", "proc/[0-9]*/comm"):
        return "firewall-cmd"
    if any(root.glob("etc/systemd/system/*.wants/nftables.service")):
        return "nft"
    return next((name for name in ("iptables", "nft") if shutil.which(name, path=path)), "")


async def attempt(address: str, port: int, word: str, seconds: float) -> str:
    """What became of one connection: empty where it led to the process with that word."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), seconds)
    except TimeoutError:
        return NO_ANSWER
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return REFUSED
        return NO_ROUTE if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES) else str(error)
    try:
        said = await asyncio.wait_for(reader.read(2 * _WORD_BYTES), seconds)
    except (TimeoutError, OSError):
        return NO_ANSWER
    finally:
        writer.close()
    return "" if said.decode("ascii", "replace") == word else ANOTHER


async def receive(reader: asyncio.StreamReader) -> float:
    """Read to the end: bytes per second that came, once they had settled; 0: too few to tell."""
    first = since = last = 0.0
    count = 0
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            last = time.monotonic()
            first = first or last
            if since:
                count += len(piece)
            elif last - first >= _SETTLING:
                since = last
    return count / (last - since) if count else 0.0


async def send(address: str, port: int, word: str, seconds: float) -> None:
    """Send zeros to the process with that word for so long; nothing where it is another one, or not to be reached."""
    with contextlib.suppress(OSError, TimeoutError):
        reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), seconds)
        try:
            said = await asyncio.wait_for(reader.read(2 * _WORD_BYTES), seconds)
            ends = time.monotonic() + seconds
            while said.decode("ascii", "replace") == word and time.monotonic() < ends:
                writer.write(bytes(_PIECE))
                await asyncio.wait_for(writer.drain(), seconds)
        finally:
            writer.transport.abort()  # what a slow link has not taken yet is of no interest


async def heard(stdin: asyncio.StreamReader) -> bytes:
    """The laptop's next line; empty once it is gone."""
    try:
        return await asyncio.wait_for(stdin.readline(), SILENCE)
    except TimeoutError:
        return b""


def say(**words: object) -> None:
    """Print one line."""
    print(json.dumps(words), flush=True)


async def main(seconds: float) -> None:
    """See the module's docstring."""
    word = os.urandom(_WORD_BYTES).hex()
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(word.encode())
        rate = await receive(reader)
        if rate:
            arrived.put_nowait(rate)
        writer.close()

    wanted: list[Sequence[int]] = [HEAD_PORTS]
    for ports in (WORKER_PORTS, kernel_ports()):
        wanted += [ports, ports[len(ports) // 2 :], ports[::-1]]
    wanted += [[0]] * KERNEL_PORTS
    listening = [server for server in map(listen, wanted) if server is not None]
    for server in listening:
        await asyncio.start_server(answer, sock=server, limit=4 * _PIECE)
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_EXTRA_PATH))
    firewall = "macos" if sys.platform == "darwin" else active_firewall(path)
    say(reach="listening", word=word, ports=[server.getsockname()[1] for server in listening], firewall=firewall)
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while line := await heard(stdin):
        asked = json.loads(line)
        if isinstance(asked, list):
            found = await asyncio.gather(*(attempt(address, port, word, seconds) for address, port, word in asked))
            say(reach="tried", outcomes=found)
            continue
        while not arrived.empty():  # of the round before
            arrived.get_nowait()
        address, port, theirs = asked["send"]
        await send(address, port, theirs, asked["seconds"])
        rate = 0.0
        with contextlib.suppress(TimeoutError):
            rate = await asyncio.wait_for(arrived.get(), seconds)
        say(reach="received", rate=rate)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
