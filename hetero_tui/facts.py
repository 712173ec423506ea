"""Defines the facts about a machine; one step turns the probe's raw answer into typed facts.

Text is clean when it comes here (:mod:`hetero_tui.answers`); every number has bounds. Sizes are bytes.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hetero_tui.text import one_line
from remote_agent.device_kinds import KINDS

Line = Annotated[str, BeforeValidator(lambda value: one_line(value) if isinstance(value, str) else value)]
"""Words for people: one line, cut where it is too long; null where nothing is known."""

Name = Annotated[Line, BeforeValidator(lambda value: "" if value is None else value)]
Path = Annotated[str, Field(max_length=4096, pattern=r"^[^\t\n]*$")]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Size = Annotated[int, Field(ge=0, lt=2**63)]
Factor = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


def _ip(text: str) -> str:
    return str(ipaddress.ip_address(text.partition("%")[0]))  # a zone says something on that machine only


def _kind(text: str) -> str:
    if text not in KINDS:
        raise ValueError(f"it is none of {', '.join(KINDS)}")
    return text


CLOCK_OFF = 60.0
"""Seconds by which a clock may be off before it is worth a word."""

_DAYS = 2  # from then on, it is told in days


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class System(_Facts):
    """Operating system: ``system`` is ``Linux`` or ``Darwin``, ``machine`` the processor's architecture."""

    system: Line
    release: Line = ""
    name: Line = ""
    machine: Line = ""


class PythonFacts(_Facts):
    """The Python that ran the probe and would run the agent."""

    version: Annotated[str, Field(max_length=40, pattern=r"^\d{1,3}\.\d{1,3}")]
    executable: Path

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version, e.g. ``(3, 11)``."""
        parts = self.version.split(".")
        return (int(parts[0]), int(parts[1]))


class Cpu(_Facts):
    """``physical`` and ``logical`` cores; ``quota`` is a container's limit in cores."""

    model: Name = ""
    physical: Count | None = None
    logical: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    quota: Factor | None = None

    @property
    def usable(self) -> int:
        """Logical cores that this user may really use, at least one."""
        return max(1, int(min(self.logical, self.quota or self.logical)))


class Memory(_Facts):
    """Main memory in bytes; None where it could not be read."""

    total_bytes: Size | None = None
    available_bytes: Size | None = None


class Disk(_Facts):
    """The file system that would hold the cluster's folder, in bytes; None where it could not be read.

    ``unwritable`` says why this user can't write there; empty where it can. ``shared`` is the server and folder that it
    comes from, where other machines may have it too; None: it is the machine's own. ``identity`` is the folder's, as
    all machines see it that have it.
    """

    path: Path = ""
    total_bytes: Size | None = None
    free_bytes: Size | None = None
    unwritable: Line = ""
    shared: Line | None = None
    identity: Line | None = None


class Accelerator(_Facts):
    """One accelerator: ``kind`` is one of :mod:`remote_agent.device_kinds`, within which ``index`` counts.

    ``capability`` is NVIDIA's compute capability, such as ``8.6``, or AMD's architecture, such as ``gfx1030``.
    ``unusable`` says why no torch there can or should use it, whatever its build; empty: nothing speaks against it.
    """

    kind: Annotated[Line, AfterValidator(_kind)]
    index: Count = 0
    name: Line
    memory_bytes: Size | None = None
    driver: Line | None = None
    uuid: Line | None = None
    capability: Line | None = None
    unusable: Name = ""

    @property
    def device(self) -> str:
        """Torch's name of it; ROCm devices are ``cuda`` to torch."""
        return KINDS[self.kind].device(self.index)


class Address(_Facts):
    """One address of the machine; ``speed_mbps`` is the link's nominal speed in Mbit/s.

    ``prefix`` is None where nothing tells how large its network is.
    """

    interface: Line = ""
    address: Annotated[str, Field(max_length=100), AfterValidator(_ip)]
    prefix: Annotated[int, Field(ge=0, le=128)] | None = None
    speed_mbps: Count | None = None

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """The network that this address lies in; of an unknown prefix, the address alone."""
        whole = ipaddress.ip_address(self.address).max_prefixlen
        prefix = whole if self.prefix is None else min(self.prefix, whole)
        return ipaddress.ip_network((self.address, prefix), strict=False)


class Limits(_Facts):
    """What each process of the user may have at most (``ulimit``); None: there is no limit.

    Attributes:
        memory_bytes: of address space (-v).
        processes: and threads, of all of the user's together (-u).
        files: open ones (-n).
        file_bytes: length of a file that it writes (-f).
        seconds: of processor time (-t).
        tasks: processes and threads of its cgroup (pids.max), such as a container's.
    """

    memory_bytes: Size | None = None
    processes: Size | None = None
    files: Size | None = None
    file_bytes: Size | None = None
    seconds: Size | None = None
    tasks: Size | None = None


class HostFacts(_Facts):
    """All that the probe found out about one machine.

    ``machine`` is the same for two hosts of the inventory that are one machine, user and folder; None: unknown.
    ``computer`` is the same for all that share one network stack, whichever user and folder; None: unknown.
    ``power`` is ``battery`` or ``mains``; None: unknown.
    ``lacks`` are parts of its system that Ray and training need and that are not there, in words.
    ``unread`` are the kinds of accelerators of which it is not known whether there are any, since their tool failed.
    ``reached`` is the address that the laptop's connection went to; None behind a jump host.
    ``clock_ahead`` is by how many seconds its clock is ahead of the laptop's (less than 0: behind), as far as it shows.
    """

    hostname: Line
    user: Line
    home: Path
    os: System
    python: PythonFacts
    packages: Annotated[dict[str, Line | None], Field(default_factory=dict, max_length=100)]
    torch_build: Line | None = None
    cpu: Cpu
    memory: Memory
    disk: Disk
    accelerators: Annotated[tuple[Accelerator, ...], Field(max_length=256)] = ()
    addresses: Annotated[tuple[Address, ...], Field(max_length=1000)] = ()
    clock: Annotated[float, Field(ge=0, lt=253402300800, allow_inf_nan=False)]
    free_ports: Annotated[tuple[Annotated[int, Field(gt=0, lt=2**16)], ...], Field(max_length=1000)] = ()
    simulated_speed: Factor | None = None
    environment_python: Path | None = None
    problems: Annotated[tuple[Line, ...], Field(max_length=100)] = ()
    machine: Line | None = None
    computer: Line | None = None
    power: Line | None = None
    limits: Limits = Limits()
    lacks: Annotated[tuple[Line, ...], Field(max_length=10)] = ()
    unread: Annotated[tuple[Annotated[Line, AfterValidator(_kind)], ...], Field(max_length=10)] = ()
    reached: str | None = None
    clock_ahead: float = 0.0

    @property
    def preferred_accelerators(self) -> tuple[Accelerator, ...]:
        """The accelerators that a fit torch could use; in a machine with those of several vendors, one vendor's.

        That is the vendor that its torch is built for, or the first of the table where the build does not say.
        """
        good = tuple(accelerator for accelerator in self.accelerators if not accelerator.unusable)
        there = [kind for kind in KINDS if kind in {accelerator.kind for accelerator in good}]
        build = self.torch_build or ""
        used = next((kind for kind in there if build.startswith(KINDS[kind].build)), next(iter(there), ""))
        return tuple(accelerator for accelerator in good if accelerator.kind == used)

    @property
    def usable_accelerators(self) -> tuple[Accelerator, ...]:
        """Of these, those that the installed torch has kernels for; all, where there is none yet."""
        return tuple(each for each in self.preferred_accelerators if not self._refusal(each))

    def _refusal(self, accelerator: Accelerator) -> str:
        build = self.torch_build
        return kernel_refusal(build, accelerator.kind, accelerator.capability or "") if build else ""

    def with_build(self, build: str) -> HostFacts:
        """The same machine with this build of torch."""
        return self.model_copy(update={"torch_build": build})

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know although the host is fit: devices that are not used, a clock that is wrong."""
        return (*self.unused, *self._clock)

    @property
    def _clock(self) -> tuple[str, ...]:
        if abs(self.clock_ahead) < CLOCK_OFF:
            return ()
        direction = "ahead of" if self.clock_ahead > 0 else "behind"
        minutes = abs(self.clock_ahead) / 60
        off = f"{minutes:,.0f} min" if minutes < _DAYS * 1440 else f"{minutes / 1440:,.0f} days"
        return (f"its clock is {off} {direction} this computer's, so times in logs are wrong: set it there",)

    @property
    def unused(self) -> tuple[str, ...]:
        """The accelerators that do not train, with the reason."""
        preferred, used = self.preferred_accelerators, self.usable_accelerators
        names: dict[str, dict[str, None]] = {}
        for accelerator in self.accelerators:
            if accelerator not in used:
                why = accelerator.unusable or self._refusal(accelerator)
                if not accelerator.unusable and accelerator not in preferred and preferred:
                    ours, other = (KINDS[each.kind].vendor for each in (preferred[0], accelerator))
                    why = f"a torch drives one vendor's GPUs, here {ours}'s (build: {self.torch_build or 'unknown'});"
                    why += f" to use {other}'s instead, set `python:` to one with a torch for {other}"
                names.setdefault(why, {})[accelerator.name] = None
        return tuple(f"{', '.join(those)} not used: {why}" for why, those in names.items())

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that can train here by torch's names, each once: the usable accelerators, or else the CPU."""
        return tuple(dict.fromkeys(accelerator.device for accelerator in self.usable_accelerators)) or ("cpu",)

    def device_name(self, device: str) -> str:
        """A name for people: the accelerator's product name, or the CPU's cores; a simulated machine says so."""
        for accelerator in self.usable_accelerators:
            if accelerator.device == device:
                return accelerator.name
        cores = f"CPU {self.cpu.usable} core{'s' if self.cpu.usable != 1 else ''}"
        return cores if self.simulated_speed is None else f"simulated ×{self.simulated_speed:g}"


def parse_facts(raw: Any) -> HostFacts:
    """The probe's JSON document as facts; raises ValueError, which names the first field that is wrong."""
    try:
        return HostFacts.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = one_line(".".join(str(part) for part in first["loc"]))
        raise ValueError(f"the probe's answer has a bad field {where}: {first['msg']}") from None


OLDEST_CARD, CUDA_13_CARD, NEWEST_CUDA_12_CARD = (5, 0), (7, 5), (9, 0)

_ROCM_7_2 = frozenset(
    f"gfx{name}"
    for name in "900 906 908 90a 942 950 1030 1100 1101 1102 1103 1150 1151 1200 1201".split()  # noqa: SIM905
)
"""https://github.com/pytorch/pytorch/blob/release/2.13/.ci/docker/manywheel/build.sh, PYTORCH_ROCM_ARCH."""


def kernel_refusal(build: str, kind: str, capability: str) -> str:
    """Why a torch of this build can't compute on an accelerator, in words; empty: it can, as far as is known."""
    if not build.startswith(KINDS[kind].build):
        title = next((each.title for each in KINDS.values() if build.startswith(each.build)), "the CPU")
        return f"torch is built for {title}"
    number = version(capability)
    if kind == "cuda" and number:
        too_old = number < (CUDA_13_CARD if build.startswith("cu13") else OLDEST_CARD)
        too_new = build == "cu126" and number[:2] > NEWEST_CUDA_12_CARD
        if too_old or too_new:
            return f"torch {build} has no kernels for compute capability {capability}"
    if build == KINDS["rocm"].installed and capability.startswith("gfx") and capability not in _ROCM_7_2:
        return f"torch {build} has no kernels for {capability}"
    return ""


def version(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with; empty where there are none."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
