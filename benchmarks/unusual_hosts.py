"""What is said of unusual hosts: status, seconds and line of each kind of ``tests/lab/test_unusual_hosts.py``.

``python -m benchmarks.unusual_hosts [--only NAMES] [--write]`` (root on Linux)

A lab has a host of each kind. A dozen are probed at once, an ordinary one among them, and the seconds are those of
``probe --json``: from the first connection to the host's facts or its error. ``--write`` puts the table into
docs/troubleshooting.md. The exit code is 1 where a host has another status than it should, or another line.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.mounts import REPOSITORY
from tests.lab.test_unusual_hosts import KINDS, hosts_of_all_kinds, probe

PAGE = REPOSITORY / "docs/troubleshooting.md"
TABLE = re.compile(r"^\| host \| status \|.*\n(?:\|.*\n)+", re.MULTILINE)
PLAIN = "plain"
AT_ONCE = 12

_AS_ON_A_REAL_HOST = (
    (r"10\.99\.0\.\d+", "10.0.0.3"),
    (re.escape(f"{sys.base_prefix}/bin/"), "/usr/bin/"),
    (r"/\S*/inventory-\d+/", "~/.ssh/"),
    (re.escape(str(Path.home())), "/home/me"),
    (r"'root'", "'me'"),
    (r"SHA256:\S+", "SHA256:..."),
    (r"\(looked for ~?[^/)][^)]*\)", "(looked for ...)"),
)
"""What is the lab's own in a line, and what stands for it in the table."""


@dataclass(frozen=True)
class Row:
    """What was said of one kind; ``right``: as its test expects."""

    name: str
    what: str
    status: str
    seconds: float
    line: str
    right: bool


def rows(names: Sequence[str]) -> Iterator[Row]:
    """Probe the hosts of these kinds."""
    possible = [name for name in names if KINDS[name].possible]
    with hosts_of_all_kinds() as lab:
        for begin in range(0, len(possible), AT_ONCE):
            chosen = possible[begin : begin + AT_ONCE]
            hosts, _ = probe(lab, list(dict.fromkeys((PLAIN, *chosen))))
            yield from (_row(host["name"], host) for host in hosts if host["name"] in chosen)


def _row(name: str, host: dict[str, Any]) -> Row:
    kind = KINDS[name]
    wrong = [host["error"]] if host["error"] is not None else host["problems"]
    line = wrong[0]["cause"] if wrong else "; ".join(("fit", *host["notes"]))
    right = host["status"] == kind.status and re.search(kind.says, line) is not None
    for pattern, shown in _AS_ON_A_REAL_HOST:
        line = re.sub(pattern, shown, line)
    return Row(name, kind.what, host["status"], host["seconds"], line.replace("|", "/"), right)


def markdown(found: Sequence[Row]) -> str:
    """The table of the documentation."""
    lines = ["| host | status | seconds | what is said |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.status} | {row.seconds:.1f} | {row.line} |" for row in found]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe and print; exit code 1 when a host is not told of as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unusual_hosts", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names, with commas between (default: all)")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args(arguments)
    found = []
    for row in rows(list(filter(None, options.only.split(","))) or list(KINDS)):
        found.append(row)
        print(
            f"{row.name:14} {row.status:17} {row.seconds:5.1f} s  {row.line}{'' if row.right else '   WRONG'}",
            flush=True,
        )
    if options.write:
        table = markdown(found).replace("\\", "\\\\")
        PAGE.write_text(TABLE.sub(table, PAGE.read_text(), count=1))
    return 0 if found and all(row.right for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
