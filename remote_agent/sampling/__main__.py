"""Prints this machine's use, one ``HostSample`` a line, until its reader is gone. See :mod:`remote_agent.sampling`."""

from __future__ import annotations

import argparse
import sys

from remote_agent.host.processes import absolute_path
from remote_agent.protocol import encode
from remote_agent.stream import LineStream, StreamClosed


def main() -> int:
    """Sample at a steady pace; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m remote_agent.sampling", description="Print this machine's use.")
    parser.add_argument("--folder", required=True, type=absolute_path, help="the cluster's folder on this machine")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds from one sample to the next")
    options = parser.parse_args()
    try:
        from remote_agent.sampling.host import HostSampler
    except ImportError as error:
        print(f"{error.name} is not installed in {sys.executable}: see docs/hosts.md", file=sys.stderr)
        return 1
    stream = LineStream()
    sampler = HostSampler(options.folder)
    try:
        while True:
            stream.write([encode(sampler.read()).encode() + b"\n"])
            stream.wait(options.interval)
    except StreamClosed:
        return 0


if __name__ == "__main__":
    sys.exit(main())
