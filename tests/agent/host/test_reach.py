"""Where a host listens to find out what others reach of it: each range that Ray and training use, at both ends."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote_agent.host import reach


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel's range is a setting of its own")
def test_each_range_is_tried_at_its_ends_and_in_its_middle() -> None:
    words = [sys.executable, reach.__file__, "1"]
    done = subprocess.run(words, input="", capture_output=True, text=True, timeout=30, check=True)
    ports = json.loads(done.stdout)["ports"]
    assert len(ports) == len({*ports}) == 7 + reach.KERNEL_PORTS
    for own in (reach.WORKER_PORTS, reach.kernel_ports()):
        tried = sorted(port for port in ports if port in own)
        third = len(own) // 3
        assert tried[0] < own[third]
        assert any(own[third] <= port < own[-third] for port in tried)
        assert tried[-1] >= own[-third]


async def test_a_laptop_that_says_no_more_is_gone_though_its_connection_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the process, and what it listens on, would stay there for hours."""
    monkeypatch.setattr(reach, "SILENCE", 0.05)
    waiting, laptop = os.pipe()
    with open(waiting) as stdin, open(laptop, "w"):  # noqa: PTH123 - a descriptor has no path
        monkeypatch.setattr(sys, "stdin", stdin)
        async with asyncio.timeout(30):
            await reach.main(1.0)


@pytest.mark.parametrize(
    ("files", "programs", "firewall"),
    [
        ({}, (), ""),
        ({"etc/ufw/ufw.conf": "# x\nENABLED=yes\nLOGLEVEL=low\n"}, ("ufw", "nft", "iptables"), "ufw"),
        ({"etc/ufw/ufw.conf": "ENABLED=no\n", "proc/7/comm": "firewalld\n"}, ("ufw", "firewall-cmd"), "firewall-cmd"),
        (
            {
                "etc/ufw/ufw.conf": "#ENABLED=yes\nENABLED=no\n",
                "etc/systemd/system/sysinit.target.wants/nftables.service": "",
            },
            ("ufw", "firewall-cmd", "nft", "iptables"),
            "nft",
        ),
        ({"proc/1/comm": "systemd\n"}, ("ufw", "firewall-cmd", "nft", "iptables"), "iptables"),
        ({}, ("nft",), "nft"),
        ({}, ("ufw", "firewall-cmd"), ""),
        ({"proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2\n"}, ("ufw", "iptables"), "wsl"),
    ],
)
def test_the_firewall_is_the_one_that_is_active_and_not_one_whose_program_is_there(
    tmp_path: Path, files: dict[str, str], programs: tuple[str, ...], firewall: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in programs:
        (folder / name).touch(mode=0o755)
    assert reach.active_firewall(str(folder), tmp_path) == firewall


async def test_what_a_host_sends_is_counted_by_the_one_that_it_comes_to() -> None:
    words = (sys.executable, reach.__file__, "5")
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    processes = [await asyncio.create_subprocess_exec(*words, **pipes) for _ in range(2)]
    try:
        said = [await answer(process) for process in processes]
        for process, other in zip(processes, reversed(said), strict=True):
            process.stdin.write(
                json.dumps({"send": ["127.0.0.1", other["ports"][0], other["word"]], "seconds": 1}).encode() + b"\n"
            )
        rates = [(await answer(process))["rate"] for process in processes]
    finally:
        for process in processes:
            process.stdin.close()
            await process.wait()
    assert min(rates) > 1e6


async def answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    async with asyncio.timeout(30):
        return json.loads(await process.stdout.readline())
