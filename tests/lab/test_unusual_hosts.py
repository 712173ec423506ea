"""What is said of hosts that are unusual, a kind a host: its status, and the words that tell what to do.

A probe meets dozens of them at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hetero_tui import deadlines
from tests.lab.conftest import skip
from tests.lab.lab import NOBODY, Lab
from tests.lab.machines import HostSpec
from tests.lab.network import INTERFACE
from tests.lab.product import HeteroTui

pytestmark = [pytest.mark.lab]

SITE = Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
LISTEN = """import http.server, socket, sys, threading
silent = socket.create_server(("", 2201))

def relay(client, server, most):
    passed = 0
    while (data := client.recv(4096)) and (passed := passed + len(data)) < most:
        server.sendall(data)

def midway():
    listener = socket.create_server(("", 2203))
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", 22))
        for pair in ((client, server, 1e9), (server, client, 1500)):
            threading.Thread(target=relay, args=pair, daemon=True).start()

threading.Thread(target=midway, daemon=True).start()
http.server.HTTPServer(("", 2202), http.server.BaseHTTPRequestHandler).serve_forever()
"""


def environment(folder: str) -> dict[str, str]:
    """Files of a Python environment with this Python's packages."""
    site = f"{folder}/lib/{SITE.parent.name}/site-packages"
    base = Path(sys.base_prefix) / "bin"
    return {f"{folder}/pyvenv.cfg": f"home = {base}\n", f"{site}/others.pth": f"{SITE}\n"}


def account(name: str, shell: str = "/bin/bash", *, uid: int = 0, home: Path | None = None) -> str:
    """Shell commands that give the host's user, who is root in the lab, another name, shell, number or home folder."""
    line = f"{name}:x:{uid}:{uid}::{home or Path.home()}:{shell}"
    words = f"(echo '{line}'; grep -v '^{name}:' /etc/passwd) > /run/passwd"
    return f"{words}; mount --bind /run/passwd /etc/passwd"


def link(folder: str) -> str:
    """Shell commands that put the Python itself into an environment."""
    return f'mkdir -p ~/"{folder}/bin"; ln -sf {Path(sys.base_prefix)}/bin/python3 ~/"{folder}/bin/python"'


@dataclass(frozen=True)
class Kind:
    """One kind of host: ``says`` is in its line (in the table's verdict where its status is ``ok``).

    ``needs`` is a program that this computer must have for it.
    """

    what: str
    says: str
    status: str = "ok"
    server: tuple[str, ...] = ()
    files: dict[str, str] | None = None
    arrange: str = ""
    entry: dict[str, object] | None = None
    has_python: bool = True
    needs: str = "sh"

    @property
    def possible(self) -> bool:
        return shutil.which(self.needs, path=f"{os.environ['PATH']}:/usr/sbin") is not None


def bash(text: str) -> dict[str, str]:
    return {".bashrc": text + "\n"}


AT_ONCE = 24
V6 = "fd00:99::"
WALL = (
    "echo 'table inet filter {{ chain input {{ type filter hook input priority 0; policy drop;"
    " ct state established,related accept; iif lo accept; meta l4proto {{ icmp, ipv6-icmp }} accept;"
    " tcp dport {{ {ports} }} accept; }}; }}' > /tmp/rules; nft -f /tmp/rules"
)
"""Shell commands for a firewall that drops everything but these ports."""

LONG_HOME = "/tmp/" + "/".join(["a-long-folder-name"] * 6)
VARIABLES = (
    "http_proxy=http://127.0.0.1:9 grpc_proxy=http://127.0.0.1:9 ALL_PROXY=socks5://127.0.0.1:9 TMPDIR=/nonexistent"
    " OMP_NUM_THREADS=zero MKL_NUM_THREADS=0 MASTER_ADDR=1.2.3.4 MASTER_PORT=1 RANK=7 WORLD_SIZE=99 LOCAL_RANK=3"
    " GLOO_SOCKET_IFNAME=none RAY_TMPDIR=/nonexistent RAY_OVERRIDE_NODE_IP=1.2.3.4 PYTHONWARNINGS=error"
    " PYTHONOPTIMIZE=2 SSL_CERT_FILE=/nonexistent OPENSSL_CONF=/nonexistent LC_ALL=tr_TR TZ=:bogus USER=liar"
    " XDG_CACHE_HOME=/nonexistent XDG_RUNTIME_DIR=/nonexistent FORCE_COLOR=1"
)
LATE = "import time; time.time = time.late = getattr(time, 'late', lambda now=time.time: now() + 3600)\n"  # read twice
KINDS: dict[str, Kind] = {
    "plain": Kind("an ordinary host", "fit"),
    "jumped": Kind("behind a jump host", "fit", entry={"proxy_jump": "plain"}),
    "twicejumped": Kind("behind two jump hosts", "fit", entry={"proxy_jump": "jumped"}),
    "banner": Kind("a banner before the login", "fit", server=("Banner /etc/passwd",)),
    "chatty": Kind("a start-up file that prints", "fit", files=bash("echo welcome; echo noise >&2")),
    "pythons": Kind(
        "PYTHONHOME, PYTHONPATH and PYTHONSTARTUP in .bashrc",
        "fit",
        files=bash("export PYTHONHOME=/x PYTHONPATH=~/shadow PYTHONSTARTUP=/x")
        | {"shadow/json.py": "raise SystemExit", "json.py": "raise SystemExit"},
    ),
    "rays": Kind("RAY_ADDRESS and RAY_* in .bashrc", "fit", files=bash("export RAY_ADDRESS=1.2.3.4:5 RAY_AUTH_MODE=x")),
    "proxies": Kind("proxies in .bashrc", "fit", files=bash("export http_proxy=http://x:1 HTTPS_PROXY=http://x:1")),
    "elsewhere": Kind("a start-up file that goes elsewhere", "fit", files=bash("cd /tmp")),
    "locale": Kind("a locale that is not there", "fit", files=bash("export LC_ALL=xx_YY.nothing LANG=xx")),
    "umask": Kind("umask 000", "fit", files=bash("umask 000")),
    "strict": Kind("set -eu in .bashrc", "fit", files=bash("set -eu")),
    "aliases": Kind(
        "aliases and functions in .bashrc", "fit", files=bash("alias sh=false; echo() { false; }; cat() { :; }")
    ),
    "noline": Kind("a start-up file that prints no whole line", "fit", files=bash("printf 'welcome to \\033[31m'")),
    "nostderr": Kind("a start-up file that throws stderr away", "fit", files=bash("exec 2>/dev/null")),
    "unsethome": Kind("a start-up file that unsets HOME", "fit", files=bash("unset HOME")),
    "oftmp": Kind("a /tmp that is read-only", "fit", arrange="mount -o remount,ro /tmp"),
    "tenmb": Kind("a start-up file that prints 10 MB", "fit", files=bash("head -c 10000000 /dev/zero")),
    "trapped": Kind(
        "set -e and traps in .bashrc", "fit", files=bash("set -e; trap 'echo debug' DEBUG; trap 'echo bye' EXIT")
    ),
    "traced": Kind(
        "a shell that traces to stdout",
        "fit",
        files=bash("export SHELLOPTS BASH_XTRACEFD=1 PS4='+{\"probe\":'; set -x"),
    ),
    "fake": Kind("a start-up file that prints a probe's answer", "fit", files=bash("echo '{\"probe\": 1}'")),
    "preload": Kind(
        "LD_PRELOAD, TMPDIR and TAR_OPTIONS in .bashrc",
        "fit",
        files=bash("export LD_PRELOAD=/nonexistent.so TMPDIR=/nonexistent TAR_OPTIONS=-v"),
    ),
    "mtu": Kind("MTU 576", "fit", arrange=f"ip link set {INTERFACE} mtu 576"),
    "startups": Kind("MaxStartups 1", "fit", server=("MaxStartups 1", "MaxSessions 1")),
    "hole": Kind(
        "a name with an IPv6 address that drops everything, and an IPv4 one", "fit", entry={"address": "both-ways"}
    ),
    "wrapped": Kind(
        "a Python that is a script of a user's",
        "fit",
        files={"python": f'#!/bin/sh\necho "using base"; exec {sys.executable} "$@"\n'},
        entry={"python": "~/python"},
    ),
    "nosftp": Kind("no sftp", "fit", server=("Subsystem sftp /bin/false",)),
    "noforward": Kind("no forwarding", "fit", server=("AllowTcpForwarding no", "DisableForwarding yes")),
    "session": Kind("MaxSessions 1", "fit", server=("MaxSessions 1",)),
    "smallshm": Kind("a tiny /dev/shm", "fit", arrange="mount -o remount,size=1m /dev/shm"),
    "noexec": Kind("/tmp without execution", "fit", arrange="mount -o remount,noexec /tmp"),
    "dockera": Kind(
        "Docker's bridge",
        "fit",
        arrange="ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up",
    ),
    "dockerb": Kind(
        "Docker's bridge, with the same address",
        "fit",
        arrange="ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up",
    ),
    "v6": Kind(
        "reached by IPv6",
        "fit",
        entry={"address": f"{V6}b6"},
        arrange=f"ip addr add {V6}b6/64 dev {INTERFACE} nodad",
    ),
    "config": Kind("an alias of ~/.ssh/config, by Include and Match", "fit", entry={"address": "by-config"}),
    "zone": Kind(
        "a link-local address with a zone",
        "fit",
        entry={"address": f"fe80::b7%{INTERFACE}"},
        arrange=f"ip addr add fe80::b7/64 dev {INTERFACE} nodad",
    ),
    "fish": Kind(
        "the login shell fish",
        "fit",
        needs="fish",
        arrange=account("root", "/usr/bin/fish"),
        files={".config/fish/config.fish": "echo welcome; set -x PYTHONHOME /x\n"},
    ),
    "csh": Kind(
        "the login shell csh",
        "fit",
        needs="csh",
        arrange=account("root", "/bin/csh"),
        files={".cshrc": "echo welcome; setenv PYTHONHOME /x\n"},
    ),
    "dotuser": Kind(
        "a user with a dot and a plus",
        "fit",
        server=("AllowUsers *",),
        arrange=account("first.last+lab"),
        entry={"user": "first.last+lab"},
    ),
    "domainuser": Kind(
        "a user of a domain, with a backslash",
        "fit",
        server=("AllowUsers *",),
        arrange=account("LAB\\\\me"),
        entry={"user": "LAB\\me"},
    ),
    "longhome": Kind(
        "a home of more than 107 characters",
        "fit",
        arrange=f"mkdir -p {LONG_HOME}; {account('root', home=Path(LONG_HOME))}",
    ),
    "localhost": Kind("a host that calls itself localhost", "fit", arrange="hostname localhost"),
    "conda": Kind(
        "a conda base that .bashrc activates",
        "fit",
        files=bash("export PATH=~/miniconda3/bin:$PATH CONDA_PREFIX=~/miniconda3 CONDA_DEFAULT_ENV=base")
        | {"miniconda3/bin/python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n'},
        entry={"python": None},
    ),
    "pyenv": Kind(
        "a python3 of pyenv's that fails",
        "has no ray",
        files=bash("export PATH=~/.pyenv/shims:$PATH")
        | {".pyenv/shims/python3": "#!/bin/sh\necho 'pyenv: python3: command not found' >&2; exit 127\n"},
        entry={"python": None},
    ),
    "variables": Kind(
        "variables of torchrun, MKL, OpenSSL and gRPC in .bashrc",
        "fit",
        files=bash(f"umask 077; export {VARIABLES}"),
    ),
    "late": Kind(
        "a clock that is an hour off",
        "fit",
        files=environment("env") | {f"env/lib/{SITE.parent.name}/site-packages/late.pth": LATE},
        arrange=link("env"),
        entry={"python": "~/env/bin/python"},
    ),
    "walled": Kind("a firewall that leaves only SSH open", "fit", needs="nft", arrange=WALL.format(ports="22")),
    "readonly": Kind(
        "a home that is read-only",
        "nothing can be written in .*read-only",
        arrange="mount -o remount,bind,ro ~",
    ),
    "inodes": Kind(
        "a home without inodes",
        "room for [0-9]+ more files",
        arrange="mkdir ~/.hetero-tui; mount -t tmpfs -o size=4g,nr_inodes=9 tmpfs ~/.hetero-tui",
    ),
    "roshm": Kind(
        "a /dev/shm that is read-only",
        "nothing can be written in /dev/shm",
        arrange="mount -o remount,ro /dev/shm",
    ),
    "tabhome": Kind(
        "a home with a tab in its name",
        "the name of the home folder has a tab",
        files=bash("export HOME=/tmp/$'a\\tb'; mkdir -p \"$HOME\""),
    ),
    "umlautpython": Kind(
        "a Python with an umlaut in its path",
        "fit",
        files=environment("größe"),
        arrange=link("größe"),
        entry={"python": "~/größe/bin/python"},
    ),
    "bare": Kind("no Python", "no Python there", "error", has_python=False),
    "nologin": Kind(
        "the shell nologin",
        "This account is currently not available",
        "error",
        server=("ForceCommand /usr/sbin/nologin",),
    ),
    "pathless": Kind(
        "a PATH without /bin",
        "it said .*sh: not found.* and exited with 127",
        "error",
        files=bash("export PATH=/nonexistent"),
    ),
    "sftponly": Kind("only sftp", "sftp connections only", "error", server=("ForceCommand internal-sftp",)),
    "signalled": Kind(
        "a Python that crashes",
        "its Python was ended by signal 11",
        "error",
        files={"python": "#!/bin/sh\nkill -SEGV $$\n"},
        entry={"python": "~/python"},
    ),
    "midway": Kind(
        "a host that falls silent midway",
        "did not end within|no connection within|completed no SSH login|in neither nor refused it",
        "unreachable",
        files={"listen.py": LISTEN},
        arrange=f"{sys.executable} ~/listen.py >/dev/null 2>&1 &",
        entry={"port": 2203},
    ),
    "endless": Kind("a start-up file that prints without end", "printed 64 MiB", "error", files=bash("yes")),
    "hangs": Kind(
        "a start-up file that never ends",
        "its login shell ran no command within",
        "unreachable",
        files=bash("sleep 600"),
    ),
    "rbash": Kind(
        "the login shell rbash", "exec: restricted", "error", needs="rbash", arrange=account("root", "/bin/rbash")
    ),
    "dropping": Kind(
        "a network that drops large packets",
        "completed no SSH login",
        "unreachable",
        needs="nft",
        arrange="echo 'table inet filter { chain output { type filter hook output priority 0; ip length > 1000 drop; };"
        " }' > /tmp/rules; nft -f /tmp/rules",
    ),
    "nobody": Kind(
        "an address that nobody has", "no route|no answer|no connection", "unreachable", entry={"address": NOBODY}
    ),
    "silent": Kind(
        "a port that never says a word",
        "completed no SSH login",
        "unreachable",
        files={"listen.py": LISTEN},
        arrange=f"{sys.executable} ~/listen.py >/dev/null 2>&1 &",
        entry={"port": 2201},
    ),
    "http": Kind(
        "a web server in SSH's place",
        "is not SSH|closed the connection",
        "unreachable",
        files={"listen.py": LISTEN},
        arrange=f"{sys.executable} ~/listen.py >/dev/null 2>&1 &",
        entry={"port": 2202},
    ),
}


@contextmanager
def hosts_of_all_kinds() -> Iterator[Lab]:
    """A lab with a host of each kind, named as in the table."""
    specs = [
        HostSpec(
            name=name,
            has_python=kind.has_python,
            server=kind.server,
            files=kind.files or {},
            arrange=kind.arrange if kind.possible else "",
        )
        for name, kind in KINDS.items()
    ]
    with Lab(specs) as lab:
        lab.laptop.run(["ip", "addr", "add", f"{V6}1/64", "dev", INTERFACE, "nodad"])
        lab.laptop.run(["ip", "neigh", "add", f"{V6}de", "lladdr", "02:00:00:00:de:ad", "dev", INTERFACE])
        with (lab.laptop.folder / "hosts").open("a") as names:
            names.write(f"{V6}de both-ways\n{lab.host('hole').address} both-ways\n")
        ssh = lab.laptop.home / ".ssh"
        (ssh / "config").write_text("Include more\n")
        (ssh / "more").write_text(
            f"Match originalhost by-config\n  HostName {lab.host('config').address}\n  HostKeyAlias config\n"
        )
        with (ssh / "known_hosts").open("a") as known:
            for name, alias in (("v6", f"{V6}b6"), ("zone", f"fe80::b7%{INTERFACE}")):
                known.write(f"{alias} {' '.join((lab.folder / 'keys' / f'{name}.pub').read_text().split()[:2])}\n")
        yield lab


def probe(lab: Lab, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """What ``probe --json`` says of the hosts of these names, and its lines for people."""
    entries = {name: kind.entry for name, kind in KINDS.items() if kind.entry}
    done = HeteroTui(lab.laptop, lab.inventory(entries, hosts=names)).run("probe", "--json")
    assert done.returncode == (3 if any(KINDS[name].status != "ok" for name in names) else 0), done.stderr
    return json.loads(done.stdout)["hosts"], done.stderr.splitlines()


@pytest.fixture(scope="module")
def said(possible: None) -> Iterator[dict[str, Any]]:
    """What the probe says of each host, and how long it took: so many at once as two cores can serve in time."""
    told: dict[str, Any] = {"lines": [], "hosts": {}, "seconds": 0.0}
    others = [name for name in KINDS if name != "plain"]
    others.sort(
        key=lambda name: KINDS[name].status == "unreachable"
    )  # what is waited for in vain is waited for at once
    with hosts_of_all_kinds() as lab:
        for begin in range(0, len(others), AT_ONCE):
            began = time.monotonic()
            hosts, lines = probe(lab, ["plain", *others[begin : begin + AT_ONCE]])
            told["seconds"] = max(told["seconds"], time.monotonic() - began)
            told["hosts"] |= {host["name"]: host for host in hosts}
            told["lines"] += lines
        yield told


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_has_its_status_and_one_line_that_says_what_is_wrong(said: dict[str, Any], name: str) -> None:
    kind, host = KINDS[name], said["hosts"][name]
    if not kind.possible:
        skip(f"this computer has no {kind.needs}")
    lines = [line for line in said["lines"] if line.startswith(f"hetero-tui: {name}: ")]
    assert host["status"] == kind.status, host["error"]
    assert len(lines) == (kind.status != "ok")
    wrong = [host["error"]] if host["error"] is not None else host["problems"]
    if kind.says == "fit":
        assert wrong == []
    else:
        assert re.search(kind.says, wrong[0]["cause"]), wrong
        assert wrong[0]["hint"]


def test_a_clock_that_is_off_is_told(said: dict[str, Any]) -> None:
    notes = {name: host.get("notes", []) for name, host in said["hosts"].items()}
    assert [name for name, each in notes.items() if any("clock" in note for note in each)] == ["late"]
    assert re.match("its clock is 60 min ahead of this computer's", notes["late"][0])


def test_the_probe_of_all_takes_no_longer_than_that_of_the_slowest(said: dict[str, Any]) -> None:
    assert said["seconds"] < deadlines.PROBE + 20  # a second for one; here dozens run at once on two cores
