"""``python -m tests.lab up --hosts 3 --rate 100``: a lab for people and benchmarks, until Ctrl-C.

It prints how to reach the machines. ``--speeds 1,0.5,0.25`` makes them simulated machines of these speeds.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.network import LabError

NAMES = ("mercer", "crosby", "studio", "nas", "attic", "shed", "bench", "porch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Bring a lab up, say how to reach it, and take it down at Ctrl-C; the exit status is 0 then."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description="Several hosts on this computer (root).")
    up = parser.add_subparsers(required=True).add_parser("up", help="bring a lab up, until Ctrl-C")
    up.add_argument("--hosts", type=int, default=3, choices=range(1, len(NAMES) + 1), help="how many hosts")
    up.add_argument("--rate", type=float, default=None, metavar="MBIT", help="speed of each link in Mbit/s")
    up.add_argument("--speeds", default="", metavar="1,0.5,…", help="make them simulated machines of these speeds")
    options = parser.parse_args(arguments)
    speeds: list[float | None] = [float(speed) for speed in options.speeds.split(",") if speed]
    speeds += [None] * (options.hosts - len(speeds))
    pairs = zip(NAMES[: options.hosts], speeds, strict=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with `&` begins with it ignored
    try:
        with Lab([HostSpec(name=name, simulated_speed=speed) for name, speed in pairs], rate_mbit=options.rate) as lab:
            print(_how_to(lab), flush=True)
            signal.pause()
    except KeyboardInterrupt:
        pass
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _how_to(lab: Lab) -> str:
    enter = f"ip netns exec {lab.laptop.namespace}"
    lines = [f"{host.name:8} {host.address}" for host in lab.hosts]
    lines += [
        f"inventory  {lab.inventory()}",
        f"identity   {lab.laptop.home}/.ssh/id_ed25519",
        "",
        f"a shell on the laptop's network:  {enter} env HOME={lab.laptop.home} bash",
        f"a host from there:  ssh -i ~/.ssh/id_ed25519 -o UserKnownHostsFile=~/.ssh/known_hosts {lab.hosts[0].address}",
        "Ctrl-C takes it down.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
