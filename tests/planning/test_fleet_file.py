"""A fleet from a file: what each key means, and that every mistake is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero_tui.errors import PlanError
from hetero_tui.planning.catalogue import DEVICES, OVERHEAD_S, PAYLOAD, USED, WIFI_BYTES
from hetero_tui.planning.fleet_file import MAX_DEVICES, read

TOP = "parameters: 17000000\nbatch: 512\ngflop: 6.0\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "lab.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str) -> list[str]:
    path = written(folder, text)
    with pytest.raises(PlanError) as caught:
        read(path)
    return [line.removeprefix(f"{path}: ") for line in caught.value.mistakes]


def test_a_host_is_as_its_keys_say(tmp_path: Path) -> None:
    text = f"{TOP}hosts:\n  nas: {{speed: 3.5, link: 100mbit, memory_gb: 8}}\n"
    survey = read(written(tmp_path, text))
    (nas,), (device,) = survey.hosts, survey.hosts[0].devices
    assert (survey.job, survey.work.parameters, survey.work.batch) == ("lab", 17_000_000, 512)
    assert (nas.name, nas.medium, nas.both) == ("nas", "", 0.0)
    assert nas.up == nas.down == pytest.approx(PAYLOAD * 100e6 / 8)
    assert (device.name, device.speed, device.memory) == ("nas/device", 3.5, 8_000_000_000)
    assert (device.overhead_s, device.estimate) == (OVERHEAD_S, "speed as the file says")


def test_a_device_of_the_catalogue_is_an_estimate_by_its_published_figures(tmp_path: Path) -> None:
    text = f"{TOP}hosts:\n  gpu: {{device: rtx4070}}\n  own: {{device: rtx4070, memory_gb: 4}}\n"
    gpu, own = (host.devices[0] for host in read(written(tmp_path, text)).hosts)
    assert gpu.speed == pytest.approx(USED * DEVICES["rtx4070"].tflops * 1e3 / 6.0)
    assert gpu.estimate.startswith("35% of 29.1 TFLOPS fp32, https://")
    assert (gpu.memory, own.memory) == (12_000_000_000, 4_000_000_000)


def test_a_speed_that_is_known_counts_more_than_the_catalogues(tmp_path: Path) -> None:
    text = f"{TOP}hosts:\n  gpu: {{device: rtx4070, speed: 9}}\n"
    (device,) = read(written(tmp_path, text)).hosts[0].devices
    assert (device.speed, device.memory, device.estimate) == (9.0, None, "speed as the file says")


def test_hosts_on_wifi_share_one_medium_and_the_others_have_a_gigabit(tmp_path: Path) -> None:
    text = f"{TOP}hosts:\n  mac: {{speed: 5, link: wifi}}\n  nas: {{speed: 5}}\n"
    survey = read(written(tmp_path, text))
    mac, nas = survey.hosts
    assert (mac.medium, mac.up, mac.both, survey.media) == ("wifi", WIFI_BYTES, WIFI_BYTES, {"wifi": WIFI_BYTES})
    assert nas.up == pytest.approx(PAYLOAD * 1e9 / 8)
    assert read(written(tmp_path, f"{TOP}hosts: {{nas: {{speed: 5}}}}\n")).media == {}


def test_several_alike_are_numbered_and_one_is_not(tmp_path: Path) -> None:
    text = f"{TOP}hosts:\n  gpu: {{count: 2, speed: 5}}\n  nas: {{count: 1, speed: 5}}\n"
    assert read(written(tmp_path, text)).names == ("gpu-1", "gpu-2", "nas")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[]",
            [
                "parameters: is missing",
                "batch: is missing",
                "hosts: expected one host or more",
                "line 1: expected keys: parameters, batch, gflop, hosts",
            ],
        ),
        (f"{TOP}hosts: {{}}\n", ["line 4: hosts: expected one host or more"]),
        (TOP, ["hosts: expected one host or more"]),
        (
            f"{TOP}hosts: {{a: 3}}\n",
            ["line 4: hosts.a: expected keys: count, device, speed", "expected speed (samples/s)"],
        ),
        (f"{TOP}hosts: {{a: {{}}}}\n", ["line 4: hosts.a: expected speed (samples/s), or device together with gflop"]),
        (f"{TOP}hosts: {{a: {{speed: 0}}}}\n", ["line 4: hosts.a.speed: expected a number above 0, not 0"]),
        (f"{TOP}hosts: {{a: {{speed: 1e15}}}}\n", ["expected a number above 0"]),
        (f"{TOP}hosts: {{a: {{speed: x}}}}\n", ["expected a number above 0, not 'x'"]),
        (f"{TOP}hosts: {{a: {{speed: 1, count: 1.5}}}}\n", ["hosts.a.count: expected a whole number above 0, not 1.5"]),
        (f"{TOP}hosts: {{a: {{speed: 1, link: 0mbit}}}}\n", ["hosts.a.link: no link '0mbit': expected wifi, 100mbit"]),
        (f"{TOP}hosts: {{a: {{speed: 1, sped: 2}}}}\n", ["hosts.a.sped: no such key; did you mean 'speed'?"]),
        (f"{TOP}hosts: {{a: {{device: rtx4071}}}}\n", ["hosts.a.device: no device 'rtx4071'; did you mean 'rtx4070'?"]),
        (f"{TOP}colour: red\nhosts: {{a: {{speed: 1}}}}\n", ["line 4: colour: no such key; there are parameters,"]),
        (
            "hosts: {a: {device: m1}}\n",
            ["parameters: is missing", "batch: is missing", "or device together with gflop"],
        ),
        (
            f'{TOP}hosts: {{"a\\e[31m": {{speed: 1}}, " ": {{speed: 1}}}}\n',
            ["expected a name that can be shown, not 'a\\x1b[31m'", "expected a name that can be shown, not ' '"],
        ),
        (f"{TOP}hosts: {{a: {{speed: 1, watts: 3}}}}\n", ["line 4: hosts.a.watts: watts in a fleet file was removed"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: list[str]) -> None:
    found = mistakes(tmp_path, text)
    assert len(found) == len(said), found
    assert all(part in line for part, line in zip(said, found, strict=True)), found


def test_a_file_may_have_a_thousand_devices_and_no_more(tmp_path: Path) -> None:
    text = f"{TOP}hosts:\n  a: {{count: {MAX_DEVICES - 1}, speed: 1}}\n  b: {{count: COUNT, speed: 1}}\n"
    assert len(read(written(tmp_path, text.replace("COUNT", "1"))).hosts) == MAX_DEVICES
    assert mistakes(tmp_path, text.replace("COUNT", "2")) == ["line 6: hosts.b: more than 1,000 devices in all"]
    assert mistakes(tmp_path, text.replace("COUNT", "100000000")) == ["line 6: hosts.b: more than 1,000 devices in all"]
