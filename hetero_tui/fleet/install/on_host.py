"""Runs the steps of an installation on a host as shell scripts, since many hosts have no Python yet.

Everything is below the cluster's folder: ``env`` is the environment, ``env/ready`` describes it after it was verified,
``install`` has uv, its cache, and wheels that were sent. Each step can be killed at any moment; the next one continues
from there, since uv's cache keeps every fetched package.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from hetero_tui import deadlines
from hetero_tui.errors import CommandFailed
from hetero_tui.fleet import agent
from hetero_tui.fleet.install.lock import PYTHONS, Environment, constraints
from hetero_tui.fleet.install.platforms import System
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.text import HostText, last_lines, one_line, plain
from hetero_tui.transport import Completed, Transport
from remote_agent.protocol import CLUSTER_MARK

STEP = "bootstrap"
LOOK = "look"

# `place` is the same for all hosts of an inventory that are one machine, user and home, as `machine` of the probe's
# facts, which a host without a Python does not have.
_LOOK = """echo "ht:platform $(uname -sm)"
echo "ht:libc $(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 | head -n 1)"
echo "ht:bits $(getconf LONG_BIT 2>/dev/null)"
echo "ht:macos $(sw_vers -productVersion 2>/dev/null)"
echo "ht:home $(pwd -P)"
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.bootsessionuuid 2>/dev/null)
[ -z "$boot" ] || echo "ht:place $boot $(readlink /proc/self/ns/pid 2>/dev/null) $(id -u) $(ls -di . 2>/dev/null)"
cd "$1" 2>/dev/null || exit 0
echo "ht:uv $(cat install/uv.digest 2>/dev/null)"
echo "ht:ready $(cat env/ready 2>/dev/null)"
echo "ht:extras $(cat install/extras 2>/dev/null)"
"""

_UNPACK_UV = """cd "$1/install" || exit 1
gzip -dc "$2" > uv.new && chmod 700 uv.new && mv -f uv.new uv && ./uv --version >/dev/null || exit 1
rm -f "$2"; echo "$3" > uv.digest
"""

# The mark has `down` end what is left of an installation, as all of ours. Of the user's own settings for uv only those
# stay that say where packages come from, and how to get there. A command over SSH often starts with less than a login's
# PATH: macOS's has no Homebrew.
_SETTINGS = f"""umask 077; cd "$1" || exit 1
here=$(pwd); shift
{agent.WITHOUT_PYTHON_VARIABLES}
unset VIRTUAL_ENV CONDA_PREFIX
for name in $(env | sed -n 's/^\\(UV_[A-Z0-9_]*\\)=.*/\\1/p'); do
  case "$name" in
    *INDEX*|*MIRROR*|*TLS*|*CERTS*|*INSECURE_HOST|*KEYRING*|*TIMEOUT|*RETRIES);;
    *) unset "$name";;
  esac
done
PATH=$PATH:/opt/homebrew/bin:/usr/local/bin:${{HOME:-}}/.local/bin; export PATH
{CLUSTER_MARK}=$here; UV_CACHE_DIR=$here/install/cache; UV_PYTHON_INSTALL_DIR=$here/install/python
UV_NO_PROGRESS=1; NO_COLOR=1; LC_ALL=C
export {CLUSTER_MARK} UV_CACHE_DIR UV_PYTHON_INSTALL_DIR UV_NO_PROGRESS NO_COLOR LC_ALL
"""

_PYTHONS = (
    _SETTINGS
    + """for version in "$@"; do
  if install/uv python find --system --no-project --no-config --no-python-downloads "$version" >/dev/null 2>&1; then
    echo "ht:python $version"
  fi
done
"""
)

# Nothing is installed for a laptop that has gone: its end closes stdin, and the group ends. Words that begin with
# `ht:` are ours, and a sign of life besides.
_WATCHED = (
    _SETTINGS
    + """exec 3<&0
( cat <&3; kill -TERM 0 ) >/dev/null 2>&1 &
watcher=$!
. ./install/variables; rm -f install/variables
( while sleep 2 >/dev/null 2>&1; do echo "ht:size $(du -sk . 2>/dev/null | cut -f 1)"; done ) 3<&- &
ticker=$!
stop() { kill "$ticker" "$watcher" 2>/dev/null; exit "$1"; }
"""
)

_MAKE = (
    _WATCHED
    + """wanted=$1; shift
if [ -x env/bin/python ]; then
  is=$(env/bin/python -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
fi
if [ "${is:-}" != "$wanted" ]; then
  rm -rf "${here:?}/env"
  install/uv venv --no-project --no-config --python-preference system --python "$wanted" "$@" env 2>&1 || stop 1
fi
stop 0
"""
)

_INSTALL = (
    _WATCHED
    + """rm -f "${here:?}/env/ready"
install/uv pip install --python env/bin/python --only-binary :all: --requirements install/requirements.txt \\
  --constraints install/constraints.txt "$@" 2>&1 || stop 1
stop 0
"""
)


_FULL = re.compile(r"No space left|Dis[ck] quota exceeded")
_FREE = "free some space there (an environment takes 1 to 8 GB), then run it again: it goes on where it was"


@dataclass(frozen=True, slots=True)
class Ready:
    """The contents of ``env/ready``: the digest of the complete environment, and its packages."""

    digest: str
    python: str
    build: str
    extras: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a host: its system, the digest of our uv, and the complete environment, if there is one.

    ``extras`` are the packages that jobs need, of that environment and of an installation that was interrupted.
    ``place`` is the same for hosts that are one machine, user and home; empty: unknown.
    """

    system: System
    uv_digest: str
    ready: Ready | None
    extras: tuple[str, ...] = ()
    place: str = ""


async def look(transport: Transport, cluster: str) -> Found:
    """Get the state of one host."""
    done = await transport.run(["sh", "-c", _LOOK, LOOK, agent.folder(cluster)], step=STEP, deadline=deadlines.COMMAND)
    ready = _ready(_said(done, "ready"))
    extras = (*(ready.extras if ready is not None else ()), *_strings(_said(done, "extras")))
    system = System(*(_said(done, word) for word in ("platform", "libc", "bits", "macos", "home")))
    return Found(system, _said(done, "uv"), ready, tuple(dict.fromkeys(extras)), _said(done, "place"))


async def unpack_uv(transport: Transport, cluster: str, name: str, digest: str) -> None:
    """Unpack the uv that was sent under ``name``."""
    command = ["sh", "-c", _UNPACK_UV, "unpack", agent.folder(cluster), name, digest]
    done = await transport.run(command, step=STEP, deadline=deadlines.COMMAND)
    if done.exit_status != 0:
        said = last_lines(done.stderr, 1) or f"exit status {done.exit_status}"
        elsewhere = "or name a Python that has the packages as `python:`"
        hint = f"see that programs may be run from that user's home folder, {elsewhere}"
        if _FULL.search(said):
            hint = _FREE
        elif "gzip:" in said:
            hint = f"install gzip there, {elsewhere}"
        raise CommandFailed(transport.host, f"uv can't be run there: {said}", step=STEP, hint=hint)


async def pythons(transport: Transport, cluster: str) -> frozenset[str]:
    """The minor versions of Python on a host that an environment may have."""
    command = ["sh", "-c", _PYTHONS, "pythons", agent.folder(cluster), *PYTHONS]
    done = await transport.run(command, step=STEP, deadline=deadlines.FIND_PYTHONS)
    lines = {line.removeprefix("ht:python ").strip() for line in done.stdout.raw.splitlines()}
    return frozenset(lines & set(PYTHONS))


def make(transport: Transport, cluster: str, python: str, sources: Sources) -> AsyncIterator[str]:
    """Make the environment's folder with that Python; yields progress messages.

    Raises:
        HostError: uv failed; its last message is the cause.
    """
    options = ["--no-python-downloads"] if sources.from_laptop and not sources.python_mirror else []
    return _progress(transport, _MAKE, cluster, sources, sources.for_pythons(), python, *options)


async def prepare(transport: Transport, cluster: str, environment: Environment) -> None:
    """Write the list of packages to the host."""
    place = f"{agent.folder(cluster)}/install"
    for name, text in (("requirements.txt", environment.requirements), ("constraints.txt", constraints())):
        await transport.put(text.encode(), f"{place}/{name}", step=STEP, deadline=deadlines.COMMAND)


async def remember(transport: Transport, cluster: str, extras: tuple[str, ...]) -> None:
    """Write the packages that jobs need to a place that outlives the environment."""
    path = f"{agent.folder(cluster)}/install/extras"
    await transport.put(json.dumps(extras).encode(), path, step=STEP, deadline=deadlines.COMMAND)


def install(
    transport: Transport, cluster: str, environment: Environment, sources: Sources, wheels: str
) -> AsyncIterator[str]:
    """Install the list of :func:`prepare`, from the folder ``wheels`` if they were sent; yields progress messages.

    Raises:
        HostError: uv failed; its last message is the cause.
    """
    offline = ["--no-config", "--offline", "--no-index", "--find-links", wheels]
    if sources.from_laptop:
        return _progress(transport, _INSTALL, cluster, sources, {}, *offline)
    return _progress(transport, _INSTALL, cluster, sources, sources.for_uv(environment))


async def mark_ready(transport: Transport, cluster: str, environment: Environment) -> None:
    """Write that the environment is complete, and remove wheels that were sent."""
    document = {
        "digest": environment.digest,
        "python": environment.python,
        "build": environment.build.name,
        "extras": list(environment.extras),
    }
    path = f"{agent.folder(cluster)}/env/ready"
    await transport.put(json.dumps(document).encode(), path, step=STEP, deadline=deadlines.COMMAND)
    command = ["rm", "-rf", f"{agent.folder(cluster)}/install/wheels"]
    await transport.run(command, step=STEP, deadline=deadlines.COMMAND)


async def discard(transport: Transport, cluster: str) -> None:
    """Remove the environment; uv's cache stays."""
    command = ["rm", "-rf", f"{agent.folder(cluster)}/env"]
    await transport.run(command, step=STEP, deadline=deadlines.COMMAND)


async def _progress(
    transport: Transport, script: str, cluster: str, sources: Sources, variables: Mapping[str, str], *words: str
) -> AsyncIterator[str]:
    """``variables`` may hold passwords, so they are in no command: the script reads and removes their file."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    path = f"{agent.folder(cluster)}/install/variables"
    await transport.put(exports.encode(), path, step=STEP, deadline=deadlines.COMMAND)
    told: list[str] = []
    told_of = Telling()
    command = ["sh", "-c", script, "bootstrap", agent.folder(cluster), *words]
    try:
        async with transport.stream(command, step=STEP, silence=deadlines.INSTALL_SILENCE) as lines:
            async for line in lines:
                if not line.raw.startswith("ht:"):
                    told.append(plain(line))
                    del told[:-40]
                if word := told_of(line):
                    yield word
    except CommandFailed as error:
        cause = cause_in(told) or error.cause
        raise CommandFailed(
            transport.host, cause, step=STEP, hint=hint_for(cause, sources), output="\n".join(told[-8:])
        ) from None


class Telling:
    """Makes progress messages from uv's lines and the size of the folder."""

    def __init__(self) -> None:
        """Nothing is under way yet."""
        self._under_way: dict[str, str] = {}
        self._packages = 0
        self._announced: dict[str, float] = {}
        self._at_first: int | None = None

    def __call__(self, line: HostText) -> str:
        """The message after this line; empty: nothing new."""
        text = one_line(line)
        if found := re.match(r"ht:size (\d{1,12})$", text):
            size = int(found[1])
            self._at_first = size if self._at_first is None else self._at_first
            grown = (size - self._at_first) / 1024
            what = f"fetching {', '.join(self._under_way.values())}" if self._under_way else "installing"
            return f"{what}; {grown:,.0f} MiB so far" if grown >= 1 else ""
        if found := re.match(r"Resolved (\d+) packages?", text):
            self._packages = int(found[1])
            return f"{self._packages} packages to install"
        if found := re.match(r"Downloading (\S+) \(([^)]+)\)", text):
            self._under_way[found[1]] = f"{found[1]} ({found[2]})"
            self._announced[found[1]] = _mebibytes(found[2])
            return ""
        if found := re.match(r"Downloaded (\S+)", text):
            self._under_way.pop(found[1], None)
            there = sum(size for name, size in self._announced.items() if name not in self._under_way)
            whole = f"{there:,.0f} of {sum(self._announced.values()):,.0f} MiB"
            return f"has fetched {found[1]}: {whole} of {self._packages} packages"
        if re.match(r"(Prepared|Installed) \d+ packages?|Using CPython|Creating virtual environment", text):
            return text
        return ""


def _mebibytes(size: str) -> float:
    """Parse a size as uv writes it: ``887.9MiB``."""
    found = re.match(r"(\d{1,9}(?:\.\d{1,9})?)(B|KiB|MiB|GiB)$", size)
    return float(found[1]) * {"B": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10}[found[2]] if found else 0.0


def cause_in(lines: list[str]) -> str:
    """The sentence in uv's last lines that says why it failed; empty if there is none."""
    for start, line in enumerate(lines):
        if re.match(r"\s*(error:|×)", line):
            whole = " ".join(part.strip(" \t╰─▶├│×") for part in lines[start:] if part.strip())
            return one_line(re.sub(r":? cause: ", ": ", re.sub(r"^error:\s*", "", whole)), 400)
    return one_line(lines[-1]) if lines else ""


def hint_for(cause: str, sources: Sources) -> str:
    """What to do about uv's ``cause``."""
    if re.search(r"interpreter|Python download|managed Python|python-build-standalone", cause):
        return "install that Python there, or name a mirror of python-build-standalone: `bootstrap --python-mirror URL`"
    if _FULL.search(cause):
        return _FREE
    if re.search(r"no wheels|platform tag", cause):
        return "there is no such package for that machine's system, or its Python: see what the package's page says"
    if "not found in the package registry" in cause:
        return f"is its name right? {sources.another(cause)}"
    if re.search(r"certificate (expired|not valid yet)", cause):
        return (
            "see with `date` that its clock is right; `sudo timedatectl set-ntp true` sets it (macOS: System Settings)"
        )
    if "invalid peer certificate" in cause:  # uv knows the public authorities alone
        return (
            "does its network look into TLS by an authority of its own? `export UV_SYSTEM_CERTS=1` at the top of that"
            " user's ~/.bashrc (zsh: ~/.zshenv) has uv trust the system's; or `bootstrap --from-laptop`"
        )
    if re.search(r"fetch|connect|request|resolve|dns|network|timed out", cause, re.IGNORECASE):
        return f"is the host online? `bootstrap --from-laptop` sends it the packages; {sources.another(cause)}"
    return "run it again: it goes on where it was"


def _said(done: Completed, word: str) -> str:
    return one_line((done.stdout.last(f"ht:{word} ") or "").removeprefix(f"ht:{word} "), 2000).strip()


def _ready(text: str) -> Ready | None:
    try:
        found = json.loads(text)
        extras = tuple(str(extra) for extra in found["extras"])
        return Ready(str(found["digest"]), str(found["python"]), str(found["build"]), extras)
    except (ValueError, KeyError, TypeError):
        return None


def _strings(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(each) for each in json.loads(text))
    except (ValueError, TypeError):
        return ()
