"""Facts about one machine, before anything is installed on it: prints one line of JSON.

One file, the standard library only, Python 3.8 or newer. It is sent over stdin, so nothing is written to the machine::

    python3 - --folder '~/.hetero-tui/NAME' --deadline 8 < probe.py

Each part looks at one thing in a thread of its own and has until the deadline. A part that fails or is late (a driver
that hangs, a network folder that does not answer) leaves its fields empty and a line in ``problems``; the rest stands.
What can't be read is null, never 0. Sizes are bytes, speeds Mbit/s, the clock is seconds since the epoch.

The parsers are functions of text, so that each vendor's recorded output is a test.
"""

import argparse
import csv
import getpass
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

VERSION = 1
OLDEST_PYTHON = (3, 8)
PACKAGES = ("ray", "torch", "psutil", "safetensors", "numpy")
PORTS = tuple(range(6389, 6399)) + tuple(range(8365, 8369))
GPU_PARTS = {"NVIDIA GPUs": "cuda", "AMD GPUs": "rocm", "Intel GPUs": "xpu", "Apple GPU": "mps"}
DEFAULT_DEADLINE_SECONDS = 8.0
REPORT_SECONDS = 0.5
"""Kept back from the deadline to collect the parts and to print."""

MACOS = platform.system() == "Darwin"
MIB = 1024 * 1024
EXTRA_PATH = ("/usr/local/bin", "/usr/bin", "/usr/sbin", "/sbin", "/opt/rocm/bin", "/usr/lib/wsl/lib")
"""Where vendors put their programs; a command over SSH often starts with less than a login's PATH."""

DISCRETE_MEMORY = 2 * 1024 * MIB
"""An AMD GPU with less memory of its own is part of the processor and rarely meant for training."""

OVERRIDE = os.environ.get("HSA_OVERRIDE_GFX_VERSION")
"""Has ROCm take each AMD GPU for one of this architecture, as users of unsupported ones set it."""

LEAST_FILES = 1000
"""That can still be made where the agent, Ray's logs and a run's files go."""

NETWORK_DISKS = (
    *("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.cephfs", "fuse.beegfs"),
)
"""File systems that several machines have at once."""

UNKNOWN = ("", "n/a", "[n/a]", "not supported", "[not supported]", "[unknown error]", "unknown", "none")

Facts = Dict[str, Any]


class PartFailed(Exception):
    """One part of the probe could not be read; its text is the line for ``problems``."""


# --- Running programs and reading files -----------------------------------------------------------------------------


class Commands:
    """Runs the vendors' programs, each until the probe's deadline at the latest."""

    def __init__(self, deadline: float) -> None:
        self._ends = time.monotonic() + deadline

    def remaining(self) -> float:
        return max(0.1, self._ends - time.monotonic())

    def run(self, *argv: str) -> str:
        """Standard output of a program.

        Raises:
            PartFailed: it is missing, takes too long or exits with an error.
        """
        environment = dict(os.environ, LC_ALL="C", LANG="C")
        name = os.path.basename(argv[0])
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=self.remaining(),
                env=environment,
            )
        except subprocess.TimeoutExpired:
            raise PartFailed("%s is there but did not answer in time" % name) from None
        except OSError as error:
            raise PartFailed("%s could not be run: %s" % (name, error.strerror)) from None
        output = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            said = (done.stderr.decode("utf-8", "replace").strip() or output.strip()).splitlines()
            raise PartFailed("%s is there but failed: %s" % (name, said[0] if said else "exit %d" % done.returncode))
        return output


def find_program(name: str) -> Optional[str]:
    """The full path of a program; None when this machine has none of that name."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *EXTRA_PATH]))


def read_text(path: str) -> Optional[str]:
    """A small file's text; None when it is not there or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def to_int(text: Optional[str]) -> Optional[int]:
    """A whole number; None for what vendors write in its place."""
    try:
        return int(float((text or "").strip()))
    except (ValueError, OverflowError):
        return None


def known(text: Any) -> Optional[str]:
    """A vendor's text, or None where it only says that there is none."""
    value = str(text if text is not None else "").strip()
    return None if value.lower() in UNKNOWN else value


def json_in(text: str) -> Any:
    """The JSON document in a program's output, behind any warnings that it printed first."""
    for match in re.finditer(r"^\s*[\[{]", text, re.MULTILINE):
        try:
            return json.loads(text[match.start() :])
        except ValueError:
            continue
    raise PartFailed("its output is not JSON: %s" % (text.strip()[:80] or "(empty)"))


# --- Processor and memory -------------------------------------------------------------------------------------------


def parse_cpuinfo(text: str) -> Tuple[Optional[str], Optional[int]]:
    """Model and number of physical cores from Linux's ``/proc/cpuinfo``; ARM kernels tell neither."""
    model: Optional[str] = None
    cores: Set[Tuple[str, str]] = set()
    for block in text.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        model = model or known(fields.get("model name")) or known(fields.get("Model")) or known(fields.get("Hardware"))
        if "core id" in fields:
            cores.add((fields.get("physical id", "0"), fields["core id"]))
    return model, len(cores) or None


def cgroup_folders(controller: str, membership: str, root: str = "/sys/fs/cgroup") -> List[str]:
    """Folders whose limits hold for this process: its own cgroup and each parent, in versions 1 and 2.

    ``membership`` is the text of ``/proc/self/cgroup``. A container sees only a part of that path, so folders that
    do not exist are left out and the root always takes part. See the kernel's admin-guide/cgroup-v2.
    """
    folders: List[str] = []
    for line in membership.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if parts[0] == "0" and not parts[1]:
            bases = [root, os.path.join(root, "unified")]
        elif controller in parts[1].split(","):
            bases = [os.path.join(root, controller), os.path.join(root, parts[1])]
        else:
            continue
        for base in bases:
            path = parts[2].strip("/")
            while True:
                folders.append(os.path.join(base, path) if path else base)
                if not path:
                    break
                path = os.path.dirname(path)
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def cpu_quota(folder: str) -> Optional[float]:
    """How many processors one cgroup may use; None when it has no limit."""
    both = (read_text(os.path.join(folder, "cpu.max")) or "").split()
    if len(both) != 2:
        both = [
            (read_text(os.path.join(folder, name)) or "").strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        ]
    quota, period = to_int(both[0]), to_int(both[1])
    return quota / period if quota and period and quota > 0 else None


def memory_limit(folder: str) -> Optional[Tuple[int, int]]:
    """(limit, bytes in use that can't be given back) of one cgroup; None when it has no limit."""
    for limit_name, usage_name, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        limit = to_int(read_text(os.path.join(folder, limit_name)))
        usage = to_int(read_text(os.path.join(folder, usage_name)))
        if limit is None or usage is None:
            continue
        statistics = read_text(os.path.join(folder, "memory.stat")) or ""
        # Parts of files: the system takes them where memory is short.
        files = re.findall(r"^%s(?:in)?active_file (\d+)$" % prefix, statistics, re.MULTILINE)
        return limit, max(0, usage - sum(map(int, files)))
    return None


def parse_meminfo(text: str) -> Tuple[Optional[int], Optional[int]]:
    """(total, available) bytes from Linux's ``/proc/meminfo``."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE))
    sizes = [to_int(found.get(name)) for name in ("MemTotal", "MemAvailable")]
    total, available = [None if size is None else size * 1024 for size in sizes]
    return total, available


def parse_vm_stat(text: str) -> Optional[int]:
    """Available bytes from macOS's ``vm_stat``: what is free or can be given back at once."""
    page = re.search(r"page size of (\d+) bytes", text)
    pages = dict(re.findall(r"^Pages ([\w -]+):\s+(\d+)\.?$", text, re.MULTILINE))
    if not page or "free" not in pages:
        return None
    names = ("free", "inactive", "speculative", "purgeable")
    return int(page.group(1)) * sum(int(pages.get(name, 0)) for name in names)


def sysctl(commands: Commands, name: str) -> Optional[str]:
    """One value of macOS's ``sysctl``; None when this system does not have it."""
    try:
        return known(commands.run("sysctl", "-n", name))
    except PartFailed:
        return None


def read_cpu(commands: Commands) -> Facts:
    logical = os.cpu_count() or 1
    model, physical = parse_cpuinfo(read_text("/proc/cpuinfo") or "")
    if MACOS:
        model = sysctl(commands, "machdep.cpu.brand_string")
        physical = to_int(sysctl(commands, "hw.physicalcpu"))
    limits = [cpu_quota(folder) for folder in cgroup_folders("cpu", read_text("/proc/self/cgroup") or "")]
    if hasattr(os, "sched_getaffinity"):
        limits.append(float(len(os.sched_getaffinity(0))))
    quota = min([limit for limit in limits if limit is not None], default=float(logical))
    return {
        "model": model or known(platform.processor()) or platform.machine(),
        "physical": physical,
        "logical": logical,
        "quota": quota if quota < logical else None,
    }


def linux_memory() -> Tuple[Optional[int], Optional[int]]:
    """(total, available) bytes that this process may use on Linux: the computer's or its cgroup's, the smaller."""
    total, available = parse_meminfo(read_text("/proc/meminfo") or "")
    for folder in cgroup_folders("memory", read_text("/proc/self/cgroup") or ""):
        limit = memory_limit(folder)
        if limit is not None and total is not None and limit[0] < total:
            total = limit[0]
            available = min(total if available is None else available, max(0, limit[0] - limit[1]))
    return total, available


def read_memory(commands: Commands) -> Facts:
    if MACOS:
        total, available = to_int(sysctl(commands, "hw.memsize")), parse_vm_stat(commands.run("vm_stat"))
    else:
        total, available = linux_memory()
    return {"total_bytes": total, "available_bytes": available}


# --- Accelerators ---------------------------------------------------------------------------------------------------


def accelerator(kind: str, index: int, name: Optional[str], memory: Optional[int], **more: Optional[str]) -> Facts:
    facts: Facts = {"kind": kind, "index": index, "name": name or kind, "memory_bytes": memory}
    facts.update(driver=more.get("driver"), uuid=more.get("uuid"))
    return dict(facts, capability=more["capability"]) if more.get("capability") else facts


def parse_nvidia_query(text: str) -> List[Facts]:
    """``nvidia-smi --query-gpu=index,name,memory.total,driver_version,uuid[,compute_cap]``, as CSV without units.

    Memory is MiB; it is ``[N/A]`` where the GPU shares the processor's (Jetson, GB10). Old drivers know no compute_cap.
    """
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        index = to_int(row[0]) if len(row) in (5, 6) else None
        if index is None:
            continue
        memory = to_int(row[2])
        size = None if memory is None else memory * MIB
        gpu = accelerator("cuda", index, known(row[1]), size, driver=known(row[3]), uuid=known(row[4]))
        if len(row) == 6 and known(row[5]):
            gpu["capability"] = known(row[5])
        found.append(gpu)
    return found


def amd_architecture(text: Any, override: Optional[str] = None) -> Optional[str]:
    """``gfx1030``, of ``gfx90a:sramecc+:xnack-`` too; ``override`` is the user's HSA_OVERRIDE_GFX_VERSION (10.3.0)."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)$", override or "")
    if numbers:
        major, minor, stepping = (int(number) for number in numbers.groups())
        return "gfx%d%d%x" % (major, minor, stepping)
    found = re.match(r"gfx[0-9a-f]+", str(text or ""))
    return found.group(0) if found else None


def without_processors(gpus: List[Facts]) -> List[Facts]:
    """AMD GPUs, of which one that is part of the processor says so, where there is a card beside it."""

    def is_card(gpu: Facts) -> Optional[bool]:
        size = gpu["memory_bytes"]
        return None if size is None else bool(size >= DISCRETE_MEMORY)

    if not any(is_card(gpu) for gpu in gpus):
        return gpus
    part = "it is part of the processor, and there is a card"
    return [dict(gpu, unusable=part) if is_card(gpu) is False else gpu for gpu in gpus]


def parse_amd_smi(static: str, listing: str) -> List[Facts]:
    """``amd-smi static --asic --vram --driver --json`` and ``amd-smi list --json``; newer ones wrap the list."""

    def entries(text: str) -> List[Facts]:
        document = json_in(text)
        if isinstance(document, dict):
            document = document.get("gpu_data", [])
        return [entry for entry in document if isinstance(entry, dict)]

    identity = {entry.get("gpu"): known(entry.get("uuid")) for entry in entries(listing)}
    found = []
    for position, entry in enumerate(entries(static)):
        asic, vram, driver = (entry.get(part) or {} for part in ("asic", "vram", "driver"))
        if not (isinstance(asic, dict) and isinstance(vram, dict) and isinstance(driver, dict)):
            raise PartFailed("amd-smi answered in an unknown form")
        size = vram.get("size")
        value = to_int(str(size.get("value"))) if isinstance(size, dict) else to_int(str(size).split(" ")[0])
        index = to_int(str(entry.get("gpu", position)))
        found.append(
            accelerator(
                "rocm",
                position if index is None else index,
                known(asic.get("market_name")) or known(asic.get("target_graphics_version")),
                None if value is None else value * MIB,
                driver=known(driver.get("version", driver.get("driver_version"))),
                uuid=identity.get(entry.get("gpu")),
                capability=amd_architecture(asic.get("target_graphics_version"), OVERRIDE),
            )
        )
    return found


def parse_rocm_smi(text: str) -> List[Facts]:
    """``rocm-smi --showproductname --showmeminfo vram --showdriverversion --showuniqueid --json``.

    The capitals in its keys changed between versions, so they do not count here.
    """
    document = json_in(text)
    if not isinstance(document, dict):
        raise PartFailed("rocm-smi answered in an unknown form")
    cards: Dict[str, Dict[str, Any]] = {}
    for name, card in document.items():
        if isinstance(card, dict):
            cards[name] = {key.lower(): value for key, value in card.items()}
    driver = known(cards.get("system", {}).get("driver version"))
    found = []
    for name in sorted(cards, key=lambda name: to_int(name[4:]) or 0):
        card = cards[name]
        if re.match(r"card\d+$", name) is None:
            continue
        title = known(card.get("card series")) or known(card.get("card model")) or known(card.get("gfx version"))
        memory = to_int(str(card.get("vram total memory (b)")))
        gfx = amd_architecture(card.get("gfx version"), OVERRIDE)
        unique = known(card.get("unique id"))
        found.append(accelerator("rocm", int(name[4:]), title, memory, driver=driver, uuid=unique, capability=gfx))
    return found


def parse_xpu_dump(text: str) -> List[Facts]:
    """``xpu-smi discovery --dump 1,2,4,8,16``: CSV with a head line, sizes such as ``32768.00 MiB``."""
    found = []
    for row in csv.DictReader(text.splitlines(), skipinitialspace=True):
        index = to_int(row.get("Device ID"))
        if index is None:
            continue
        size = re.match(r"([\d.]+) MiB$", (row.get("Memory Physical Size") or "").strip())
        memory = to_int(size.group(1)) if size else None
        uuid = known(row.get("SOC UUID") or row.get("UUID"))
        driver = known(row.get("Driver Version"))
        name = known(row.get("Device Name"))
        found.append(accelerator("xpu", index, name, memory * MIB if memory else None, driver=driver, uuid=uuid))
    return found


def parse_system_profiler(text: str, memory: Optional[int]) -> List[Facts]:
    """``system_profiler SPDisplaysDataType -json``: Apple's own GPUs, which share ``memory`` with the processor."""
    document = json_in(text)
    displays = document.get("SPDisplaysDataType", []) if isinstance(document, dict) else []
    names = [
        known(entry.get("sppci_model")) or known(entry.get("_name"))
        for entry in displays
        if isinstance(entry, dict) and "apple" in str(entry.get("spdisplays_vendor", "")).lower()
    ]
    return [accelerator("mps", index, name, memory) for index, name in enumerate(names)]


def display_controllers(vendor: str, devices: str = "/sys/bus/pci/devices") -> List[str]:
    """Addresses of a vendor's display controllers (PCI class 03) that are plugged in, driver or not."""
    return [
        os.path.basename(folder)
        for folder in sorted(glob.glob(os.path.join(devices, "*")))
        if (read_text(os.path.join(folder, "class")) or "").startswith("0x03")
        and (read_text(os.path.join(folder, "vendor")) or "").strip() == vendor
    ]


def has_nvidia_card(devices: str = "/sys/bus/pci/devices") -> bool:
    """Whether an NVIDIA GPU is plugged in."""
    return bool(display_controllers("0x10de", devices))


def has_intel_card(devices: str = "/sys/bus/pci/devices") -> bool:
    """Whether an Intel GPU is plugged in; the one that is part of the processor sits on the first bus."""
    return any(":00:" not in address for address in display_controllers("0x8086", devices))


def has_amd_card(drivers: str = "/sys/bus/pci/drivers/amdgpu") -> bool:
    """Whether the kernel drives an AMD GPU with memory of its own."""
    sizes = [to_int(read_text(path)) for path in glob.glob(os.path.join(drivers, "*", "mem_info_vram_total"))]
    return any(size is not None and size >= DISCRETE_MEMORY for size in sizes)


def read_nvidia(commands: Commands) -> List[Facts]:
    program = find_program("nvidia-smi")
    if program is None:
        if has_nvidia_card():
            raise PartFailed("an NVIDIA GPU is there, but its driver is not: nvidia-smi was not found")
        return []
    query = "--query-gpu=index,name,memory.total,driver_version,uuid"
    try:
        try:
            text = commands.run(program, query + ",compute_cap", "--format=csv,noheader,nounits")
        except PartFailed as failure:
            if "compute_cap" not in str(failure):
                raise
            text = commands.run(program, query, "--format=csv,noheader,nounits")  # a driver before 510
    except PartFailed as failure:
        if "No devices were found" in str(failure):
            return []
        raise
    gpus = parse_nvidia_query(text)
    if not gpus and text.strip() and "No devices were found" not in text:
        raise PartFailed("nvidia-smi answered in an unknown form: %s" % text.strip().splitlines()[0][:80])
    return gpus


def read_amd(commands: Commands) -> List[Facts]:
    failure: Optional[PartFailed] = None
    amd_smi, rocm_smi = find_program("amd-smi"), find_program("rocm-smi")
    if amd_smi:
        try:
            static = commands.run(amd_smi, "static", "--asic", "--vram", "--driver", "--json")
            return without_processors(parse_amd_smi(static, commands.run(amd_smi, "list", "--json")))
        except PartFailed as error:
            failure = error
    if rocm_smi:
        shown = ("--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--showuniqueid", "--json")
        return without_processors(parse_rocm_smi(commands.run(rocm_smi, *shown)))
    if failure is not None:
        raise failure
    if has_amd_card():
        raise PartFailed("an AMD GPU is there, but ROCm is not: neither amd-smi nor rocm-smi was found")
    return []


def read_intel(commands: Commands) -> List[Facts]:
    program = find_program("xpu-smi")
    if program is not None:
        return parse_xpu_dump(commands.run(program, "discovery", "--dump", "1,2,4,8,16"))
    if has_intel_card():
        raise PartFailed("an Intel GPU is there, but xpu-smi, which tells what it is, was not found")
    return []


def read_apple(commands: Commands) -> List[Facts]:
    if not MACOS or platform.machine() != "arm64":
        return []
    memory = to_int(sysctl(commands, "hw.memsize"))
    return parse_system_profiler(commands.run("system_profiler", "SPDisplaysDataType", "-json"), memory)


# --- Network --------------------------------------------------------------------------------------------------------


def address(interface: str, text: str, prefix: Optional[int], speed: Optional[int]) -> Facts:
    return {"interface": interface, "address": text, "prefix": prefix, "speed_mbps": speed}


def usable(text: str) -> bool:
    """Whether other machines can reach it: neither loopback nor link-local."""
    return not text.lower().startswith(("127.", "169.254.", "::1", "fe80:"))


def parse_ip_addr(text: str, speed: Callable[[str], Optional[int]]) -> List[Facts]:
    """``ip -j addr``: the addresses of interfaces that are up."""
    found = []
    for link in json_in(text):
        if "UP" not in link.get("flags", []):
            continue
        for entry in link.get("addr_info", []):
            local = entry.get("local")
            temporary = entry.get("temporary") or entry.get("deprecated")
            if local and usable(local) and entry.get("scope") == "global" and not temporary:
                found.append(address(link["ifname"], local, entry.get("prefixlen"), speed(link["ifname"])))
    return found


def mask_prefix(mask: str) -> Optional[int]:
    """Prefix length of a netmask: ``0xffffff00`` (macOS) or ``255.255.255.0``."""
    try:
        value = int(mask, 16) if mask.startswith("0x") else int.from_bytes(socket.inet_aton(mask), "big")
    except (ValueError, OSError):
        return None
    return bin(value).count("1")


def parse_ifconfig(text: str, speed: Callable[[str], Optional[int]]) -> List[Facts]:
    """``ifconfig`` of macOS, BSD and old and new Linux: the addresses of interfaces that are up."""
    found = []
    for block in re.split(r"\n(?=\S)", text):
        name = re.match(r"([\w.-]+):?\s", block)
        if name is None or not re.search(r"\bUP\b", block) or re.search(r"status: inactive", block):
            continue
        media = re.search(r"\((\d+)base", block)
        mbps = int(media.group(1)) if media else speed(name.group(1))
        for local, mask in re.findall(r"inet (?:addr:)?([\d.]+).*?(?:netmask |Mask:)(\S+)", block):
            if usable(local):
                found.append(address(name.group(1), local, mask_prefix(mask), mbps))
        for local, prefix in re.findall(r"inet6 (?:addr: )?([0-9a-fA-F:]+)(?:%\w+)?(?:/| +prefixlen )(\d+)", block):
            if usable(local) and not re.search(re.escape(local) + r".*(temporary|deprecated)", block):
                found.append(address(name.group(1), local, int(prefix), mbps))
    return found


def interface_speed(name: str) -> Optional[int]:
    """The link's speed as Linux knows it; Wi-Fi and virtual interfaces have none."""
    speed = to_int(read_text("/sys/class/net/%s/speed" % name))
    return speed if speed is not None and speed > 0 else None


def outgoing_address() -> List[Facts]:
    """The address that packets leave from, where no program lists them. Connecting a UDP socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        local = probe.getsockname()[0]
    return [address("", local, None, None)] if usable(local) else []


def read_addresses(commands: Commands) -> List[Facts]:
    ip, ifconfig = find_program("ip"), find_program("ifconfig")
    if ip and not MACOS:
        try:
            return parse_ip_addr(commands.run(ip, "-j", "addr"), interface_speed)
        except PartFailed:  # an old iproute2 or BusyBox without -j
            pass
    if ifconfig:
        return parse_ifconfig(commands.run(ifconfig, "-a"), interface_speed)
    return outgoing_address()


def read_free_ports(_: Commands) -> List[int]:
    free = []
    for port in PORTS:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
            if sys.platform == "linux":  # elsewhere this option lets two sockets share a port
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("", port))
            except OSError:
                continue
            free.append(port)
    return free


# --- Python and the rest --------------------------------------------------------------------------------------------


def parse_torch_version(text: str) -> Optional[str]:
    """The kind of build that ``torch/version.py`` names (``cpu``, ``cu126``, ``rocm6.2``, ``xpu``); None: none."""
    values = dict(re.findall(r"^(\w+)\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    if "__version__" not in values:
        return None
    local = values["__version__"].partition("+")[2]
    if re.match(r"(cpu|cu\d+|rocm[\d.]+|xpu)$", local):
        return str(local)
    if "cuda" in values:
        return "cu%s" % values["cuda"].replace(".", "")
    if "hip" in values:
        return "rocm%s" % ".".join(values["hip"].split(".")[:2])
    return "xpu" if "xpu" in values else "cpu"


METADATA = re.compile(r"([^-]+)(?:-.+)?\.(?:dist|egg)-info$")
"""A file or folder beside a package, which pip or distutils wrote; the name of the package."""


def recorded_version(entry: str) -> Optional[str]:
    """The version in such metadata: a wheel's, an egg's, or a single file."""
    for path in (os.path.join(entry, "METADATA"), os.path.join(entry, "PKG-INFO"), entry):
        found = re.search(r"^Version:\s*(\S+)", read_text(path) or "", re.MULTILINE)
        if found:
            return found.group(1)
    return None


def read_packages(places: Optional[List[str]]) -> Tuple[Dict[str, Optional[str]], Optional[str]]:
    """(version by package, torch's build) in these folders, or on this Python's path. Nothing is imported.

    importlib.metadata would take a third of the probe's processor time.
    """
    import site

    if places is None:
        # With -I, as the probe runs, a user's own packages are left out, which the agent will find.
        own = [] if sys.prefix != sys.base_prefix else [site.getusersitepackages()]
        places = [*sys.path, *own]
    versions: Dict[str, Optional[str]] = dict.fromkeys(PACKAGES)
    build = None
    for place in places:
        try:
            entries = sorted(os.listdir(place or "."))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        for entry in entries:
            found = METADATA.match(entry)
            name = found.group(1).lower() if found else ""
            if name in versions and versions[name] is None:  # the first on the path is the one that is imported
                versions[name] = recorded_version(os.path.join(place, entry))
                if name == "torch" and versions[name] is not None:
                    build = parse_torch_version(read_text(os.path.join(place, "torch", "version.py")) or "")
    if build == "cpu" and MACOS and platform.machine() == "arm64":
        build = "mps"  # the same wheel holds both
    return versions, build


def read_python(folder: str) -> Facts:
    versions, build = read_packages(None)
    environment = os.path.join(folder, "env", "bin", "python")
    present = os.access(environment, os.X_OK)
    places = glob.glob(os.path.join(folder, "env", "lib", "python3*", "site-packages")) if present else []
    return {
        "packages": versions,
        "torch_build": build,
        "environment_python": environment if present else None,
        "environment_packages": read_packages(places)[0] if places else None,
    }


def shared_place(path: str, mounts: str) -> Optional[str]:
    """The same for all machines that have a folder from one server; None: it lies on this machine's own disk.

    ``mounts`` is /proc/self/mounts: https://man7.org/linux/man-pages/man5/fstab.5.html
    """
    best = ("", "", "")
    for line in mounts.splitlines():
        words = [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), word) for word in line.split()]
        if len(words) < 3:
            continue
        device, place, kind = words[:3]
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best[1]):
            best = (device, place, kind)
    device, place, kind = best
    return device + path[len(place.rstrip("/")) :] if kind in NETWORK_DISKS else None


def folder_identity(path: str) -> Optional[str]:
    """The same on all machines that have a folder from one server, and on that server; None: it can't be looked at.

    A client may remember what it was; opening it asks the server.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return "%d %d" % (found.st_ino, found.st_ctime_ns)


def read_disk(folder: str) -> Facts:
    path = folder
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    place = path
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    usage = shutil.disk_usage(place)
    return {
        "path": printable(path),
        "total_bytes": usage.total,
        "free_bytes": usage.free,
        "unwritable": unwritable(path),
        "shared": shared_place(os.path.realpath(place), read_text("/proc/self/mounts") or ""),
        "identity": folder_identity(place),
    }


def unwritable(path: str) -> str:
    """Why this user can't make files in a folder; empty where it can. Nothing is written to find out."""
    home = os.path.expanduser("~")
    if not (os.path.isabs(home) and os.path.isdir(home)):
        return "the home folder %s is not there" % home
    if printable(home) != home:
        return "the name of the home folder has a tab, a line break or the like in it, which Ray can't use"
    if not os.path.isdir(path):
        return "it is no folder"
    place = os.statvfs(path)
    if place.f_flag & os.ST_RDONLY:
        return "the file system is read-only"
    if place.f_files and place.f_favail < LEAST_FILES:  # f_files is 0 where the file system does not count them
        return "the file system has room for %d more files (inodes) only" % place.f_favail
    is_own = os.stat(path).st_uid == os.getuid()
    if not os.access(path, os.W_OK | os.X_OK):
        return "its mode or attributes forbid it (`ls -ld`, `lsattr -d`)" if is_own else "it belongs to another user"
    if not is_own and os.path.realpath(path) != os.path.realpath(home):
        return "it belongs to another user, who could change what runs there"
    return ""


def read_lacks() -> List[str]:
    """What Linux has everywhere, Ray and training can't do without, and this machine or container has not."""
    if not sys.platform.startswith("linux"):
        return []
    lacks = []
    if not os.path.isdir("/proc/self/fd"):
        lacks.append("/proc is not mounted")
    shared = "/dev/shm"  # noqa: S108 - it is looked at, not used
    if not os.path.isdir(shared):
        lacks.append("%s is not there" % shared)
    elif os.statvfs(shared).f_flag & os.ST_RDONLY or not os.access(shared, os.W_OK | os.X_OK):
        lacks.append("nothing can be written in %s" % shared)
    return lacks


def task_limit(membership: str, root: str = "/sys/fs/cgroup") -> Optional[int]:
    """How many processes and threads this process's cgroups may have; None when there is no limit."""
    texts = [read_text(os.path.join(folder, "pids.max")) for folder in cgroup_folders("pids", membership, root)]
    return min([limit for limit in map(to_int, texts) if limit is not None], default=None)


def read_limits() -> Dict[str, Optional[int]]:
    """What each process of this user may have at most (``ulimit``), and ``tasks`` its cgroup; null: no limit.

    Of open files it is the hard limit, to which Ray raises its own.
    """
    import resource

    found: Dict[str, Optional[int]] = {}
    for name, kind, which in (
        ("memory_bytes", "RLIMIT_AS", 0),
        ("processes", "RLIMIT_NPROC", 0),
        ("files", "RLIMIT_NOFILE", 1),
        ("file_bytes", "RLIMIT_FSIZE", 0),
        ("seconds", "RLIMIT_CPU", 0),
    ):
        limit = resource.getrlimit(getattr(resource, kind))[which]
        found[name] = limit if 0 <= limit < 2**62 else None
    if os.getuid() == 0 and not MACOS:  # Linux does not count root's
        found["processes"] = None
    return dict(found, tasks=task_limit(read_text("/proc/self/cgroup") or ""))


def printable(path: str) -> str:
    """A path as it can be shown: signs of control are question marks."""
    return re.sub(r"[\x00-\x1f\x7f]", "?", path)


def machine_identity(folder: str, root: str = "/") -> Optional[str]:
    """The same for all who reach this machine as this user and would use this folder, by whatever name; None: unknown.

    That is the computer since it was started, the container (its processes' name space), and the folder's place.
    """
    place = os.stat(os.path.expanduser("~"))
    return identity_of("pid", str(os.getuid()), str(place.st_dev), str(place.st_ino), folder, root=root)


def identity_of(space: str, *parts: str, root: str = "/") -> Optional[str]:
    """A short name of the computer since it was started, of this process's name space of a kind, and of ``parts``."""
    started = read_text(os.path.join(root, "proc/sys/kernel/random/boot_id"))
    if MACOS:
        started = subprocess.run(
            ["sysctl", "-n", "kern.bootsessionuuid"], stdout=subprocess.PIPE, timeout=5, check=False
        ).stdout.decode()
    if not (started or "").strip():
        return None
    try:
        number = os.readlink(os.path.join(root, "proc/self/ns", space))
    except OSError:
        number = ""
    whole = ((started or "").strip(), number, *parts)
    return hashlib.sha256("\0".join(whole).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry, as in some containers
        return str(os.getuid())


def simulated_speed() -> Optional[float]:
    try:
        return float(os.environ["HETERO_TUI_SIMULATED_SPEED"])
    except (KeyError, ValueError):
        return None


def power_state(commands: Commands, supplies: str = "/sys/class/power_supply") -> Optional[str]:
    """``battery`` or ``mains``: a laptop computes at another speed on its battery; None: unknown."""
    if MACOS:
        text = commands.run("pmset", "-g", "batt")
        return ("battery" if "'Battery Power'" in text else "mains") if text else None
    try:
        states = [read_text(os.path.join(supplies, name, "status")) or "" for name in os.listdir(supplies)]
    except OSError:
        return None
    return "battery" if "Discharging" in [state.strip() for state in states] else "mains"


FILES_FOR_ALL_PARTS = 200  # open files that the parts below have together, at most


def look(folder: str, deadline: float) -> Facts:
    """All facts about this machine, within ``deadline`` seconds."""
    commands = Commands(max(0.5, deadline - REPORT_SECONDS))
    parts: Dict[str, Callable[[], Any]] = {
        "cpu": lambda: read_cpu(commands),
        "memory": lambda: read_memory(commands),
        "disk": lambda: read_disk(folder),
        "NVIDIA GPUs": lambda: read_nvidia(commands),
        "AMD GPUs": lambda: read_amd(commands),
        "Intel GPUs": lambda: read_intel(commands),
        "Apple GPU": lambda: read_apple(commands),
        "addresses": lambda: read_addresses(commands),
        "free_ports": lambda: read_free_ports(commands),
        "python": lambda: read_python(folder),
        "machine": lambda: machine_identity(folder),
        "computer": lambda: identity_of("net"),
        "power": lambda: power_state(commands),
        "limits": read_limits,
        "lacks": read_lacks,
    }
    if simulated_speed() is not None:  # the demo's and the lab's machines compute on the CPU they share
        for name in GPU_PARTS:
            del parts[name]
    values: Dict[str, Any] = {}
    problems: Dict[str, str] = {}

    def look_at(name: str) -> None:
        try:
            values[name] = parts[name]()
        except PartFailed as failure:
            problems[name] = str(failure)
        except Exception as error:  # noqa: BLE001 - a part must never take the others down with it
            problems[name] = "%s could not be read: %s: %s" % (name, type(error).__name__, error)

    # Together the parts would run out of files, and a file that can't be opened is taken for one that is not there.
    together = (read_limits()["files"] or FILES_FOR_ALL_PARTS) >= FILES_FOR_ALL_PARTS
    threads = [(name, threading.Thread(target=look_at, args=(name,), daemon=True)) for name in parts]
    for name, thread in threads:
        try:
            thread.start()
        except RuntimeError:  # no more processes for this user: then one after the other
            look_at(name)
        else:
            if not together:
                thread.join(commands.remaining())
    for name, thread in threads:
        if thread.ident is None:
            continue
        thread.join(commands.remaining())
        if thread.is_alive():
            problems[name] = "%s did not answer within %g s" % (name, deadline)
    values, problems = dict(values), dict(problems)  # a late thread no longer counts
    python = values.get("python", {})
    return {
        "probe": VERSION,
        "hostname": socket.gethostname(),
        "user": user_name(),
        "home": printable(os.path.expanduser("~")),
        "os": {
            "system": platform.system(),
            "release": platform.release(),
            "name": system_name(),
            "machine": platform.machine(),
        },
        "python": {"version": platform.python_version(), "executable": sys.executable, "prefix": sys.prefix},
        "packages": python.get("packages", dict.fromkeys(PACKAGES)),
        "torch_build": python.get("torch_build"),
        "environment_python": python.get("environment_python"),
        "environment_packages": python.get("environment_packages"),
        "cpu": values.get("cpu", {"model": None, "physical": None, "logical": os.cpu_count(), "quota": None}),
        "memory": values.get("memory", {"total_bytes": None, "available_bytes": None}),
        "disk": values.get("disk", {"path": folder, "total_bytes": None, "free_bytes": None}),
        "accelerators": [gpu for name in GPU_PARTS for gpu in values.get(name, [])],
        "addresses": values.get("addresses", []),
        "free_ports": values.get("free_ports", []),
        "machine": values.get("machine"),
        "computer": values.get("computer"),
        "power": values.get("power"),
        "limits": values.get("limits", {}),
        "lacks": values.get("lacks", []),
        "clock": time.time(),
        "simulated_speed": simulated_speed(),
        "unread": [kind for name, kind in GPU_PARTS.items() if name in problems],
        "problems": [problems[name] for name in parts if name in problems],
    }


def system_name() -> str:
    """What people call this system: ``Debian GNU/Linux 12 (bookworm)``, ``macOS 15.1``."""
    if MACOS:
        return "macOS %s" % platform.mac_ver()[0]
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', read_text("/etc/os-release") or "", re.MULTILINE)
    return found.group(1) if found else platform.system()


def main() -> None:
    """Print the facts and leave at once: a thread that still hangs in a driver must not hold the probe."""
    if sys.version_info[:2] < OLDEST_PYTHON:
        wanted = ".".join(str(part) for part in OLDEST_PYTHON)
        sys.exit("Python %s is too old: %s or newer is needed here" % (platform.python_version(), wanted))
    parser = argparse.ArgumentParser(prog="probe", description="Print what this machine is and has, as one JSON line.")
    parser.add_argument("--folder", default="~/.hetero-tui", help="the cluster's folder on this machine")
    parser.add_argument("--deadline", type=float, default=DEFAULT_DEADLINE_SECONDS, help="seconds for all of it")
    options = parser.parse_args()
    facts = look(os.path.abspath(os.path.expanduser(options.folder)), options.deadline)
    print(json.dumps(facts), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
