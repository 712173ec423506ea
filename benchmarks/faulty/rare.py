"""Faults that no promise names: bad links, processes and machines that stop for a while, and what was deleted.

Each lasts for some seconds, is undone, and has to end with all hosts in the run again.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.faulty.job import WORKER_FILE
from benchmarks.faulty.stage import CLUSTER, Stage
from benchmarks.faulty.strikes import RECOVERED_S, Blow, Strike, well
from remote_agent import protocol
from tests.lab.following import Following, RunError, coordinators, hosts_of
from tests.lab.machines import Host, Machine
from tests.lab.network import INTERFACE, LabError

Undo = Callable[[], None]
Begin = Callable[[Stage, Following], Undo]

EVERYTHING = "meta length > 0"
"""Any packet, for nft."""


def lasting(begin: Begin, seconds: float) -> Strike:
    """A fault that lasts for ``seconds``; then all hosts have to take part again."""

    def strike(stage: Stage, follower: Following, number: int) -> Blow:
        del number
        begun = time.time()
        undo = begin(stage, follower)
        try:
            ends = begun + seconds
            while (left := ends - time.time()) > 0:  # the fault's own length
                time.sleep(min(1.0, left))
                follower.check()
        finally:
            undo()
        ended, seen = time.time(), len(follower.events)
        every = {host.name for host in stage.lab.hosts}
        back = follower.until(protocol.Step, RECOVERED_S, after=seen, having=lambda one: hosts_of(one) == every)
        return Blow(begin=begun, end=well(follower), values={"back": max(0.0, back.time - ended)})

    return strike


def first(stage: Stage, follower: Following) -> Host:
    """The first host that is not the head."""
    return stage.others(follower)[0]


def head(stage: Stage, follower: Following) -> Host:
    """The run's head as it is now."""
    return stage.lab.host(follower.head)


Place = Callable[[Stage, Following], Host]


# --- Links -----------------------------------------------------------------------------------------------------------


def losing(percent: int, place: Place = first) -> Begin:
    """A link that drops so many percent of the packets, each way."""

    def begin(stage: Stage, follower: Following) -> Undo:
        host = place(stage, follower)
        rule = f"numgen random mod 100 < {percent}"
        host.lose(into=rule, out=rule)
        return host.lose

    return begin


def deaf(stage: Stage, follower: Following) -> Undo:
    """A host that sends, and receives nothing."""
    host = first(stage, follower)
    host.lose(into=EVERYTHING)
    return host.lose


def mute(stage: Stage, follower: Following) -> Undo:
    """A host that receives, and whose packets are lost."""
    host = first(stage, follower)
    host.lose(out=EVERYTHING)
    return host.lose


def apart(stage: Stage, follower: Following) -> Undo:
    """Two hosts that both reach the head and the laptop, and not each other."""
    one, other, *_ = stage.others(follower)
    one.lose(into=f"ip saddr {other.address}")
    other.lose(into=f"ip saddr {one.address}")

    def undo() -> None:
        one.lose()
        other.lose()

    return undo


def narrow(stage: Stage, follower: Following) -> Undo:
    """A link that carries 1 Mbit/s from now on."""
    host = first(stage, follower)
    host.narrow(1.0)
    return lambda: host.narrow(None)


def small_packets(stage: Stage, follower: Following) -> Undo:
    """A link that loses what is larger than 1200 bytes, as a tunnel on the way that does not say so."""
    host = first(stage, follower)
    host.lose(into="meta length > 1200", out="meta length > 1200")
    return host.lose


def small_frames(place: Place = first) -> Begin:
    """An interface that takes frames of 576 bytes at most from now on, as on a tunnel's other end."""

    def begin(stage: Stage, follower: Following) -> Undo:
        host = place(stage, follower)
        host.exec(["ip", "link", "set", INTERFACE, "mtu", "576"])
        return lambda: _ignored(host.exec(["ip", "link", "set", INTERFACE, "mtu", "1500"]))

    return begin


def address_lost(stage: Stage, follower: Following) -> Undo:
    """Of a host's two addresses, the one that is used goes away."""
    host = first(stage, follower)
    host.exec(["ip", "address", "add", f"{_further(host)}/24", "dev", INTERFACE])
    host.exec(["ip", "address", "delete", f"{host.address}/24", "dev", INTERFACE])
    # With the first address of a network, Linux removes the others of that network.
    host.exec(["ip", "address", "replace", f"{_further(host)}/24", "dev", INTERFACE])

    def undo() -> None:
        host.exec(["ip", "address", "replace", f"{host.address}/24", "dev", INTERFACE])
        host.exec(["ping", "-c", "1", "-W", "1", stage.lab.laptop.address])  # all learn again whose it is

    return undo


def doubled(stage: Stage, follower: Following) -> Undo:
    """Another host takes the address of one, as a second router may give it away."""
    one, other, *_ = stage.others(follower)
    other.exec(["ip", "address", "add", f"{one.address}/24", "dev", INTERFACE])

    def undo() -> None:
        other.exec(["ip", "address", "delete", f"{one.address}/24", "dev", INTERFACE])
        one.exec(["ping", "-c", "1", "-W", "1", other.address])  # all learn again whose it is

    return undo


def flapping(seconds: float, every: float = 3.0) -> Strike:
    """A cable that is out and in again, each for ``every`` seconds."""

    def strike(stage: Stage, follower: Following, number: int) -> Blow:
        def begin(stage: Stage, follower: Following) -> Undo:
            host = first(stage, follower)
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                for change in (host.cut, host.mend):
                    change()
                    time.sleep(every)  # the fault's own rhythm
                    follower.check()
            return host.mend

        return lasting(begin, 0.0)(stage, follower, number)

    return strike


# --- What stops ------------------------------------------------------------------------------------------------------


def _pids(host: Host, program: str) -> list[int]:
    found = host.processes()
    return [one.pid for one in found if Path(one.argv[0]).name == program or program in one.argv[1:3]]


def _stopped(host: Host, pids: Sequence[int]) -> Undo:
    if not pids:
        raise RunError(f"{host.name}: there is nothing to stop")
    for pid in pids:
        host.signal(pid, signal.SIGSTOP)

    def undo() -> None:
        for pid in pids if host.is_on else ():
            with suppress(LabError):  # it has ended
                host.signal(pid, signal.SIGCONT)

    return undo


def stopping(program: str, place: Place = first) -> Begin:
    """A program of the host's is stopped."""

    def begin(stage: Stage, follower: Following) -> Undo:
        host = place(stage, follower)
        return _stopped(host, _pids(host, program))

    return begin


def ssh_server(stage: Stage, follower: Following) -> Undo:
    """What answers SSH on the head is stopped, with its sessions."""
    host = head(stage, follower)
    return _stopped(host, [int(pid) for pid in host.exec(["pgrep", "sshd"]).stdout.split()])


def worker(stage: Stage, follower: Following) -> Undo:
    """The process that trains on a host is stopped."""
    host = first(stage, follower)
    return _stopped(host, [int((host.home / WORKER_FILE).read_text())])


def coordinator(stage: Stage, follower: Following) -> Undo:
    """The process that coordinates the run is stopped."""
    host = head(stage, follower)
    return _stopped(host, coordinators(host)[-1:])


def asleep(place: Place = first) -> Begin:
    """All of a host is stopped, as by the lid of a laptop; its cable is silent, too."""

    def begin(stage: Stage, follower: Following) -> Undo:
        host = place(stage, follower)
        host.cut()
        host.suspend(asleep=True)

        def undo() -> None:
            host.suspend(asleep=False)
            host.mend()

        return undo

    return begin


def laptop(stage: Stage, follower: Following) -> Undo:
    """The laptop with the command that follows the run sleeps."""
    stage.lab.laptop.cut()
    os.kill(follower.pid, signal.SIGSTOP)

    def undo() -> None:
        os.kill(follower.pid, signal.SIGCONT)
        stage.lab.laptop.mend()

    return undo


def killing(program: str, *places: Place) -> Begin:
    """A program ends on each of these hosts, as the kernel has it end for lack of memory."""

    def begin(stage: Stage, follower: Following) -> Undo:
        for host in [place(stage, follower) for place in places]:
            for pid in _pids(host, program):
                host.signal(pid, signal.SIGKILL)
        return nothing

    return begin


def twice(begin: Begin, seconds: float, pause: float) -> Strike:
    """A fault of so many seconds that comes again after a pause."""

    def strike(stage: Stage, follower: Following, number: int) -> Blow:
        def both(stage: Stage, follower: Following) -> Undo:
            for pause_s in (pause, 0.0):
                undo = begin(stage, follower)
                time.sleep(seconds)  # the fault's own length
                undo()
                time.sleep(pause_s)
                follower.check()
            return nothing

        return lasting(both, 0.0)(stage, follower, number)

    return strike


def full_shared_memory(stage: Stage, follower: Following) -> Undo:
    """No byte is free in /dev/shm of a host."""
    host = first(stage, follower)
    script = "mount -o remount,size=$(($(df --output=used -B1 /dev/shm | tail -1) + 4096)) /dev/shm"
    host.exec(["sh", "-c", script])
    return lambda: _ignored(host.exec(["sh", "-c", "mount -o remount,size=50% /dev/shm"]))


# --- Addresses -------------------------------------------------------------------------------------------------------


def moved(machine: Callable[[Stage, Following], Machine], *, dark: bool = False) -> Begin:
    """A machine has another address from now on; ``dark``: it has no power until then."""

    def begin(stage: Stage, follower: Following) -> Undo:
        found = machine(stage, follower)
        address = _further(found)
        if not dark:
            stage.lab.move(found, address)
            return nothing
        host = first(stage, follower)
        host.pull_plug()

        def undo() -> None:
            stage.lab.move(host, address)
            host.boot()
            stage.lab.await_hosts(host)

        return undo

    return begin


def _further(machine: Machine) -> str:
    before, _, last = machine.address.rpartition(".")
    return f"{before}.{int(last) + 60}"


def the_laptop(stage: Stage, follower: Following) -> Machine:
    """The laptop."""
    return stage.lab.laptop


# --- Several at once -------------------------------------------------------------------------------------------------


def dark(*places: Place) -> Begin:
    """Hosts lose power at the same time, and are switched on again at the end."""

    def begin(stage: Stage, follower: Following) -> Undo:
        hosts = [place(stage, follower) for place in places]
        for host in hosts:
            host.pull_plug()

        def undo() -> None:
            for host in hosts:
                host.boot()
            stage.lab.await_hosts(*hosts)

        return undo

    return begin


def second(stage: Stage, follower: Following) -> Host:
    """The other host that is not the head."""
    return stage.others(follower)[1]


# --- What was deleted ------------------------------------------------------------------------------------------------


def without_agent(place: Place = first) -> Begin:
    """Everything that the product has on a host is deleted."""

    def begin(stage: Stage, follower: Following) -> Undo:
        shutil.rmtree(place(stage, follower).home / ".hetero-tui" / CLUSTER)  # the host's, as this computer sees it
        return nothing

    return begin


def nothing() -> None:
    """What is undone of a fault that passes by itself."""


def _ignored(_: object) -> None:
    pass
