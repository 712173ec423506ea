"""Fetches packages on the laptop: uv, and with pip the wheels for other platforms."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from platformdirs import user_cache_path

from hetero_tui import deadlines
from hetero_tui.errors import HeteroTuiError, UsageError
from hetero_tui.fleet.install.lock import Environment, constraints, pins
from hetero_tui.fleet.install.platforms import Platform
from hetero_tui.text import last_lines
from hetero_tui.transport.processes import spawn

STEP = "fetch packages"
TORCH_INDEX = "https://download.pytorch.org/whl"
VARIABLES = ("HETERO_TUI_INDEX", "HETERO_TUI_TORCH_INDEX", "HETERO_TUI_PYTHON_MIRROR")
"""Environment variables of the laptop that replace options."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of packages and Pythons.

    Attributes:
        index: package index instead of PyPI; empty: PyPI, or the configuration of the host's uv.
        torch_index: URL below which each build of torch has an index.
        python_mirror: mirror of python-build-standalone's releases; empty: uv's default.
        from_laptop: the laptop collects the wheels and sends them; hosts need no internet.
        wheels: a folder with the wheels, so that the laptop needs no internet either.
    """

    index: str = ""
    torch_index: str = TORCH_INDEX
    python_mirror: str = ""
    from_laptop: bool = False
    wheels: Path | None = None

    @classmethod
    def of_variables(cls, *, from_laptop: bool = False, variables: Mapping[str, str] = os.environ) -> Sources:
        """The sources that the environment variables name."""
        index, torch_index, python_mirror = (variables.get(name, "") for name in VARIABLES)
        return cls(index, torch_index or TORCH_INDEX, python_mirror, from_laptop)

    def for_uv(self, environment: Environment) -> dict[str, str]:
        """Variables of uv for packages from an index. A URL may hold a password, and command lines are public."""
        variables = {"UV_DEFAULT_INDEX": self.index} if self.index else {}
        if torch := self._of_torch(environment):
            # Every version is exact, so that the best match is the one: torch's from the second, most from the first.
            variables |= {"UV_INDEX": torch, "UV_INDEX_STRATEGY": "unsafe-best-match"}
        return variables

    def for_pip(self, environment: Environment | None = None) -> dict[str, str]:
        """The same for pip; without an environment the index alone."""
        variables = {"PIP_INDEX_URL": self.index} if self.index else {}
        if environment is not None and (torch := self._of_torch(environment)):
            variables["PIP_EXTRA_INDEX_URL"] = f"{os.environ.get('PIP_EXTRA_INDEX_URL', '')} {torch}".strip()
        return variables

    def for_pythons(self) -> dict[str, str]:
        """Variables of uv for fetching a Python."""
        name = "DOWNLOADS_JSON_URL" if self.python_mirror.endswith(".json") else "INSTALL_MIRROR"
        return {f"UV_PYTHON_{name}": self.python_mirror} if self.python_mirror else {}

    def another(self, cause: str) -> str:
        """The option that replaces the index which ``cause`` is about, or that named it, for a hint."""
        if self.torch_index.rstrip("/") in cause or "pytorch.org/" in cause:  # whose wheels are on another host
            if self.torch_index != TORCH_INDEX:
                return f"or is `--torch-index` ({VARIABLES[1]}) wrong, which names that place?"
            return "`--torch-index URL` names another place for the builds of torch"
        return f"or is `--index` ({VARIABLES[0]}) wrong?" if self.index else "`--index URL` names another index"

    def _of_torch(self, environment: Environment) -> str:
        """The index of a build of torch; empty: it is PyPI's."""
        return f"{self.torch_index.rstrip('/')}/{environment.build.name}" if environment.build.local_version else ""


@dataclass(frozen=True, slots=True)
class Packed:
    """A file for hosts; ``digest`` is the SHA256 of its unpacked contents."""

    path: Path
    digest: str


async def uv_for(wanted: Platform, sources: Sources) -> Packed:
    """Get the gzipped uv for a platform: the laptop's own, one from the folder of wheels, or PyPI's.

    Raises:
        HeteroTuiError: there is none, and it can't be fetched.
    """
    cache = user_cache_path("hetero-tui") / "uv"
    known = next(iter(sorted(cache.glob(f"{pins()['uv']}-{wanted.triple}-*.gz"))), None)
    if known is not None:
        return Packed(known, known.name.removesuffix(".gz").rpartition("-")[2])
    if f"{platform.system()} {platform.machine()}" == wanted.uname:
        data = await asyncio.to_thread(_laptop_uv().read_bytes)
    else:
        data = await _uv_of_wheel(wanted, sources)
    digest = hashlib.sha256(data).hexdigest()
    path = cache / f"{pins()['uv']}-{wanted.triple}-{digest}.gz"
    await asyncio.to_thread(_write, path, await asyncio.to_thread(gzip.compress, data, 1))
    return Packed(path, digest)


async def collect(environment: Environment, wanted: Platform, sources: Sources) -> tuple[Path, ...]:
    """Collect the wheels of an environment for a platform in a folder of the laptop, which is kept for later hosts.

    Raises:
        HeteroTuiError: a package has no wheel for it, or can't be fetched.
    """
    folder = user_cache_path("hetero-tui") / "wheels" / f"{environment.digest}-{wanted.triple}"
    whole = folder / "pins.txt"
    if not whole.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            resolved = await _resolve(environment, wanted, sources, Path(temporary))
            variables = sources.for_pip(environment)
            await _download(["-r", str(resolved)], folder, wanted, sources, variables, environment.python)
            resolved.replace(whole)
    return tuple(sorted(folder.glob("*.whl")))


async def _resolve(environment: Environment, wanted: Platform, sources: Sources, folder: Path) -> Path:
    """Write a file with the exact version of every package that the environment needs on that platform."""
    needed, limits, resolved = (folder / name for name in ("needed.txt", "constraints.txt", "resolved.txt"))
    needed.write_text(environment.requirements)
    limits.write_text(constraints())
    where = ["--no-index", "--find-links", str(sources.wheels)] if sources.wheels else []
    command = [
        *(str(_laptop_uv()), "pip", "compile", "--quiet", "--no-config", "--no-annotate", "--no-header"),
        *("--constraints", str(limits), "--only-binary", ":all:", "--python-version", environment.python),
        *("--python-platform", wanted.triple, *where, "--output-file", str(resolved), str(needed)),
    ]
    await _run(command, sources, wanted, {} if sources.wheels else sources.for_uv(environment))
    return resolved


async def _uv_of_wheel(wanted: Platform, sources: Sources) -> bytes:
    with tempfile.TemporaryDirectory(prefix="hetero-tui-") as temporary:
        folder = Path(temporary)
        await _download([f"uv=={pins()['uv']}"], folder, wanted, sources, sources.for_pip(), "3.11")
        return await asyncio.to_thread(_unpacked_uv, folder)


def _unpacked_uv(folder: Path) -> bytes:
    """The program in the only wheel of uv in a folder."""
    (wheel,) = folder.glob("uv-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(".data/scripts/uv")))


async def _download(
    what: Sequence[str], folder: Path, wanted: Platform, sources: Sources, variables: Mapping[str, str], python: str
) -> None:
    """Download wheels for another platform with pip, without their dependencies."""
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else [str(_laptop_uv()), "tool", "run", "pip"]
    folder_alone = ["--isolated", "--no-index", "--find-links", str(sources.wheels)]  # not what pip is set up with
    where = folder_alone if sources.wheels else []
    tags = [word for tag in wanted.tags for word in ("--platform", tag)]
    await _run(
        [
            *(*pip, "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"),
            *("--implementation", "cp", "--python-version", python, *tags, *where, "--dest", str(folder), *what),
        ],
        sources,
        wanted,
        variables,
    )


async def _run(command: Sequence[str], sources: Sources, wanted: Platform, variables: Mapping[str, str]) -> None:
    # torch's wheels for macOS need this version; uv assumes 13.
    environment = {**os.environ, **variables, "MACOSX_DEPLOYMENT_TARGET": "14.0"}
    cache = user_cache_path("hetero-tui")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        environment["TMPDIR"] = temporary  # where pip writes what arrives
        try:
            async with (
                asyncio.timeout(deadlines.FETCH_SILENCE) as limit,
                _extended(limit, Path(temporary)),
                spawn(command, cwd=Path.home(), env=environment) as running,
            ):
                running.stdin.close()
                output, errors = await asyncio.gather(running.stdout.read(), running.stderr.read())
                status = await running.wait()
        except TimeoutError:
            cause = f"nothing more arrived for {deadlines.FETCH_SILENCE:g} s"
            raise HeteroTuiError(cause, step=STEP, hint="run it again: what has arrived as a whole stays") from None
    if status != 0:
        said = last_lines((output + errors).decode("utf-8", "replace"), 3, 500).replace("\n", " ")
        said = said.removeprefix("error: ") or f"{command[0]} ended with status {status}"
        if sources.wheels:
            cause = f"the folder {sources.wheels} has not all packages for {wanted.uname}: {said}"
            raise HeteroTuiError(cause, step=STEP, hint="add them, or leave --wheels out on a laptop that is online")
        hint = f"is the laptop online? {sources.another(said)}, `--wheels FOLDER` a folder of wheels"
        raise HeteroTuiError(said, step=STEP, hint=hint)


@asynccontextmanager
async def _extended(limit: asyncio.Timeout, folder: Path) -> AsyncIterator[None]:
    """Extend a deadline while a folder's size changes."""

    def size() -> int:
        with suppress(OSError):  # a file went meanwhile
            return sum(path.stat().st_size for path in folder.rglob("*"))
        return -1

    async def look() -> None:
        known = 0
        while True:
            await asyncio.sleep(deadlines.FETCH_SILENCE / 10)
            if (now := await asyncio.to_thread(size)) != known:
                known = now
                limit.reschedule(asyncio.get_running_loop().time() + deadlines.FETCH_SILENCE)

    looking = asyncio.create_task(look(), name="fetch packages")
    try:
        yield
    finally:
        looking.cancel()


def _laptop_uv() -> Path:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise UsageError("uv is not there", step=STEP, hint="pip install uv (it comes with `pip install hetero-tui`)")
    return Path(found)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)


def sha256_of(path: Path) -> str:
    """The SHA256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
