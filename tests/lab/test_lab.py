"""The lab itself: what the other tests rely on when they say host, cable and plug."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.lab import network
from tests.lab.lab import BOOT_DEADLINE, Lab
from tests.lab.machines import Host, HostSpec
from tests.lab.mounts import REPOSITORY

pytestmark = [pytest.mark.lab]

MEGABYTE = 1_000_000

GRADIENT = 400_000
"""Bytes of a small model's gradient."""

SENDS = 4
"""With a pause before each: what a link saves up in it would show."""

_RECEIVE = f"""
import socket, time
with socket.create_server(("", 8001)) as server:
    print(flush=True)
    for _ in range({SENDS}):
        connection, _ = server.accept()
        began = float(connection.recv(32, socket.MSG_WAITALL))
        connection.recv({GRADIENT}, socket.MSG_WAITALL)
        print(time.monotonic() - began)
"""

_SEND = f"""
import socket, sys, time
for _ in range({SENDS}):
    time.sleep(0.2)
    with socket.create_connection((sys.argv[1], 8001)) as connection:
        connection.sendall(format(time.monotonic(), "32").encode() + bytes({GRADIENT}))
"""
"""All machines of a lab have one clock."""


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    specs = [
        HostSpec(name="mercer", simulated_speed=0.5),
        HostSpec(name="crosby", rate_mbit=100),
        HostSpec(name="nas", has_python=False),
    ]
    with Lab(specs) as lab:
        yield lab


def ssh(lab: Lab, host: Host, command: str, *, patience: int = 30) -> subprocess.CompletedProcess[str]:
    keys = lab.laptop.home / ".ssh"
    options = [f"IdentityFile={keys}/id_ed25519", f"UserKnownHostsFile={keys}/known_hosts"]
    options += ["BatchMode=yes", "StrictHostKeyChecking=yes", f"ConnectTimeout={patience}"]
    return lab.laptop.run(["ssh", *(word for option in options for word in ("-o", option)), host.address, command])


def test_every_host_answers_ssh_under_its_own_name_and_address(lab: Lab) -> None:
    for host in lab.hosts:
        done = ssh(lab, host, "hostname; getent hosts $(hostname)")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[:2] == [host.name, host.address]


def test_a_host_has_its_own_files_and_processes_and_sees_nothing_of_the_product(lab: Lab) -> None:
    mercer, crosby, _ = lab.hosts
    for place in ("~", "/tmp", "/dev/shm", "/run"):
        mercer.exec(["sh", "-c", f"touch {place}/mine"])
        assert mercer.exec(["sh", "-c", f"test -e {place}/mine"]).returncode == 0
        assert crosby.exec(["sh", "-c", f"test -e {place}/mine"]).returncode == 1
        assert not Path(place).expanduser().joinpath("mine").exists()
    seen = set(mercer.exec(["ps", "-e", "-o", "comm="]).stdout.split())
    assert seen <= {"sshd", "sshd-session", "ps"}, "its SSH server, sessions that end just now, and ps"
    assert mercer.exec(["ls", str(REPOSITORY / "remote_agent")]).stdout == ""
    assert lab.laptop.run(["ls", str(REPOSITORY / "remote_agent")]).stdout != ""


@pytest.mark.parametrize("direction", ["to the host", "from the host"])
def test_a_link_has_its_speed_in_both_directions(lab: Lab, direction: str) -> None:
    def megabits_per_second(host: Host, megabytes: int) -> float:
        count = megabytes * MEGABYTE
        reach = f"ssh -i ~/.ssh/id_ed25519 -o UserKnownHostsFile={lab.laptop.home}/.ssh/known_hosts {host.address}"
        read = f"head -c {count} /dev/zero"
        whole = f"{read} | {reach} 'cat > /dev/null'" if direction == "to the host" else f"{reach} {read} > /dev/null"
        start = time.monotonic()
        assert lab.laptop.run(["sh", "-c", whole]).returncode == 0
        return 8 * megabytes / (time.monotonic() - start)

    # Other work on this computer makes a transfer slower and never faster: the fastest of some is the link's own.
    for host, megabytes, least, most in (("crosby", 8, 40.0, 105.0), ("mercer", 40, 150.0, math.inf)):
        fastest = 0.0
        for _ in range(8):
            fastest = max(fastest, megabits_per_second(lab.host(host), megabytes))
            if fastest > least:
                break
        assert least < fastest <= most, host


def test_a_cut_cable_is_silence_and_a_mended_one_carries_again(lab: Lab) -> None:
    crosby = lab.host("crosby")
    crosby.cut()
    try:
        assert ssh(lab, crosby, "true", patience=2).returncode == 255
        assert ssh(lab, lab.host("mercer"), "true").returncode == 0
    finally:
        crosby.mend()
    lab.await_hosts(crosby)
    assert ssh(lab, crosby, "true").returncode == 0


def test_pulling_the_plug_ends_every_process_and_keeps_the_disk(lab: Lab) -> None:
    mercer = lab.host("mercer")
    begin = "touch ~/disk /tmp/memory; setsid sleep 600 > /dev/null 2>&1 < /dev/null &"
    begun = "until grep -qx sleep /proc/$!/comm; do sleep 0.05; done"  # before that it is still a copy of the shell
    assert ssh(lab, mercer, f"{begin} {begun}").returncode == 0
    (process,) = mercer.processes()
    assert process.argv == ("sleep", "600")
    mercer.pull_plug()
    mercer.boot()
    lab.await_hosts(mercer)
    assert mercer.processes() == ()
    assert ssh(lab, mercer, "test -e ~/disk && test ! -e /tmp/memory").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_lab_however_it_ends(possible: None, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.lab", "up", "--hosts", "2"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as people:
        assert people.stdout is not None
        assert people.stdout.readline().startswith("mercer")
        prefix = f"htlab-{people.pid}-"
        inside = []
        for pid in (pid for name in network.namespaces(prefix) for pid in network.processes_in(name)):
            with suppress(psutil.NoSuchProcess):  # a server's process for the connection that was tried
                inside.append(psutil.Process(pid))
        assert len(inside) >= 2
        people.send_signal(number)
    _, alive = psutil.wait_procs(inside, timeout=BOOT_DEADLINE)
    assert alive == []
    if number == signal.SIGKILL:
        with Lab([]):  # the next lab takes away what only a living process could
            pass
    assert network.namespaces(prefix) == ()
    assert list(Path("/var/tmp").glob(f"{prefix}*")) == []


def test_a_link_is_as_slow_after_a_pause(lab: Lab) -> None:
    """A link that saves up would show a step's gradients faster than any real one.

    The time is from the sender's own stamp to the last byte: a receiver that is scheduled late makes it longer only.
    The fastest of several sends counts, so that a busy computer hides no link that saves up.
    """
    crosby = lab.host("crosby")
    receive = ["ip", "netns", "exec", crosby.namespace, sys.executable, "-c", _RECEIVE]
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiving:
        assert receiving.stdout is not None
        receiving.stdout.readline()
        assert lab.laptop.run([sys.executable, "-c", _SEND, crosby.address]).returncode == 0
        seconds = [float(line) for line in receiving.stdout]
    assert len(seconds) == SENDS
    print([f"{8 * GRADIENT / each / 1e6:.1f} Mbit/s" for each in seconds])
    assert 8 * GRADIENT / min(seconds) / 1e6 < 110
