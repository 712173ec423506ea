"""What each vendor's programs print, in several versions, and what the probe makes of it."""

from __future__ import annotations

import json

import pytest

from remote_agent import probe

GIB = 2**30


def test_nvidia_gpus_with_their_memory_driver_and_uuid():
    text = (
        "0, NVIDIA GeForce RTX 3090, 24576, 550.54.14, GPU-2c0e7f5b-1f4e-6c1d-1a11-3d5a6b7c8d9e\n"
        "1, GeForce GTX 1080 Ti, 11178, 470.82.01, GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee\n"
    )
    first, second = probe.parse_nvidia_query(text)
    assert first["name"] == "NVIDIA GeForce RTX 3090"
    assert first["memory_bytes"] == 24576 * 2**20
    assert (second["index"], second["driver"]) == (1, "470.82.01")


@pytest.mark.parametrize("missing", ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]"])
def test_memory_that_nvidia_does_not_tell_is_unknown_and_not_zero(missing):
    (gpu,) = probe.parse_nvidia_query(f"0, NVIDIA GB10, {missing}, 580.65.06, GPU-1\n")
    assert gpu["memory_bytes"] is None
    assert gpu["name"] == "NVIDIA GB10"


@pytest.mark.parametrize("text", ["", "\n", "No devices were found\n", "garbage", "a, b, c, d, e\n", "\x00\xff"])
def test_nvidia_output_without_gpus_has_none(text):
    assert probe.parse_nvidia_query(text) == []


AMD_STATIC = [
    {
        "gpu": 0,
        "asic": {"market_name": "AMD Radeon RX 7900 XTX", "vendor_id": "0x1002", "target_graphics_version": "gfx1100"},
        "driver": {"name": "amdgpu", "version": "6.8.5"},
        "vram": {"type": "GDDR6", "vendor": "SAMSUNG", "size": {"value": 24560, "unit": "MB"}},
    },
    {
        "gpu": 1,
        "asic": {"market_name": "N/A", "target_graphics_version": "gfx1036"},
        "driver": {"driver_name": "amdgpu", "driver_version": "6.8.5"},
        "vram": {"type": "N/A", "size": "N/A"},
    },
]
AMD_LIST = [{"gpu": 0, "bdf": "0000:03:00.0", "uuid": "c4ff744c-0000-1000-80d3"}, {"gpu": 1, "uuid": "N/A"}]


@pytest.mark.parametrize(
    "wrap", [lambda entries: entries, lambda entries: {"gpu_data": entries}], ids=["ROCm 6", "ROCm 7"]
)
def test_amd_gpus_from_amd_smi(wrap):
    warning = "WARNING: User is missing the following required groups: render\n"
    first, second = probe.parse_amd_smi(warning + json.dumps(wrap(AMD_STATIC), indent=4), json.dumps(wrap(AMD_LIST)))
    assert first == {
        "kind": "rocm",
        "index": 0,
        "name": "AMD Radeon RX 7900 XTX",
        "memory_bytes": 24560 * 2**20,
        "driver": "6.8.5",
        "uuid": "c4ff744c-0000-1000-80d3",
        "capability": "gfx1100",
    }
    assert (second["name"], second["memory_bytes"], second["driver"], second["uuid"]) == (
        "gfx1036",
        None,
        "6.8.5",
        None,
    )


@pytest.mark.parametrize(
    ("text", "override", "name"),
    [
        ("gfx1030", None, "gfx1030"),
        ("gfx90a:sramecc+:xnack-", None, "gfx90a"),
        ("gfx1031", "10.3.0", "gfx1030"),
        ("gfx90c", "9.0.10", "gfx90a"),
        ("gfx1031", "none", "gfx1031"),
        ("N/A", None, None),
        (None, None, None),
    ],
)
def test_the_architecture_of_an_amd_gpu_is_that_which_rocm_takes_it_for(text, override, name):
    assert probe.amd_architecture(text, override) == name


def test_an_amd_gpu_in_the_processor_is_left_out_beside_a_card_and_not_where_it_is_the_only_one():
    card, inside, unknown = (probe.accelerator("rocm", 0, "x", size) for size in (16 * GIB, GIB // 2, None))
    assert [gpu.get("unusable", "")[:14] for gpu in probe.without_processors([card, inside, unknown])] == [
        "",
        "it is part of ",
        "",
    ]
    assert probe.without_processors([inside, unknown]) == [inside, unknown]


@pytest.mark.parametrize("series", ["Card series", "Card Series"], ids=["ROCm 5", "ROCm 6"])
def test_amd_gpus_from_rocm_smi(series):
    card = {series: "Radeon RX 6800 XT", "Unique ID": "0x7d24b1a5c", "VRAM Total Memory (B)": "17163091968"}
    document = {"card10": {series: "N/A", "Card model": "0x1478"}, "card0": card, "system": {"Driver version": "6.1.5"}}
    first, second = probe.parse_rocm_smi("======= ROCm =======\n\n" + json.dumps(document))
    assert (first["index"], first["name"], first["memory_bytes"]) == (0, "Radeon RX 6800 XT", 17163091968)
    assert (first["driver"], first["uuid"]) == ("6.1.5", "0x7d24b1a5c")
    assert (second["index"], second["name"], second["memory_bytes"]) == (10, "0x1478", None)


@pytest.mark.parametrize("text", ["", "No AMD GPUs detected", "[1, 2", '"text"'])
def test_amd_output_that_is_not_json_is_a_problem_and_no_crash(text):
    with pytest.raises(probe.PartFailed):
        probe.parse_amd_smi(text, "[]")
    with pytest.raises(probe.PartFailed):
        probe.parse_rocm_smi(text)


def test_an_apple_gpu_shares_the_machines_memory_and_an_intel_macs_gpu_does_not_count():
    apple = {
        "_name": "Apple M2 Pro",
        "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
        "spdisplays_vendor": "sppci_vendor_Apple",
        "sppci_cores": "19",
        "sppci_model": "Apple M2 Pro",
    }
    intel = {"_name": "Intel UHD Graphics 630", "spdisplays_vendor": "Intel", "sppci_model": "Intel UHD Graphics 630"}
    (gpu,) = probe.parse_system_profiler(json.dumps({"SPDisplaysDataType": [intel, apple]}), 32 * GIB)
    assert (gpu["kind"], gpu["name"], gpu["memory_bytes"]) == ("mps", "Apple M2 Pro", 32 * GIB)
    assert probe.parse_system_profiler("{}", None) == []


def test_available_memory_of_a_mac_is_what_can_be_given_back():
    text = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                               12345.\n"
        "Pages active:                            400000.\n"
        "Pages inactive:                          300000.\n"
        "Pages speculative:                         1000.\n"
        "Pages purgeable:                            655.\n"
        '"Translation faults":                 123456789.\n'
    )
    assert probe.parse_vm_stat(text) == (12345 + 300000 + 1000 + 655) * 16384
    assert probe.parse_vm_stat("") is None


def test_cores_are_counted_once_per_socket_and_an_arm_kernel_tells_none():
    intel = "\n\n".join(
        f"processor\t: {number}\nmodel name\t: Intel(R) Xeon(R) Gold 6130\n"
        f"physical id\t: {number // 4}\ncore id\t\t: {number % 2}"
        for number in range(8)
    )
    assert probe.parse_cpuinfo(intel) == ("Intel(R) Xeon(R) Gold 6130", 4)
    arm = "processor\t: 0\nBogoMIPS\t: 108.00\n\nHardware\t: BCM2711\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n"
    assert probe.parse_cpuinfo(arm) == ("Raspberry Pi 4 Model B Rev 1.4", None)
    assert probe.parse_cpuinfo("") == (None, None)


def test_addresses_from_ip_leave_out_loopback_link_local_and_what_is_down():
    links = [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "addr_info": [{"local": "127.0.0.1", "scope": "host"}]},
        {
            "ifname": "eth0",
            "flags": ["BROADCAST", "UP", "LOWER_UP"],
            "addr_info": [
                {"family": "inet", "local": "192.168.1.12", "prefixlen": 24, "scope": "global"},
                {"family": "inet6", "local": "2001:db8::12", "prefixlen": 64, "scope": "global"},
                {"family": "inet6", "local": "2001:db8::99", "prefixlen": 64, "scope": "global", "temporary": True},
                {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"},
            ],
        },
        {"ifname": "wlan0", "flags": ["BROADCAST"], "addr_info": [{"local": "192.168.1.13", "scope": "global"}]},
        {"ifname": "veth1", "flags": ["UP"], "addr_info": [{}]},
    ]
    found = probe.parse_ip_addr(json.dumps(links), lambda name: 1000 if name == "eth0" else None)
    assert [(entry["interface"], entry["address"], entry["prefix"], entry["speed_mbps"]) for entry in found] == [
        ("eth0", "192.168.1.12", 24, 1000),
        ("eth0", "2001:db8::12", 64, 1000),
    ]


MAC_IFCONFIG = """lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
\tinet6 ::1 prefixlen 128
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 3c:06:30:00:00:00
\tinet6 fe80::c4a:1%en0 prefixlen 64 secured scopeid 0xb
\tinet 192.168.1.20 netmask 0xffffff00 broadcast 192.168.1.255
\tinet6 fd00::20 prefixlen 64 autoconf secured
\tinet6 fd00::21 prefixlen 64 autoconf temporary
\tmedia: autoselect (1000baseT <full-duplex>)
\tstatus: active
en5: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet 169.254.8.1 netmask 0xffff0000 broadcast 169.254.255.255
\tstatus: inactive
"""
LINUX_IFCONFIG = """eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500
        inet 10.0.0.5  netmask 255.255.240.0  broadcast 10.0.15.255
        inet6 fe80::1  prefixlen 64  scopeid 0x20<link>
"""
BUSYBOX_IFCONFIG = """eth0      Link encap:Ethernet  HWaddr 02:42:AC:11:00:02
          inet addr:172.17.0.2  Bcast:172.17.255.255  Mask:255.255.0.0
          UP BROADCAST RUNNING MULTICAST  MTU:1500  Metric:1
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MAC_IFCONFIG, [("en0", "192.168.1.20", 24, 1000), ("en0", "fd00::20", 64, 1000)]),
        (LINUX_IFCONFIG, [("eth0", "10.0.0.5", 20, None)]),
        (BUSYBOX_IFCONFIG, [("eth0", "172.17.0.2", 16, None)]),
        ("", []),
    ],
    ids=["macOS", "Linux", "BusyBox", "empty"],
)
def test_addresses_from_ifconfig(text, expected):
    found = probe.parse_ifconfig(text, lambda _: None)
    assert [(entry["interface"], entry["address"], entry["prefix"], entry["speed_mbps"]) for entry in found] == expected


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", "cpu"),
        ("__version__ = '2.6.0+cu126'\ncuda: Optional[str] = '12.6'\n", "cu126"),
        ("__version__ = '2.7.0'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "cu128"),
        ("__version__ = '2.5.1+rocm6.2'\ncuda: Optional[str] = None\nhip = '6.2.41133-dd7f95766'\n", "rocm6.2"),
        ("__version__ = '2.5.1+gitabc'\nhip: Optional[str] = '6.2.41133'\n", "rocm6.2"),
        ("__version__ = '2.13.0+xpu'\ncuda: Optional[str] = None\n", "xpu"),
        ("__version__ = '2.5.1'\ncuda = None\n", "cpu"),
        ("__version__ = '2.8.0'\ncuda: Optional[str] = None\nxpu: Optional[str] = '20250101'\n", "xpu"),
        ("", None),
    ],
)
def test_the_kind_of_torch_build_is_read_from_its_version_file(text, build):
    assert probe.parse_torch_version(text) == build


def test_a_containers_limits_hold_in_both_versions_of_cgroups(tmp_path):
    second = tmp_path / "user.slice" / "job"
    second.mkdir(parents=True)
    (second / "cpu.max").write_text("150000 100000\n")
    (second / "memory.max").write_text("1073741824\n")
    (second / "memory.current").write_text("500000000\n")
    (second / "memory.stat").write_text("anon 100\ninactive_file 200000000\nfile 3\n")
    first = tmp_path / "memory" / "docker"
    first.mkdir(parents=True)
    (first / "memory.limit_in_bytes").write_text("2147483648\n")
    (first / "memory.usage_in_bytes").write_text("100\n")

    folders = probe.cgroup_folders("cpu", "0::/user.slice/job\n", root=str(tmp_path))
    assert [probe.cpu_quota(folder) for folder in folders] == [1.5, None, None]
    assert probe.memory_limit(str(second)) == (1073741824, 300000000)
    (inner, _) = probe.cgroup_folders("memory", "4:memory:/docker\n", root=str(tmp_path))
    assert probe.memory_limit(inner) == (2147483648, 100)
    assert probe.memory_limit(str(tmp_path)) is None

    assert probe.task_limit("0::/user.slice/job\n", root=str(tmp_path)) is None
    (second / "pids.max").write_text("max\n")
    (second.parent / "pids.max").write_text("120\n")
    assert probe.task_limit("0::/user.slice/job\n", root=str(tmp_path)) == 120
    (tmp_path / "pids" / "docker").mkdir(parents=True)
    (tmp_path / "pids" / "docker" / "pids.max").write_text("64\n")
    assert probe.task_limit("9:pids:/docker\n", root=str(tmp_path)) == 64


def test_a_card_without_its_driver_is_noticed_and_an_integrated_one_is_not_called_missing(tmp_path):
    assert not probe.has_nvidia_card(str(tmp_path))
    assert not probe.has_amd_card(str(tmp_path))
    for address, kind, vendor in (
        ("01", "0x030000", "0x10de"),
        ("02", "0x040300", "0x10de"),
        ("03", "0x030000", "0x1002"),
    ):
        card = tmp_path / "all" / address
        card.mkdir(parents=True)
        (card / "class").write_text(kind + "\n")
        (card / "vendor").write_text(vendor + "\n")
    assert probe.has_nvidia_card(str(tmp_path / "all"))
    (tmp_path / "all" / "01" / "vendor").write_text("0x1a03\n")
    assert not probe.has_nvidia_card(str(tmp_path / "all")), "an NVIDIA sound device is no GPU"

    memory = tmp_path / "amdgpu" / "0000:0a:00.0" / "mem_info_vram_total"
    memory.parent.mkdir(parents=True)
    memory.write_text("536870912\n")
    assert not probe.has_amd_card(str(tmp_path / "amdgpu"))
    memory.write_text("17163091968\n")
    assert probe.has_amd_card(str(tmp_path / "amdgpu"))


def test_intel_gpus_from_xpu_smi_in_its_old_and_new_wording():
    old = """Device ID,Device Name,UUID,Driver Version,Memory Physical Size
0,"Intel(R) Graphics [0x56c0]","00000000-0000-0000-0000-020a00008086","16929133","14248.00 MiB"
1,"Intel(R) Arc(TM) B580 Graphics","","unknown","unknown"
"""
    first, second = probe.parse_xpu_dump(old)
    assert (first["kind"], first["index"], first["memory_bytes"]) == ("xpu", 0, 14248 * 2**20)
    assert (first["driver"], first["uuid"]) == ("16929133", "00000000-0000-0000-0000-020a00008086")
    assert (second["name"], second["memory_bytes"], second["driver"]) == ("Intel(R) Arc(TM) B580 Graphics", None, None)
    new = old.replace("UUID", "SOC UUID")
    assert probe.parse_xpu_dump(new)[0]["uuid"] == first["uuid"]
    assert probe.parse_xpu_dump("No device discovered\n") == []


def test_an_intel_card_is_told_from_the_gpu_in_a_processor(tmp_path):
    for address in ("0000:00:02.0", "0000:03:00.0"):
        assert not probe.has_intel_card(str(tmp_path))
        (tmp_path / address).mkdir()
        (tmp_path / address / "class").write_text("0x030000\n")
        (tmp_path / address / "vendor").write_text("0x8086\n")
    assert probe.has_intel_card(str(tmp_path))
