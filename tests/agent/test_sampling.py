from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from remote_agent.host import layout, processes, supervision
from remote_agent.protocol import HostSample, decode, encode
from remote_agent.sampling import amd, apple
from remote_agent.sampling.link import HeadLink
from tests.specs import node_spec

IOREG = """+-o AGXAcceleratorG14X  <class AGXAcceleratorG14X, id 0x100000450, registered, matched, active>
    {
      "PerformanceStatistics" = {"In use system memory (driver)"=0,"Tiler Utilization %"=14,\
"Renderer Utilization %"=15,"Device Utilization %"=17,"In use system memory"=873365504}
      "model" = "Apple M2 Pro"
      "gpu-core-count" = 19
    }
"""


def _samples(process, count: int) -> list[HostSample]:
    return [decode(HostSample, process.stdout.readline().decode()) for _ in range(count)]


def test_a_machine_is_sampled_at_the_asked_pace_and_rates_come_with_the_second_sample(agent_stream, folder):
    process = agent_stream("sampling", "--folder", str(folder), "--interval", "0.2")

    first, *rest = _samples(process, 4)

    assert first.cpu_use is None
    assert first.bytes_sent_per_s is None
    assert all(0 <= sample.cpu_use <= 1 for sample in rest if sample.cpu_use is not None)
    assert rest[-1].cpu_use is not None
    assert rest[-1].bytes_sent_per_s is not None
    assert all(0.15 < later.time - sooner.time < 10 for sooner, later in pairwise(rest))
    assert first.devices[0].device == "cpu"
    assert 0 < first.memory_used < first.memory_total
    assert first.ray == "none"


def test_sampling_ends_when_its_reader_goes(agent_stream, folder):
    process = agent_stream("sampling", "--folder", str(folder), "--interval", "5")
    _samples(process, 1)
    process.stdin.close()
    assert process.wait(30) == 0


def test_the_state_of_ray_follows_its_record(agent_stream, folder, launched, wait_until):
    record = launched("ray", "import time; time.sleep(600)")
    process = agent_stream("sampling", "--folder", str(folder), "--interval", "0.2")
    with processes.locked(folder, 1.0):
        wait_until(lambda: _samples(process, 1)[0].ray == "starting", 30)  # it has no supervisor yet
    supervision.write(folder, supervision.Supervision(phase=supervision.WATCHING, since=1.0))
    wait_until(lambda: _samples(process, 1)[0].ray == "running", 30)

    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: _samples(process, 1)[0].ray == "stopped", 30)


def _amd_gpu(drivers: Path, address: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = drivers / address / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_amd_gpus_are_read_from_the_drivers_files_in_pci_order_and_a_missing_sensor_is_none(tmp_path):
    discrete = {
        "mem_info_vram_total": "17163091968",
        "mem_info_vram_used": "1048576000",
        "gpu_busy_percent": "42",
        "product_name": "AMD Radeon RX 6800 XT",
        "hwmon/hwmon4/temp1_input": "51000",
        "hwmon/hwmon4/power1_average": "35000000",
    }
    integrated = {"mem_info_vram_total": "536870912", "mem_info_vram_used": "0", "hwmon/hwmon5/power1_input": "9000000"}
    _amd_gpu(tmp_path, "0000:0a:00.0", integrated)
    _amd_gpu(tmp_path, "0000:03:00.0", discrete)
    (tmp_path / "module").mkdir()

    first, second = amd.read(tmp_path)

    assert (first.device, first.name, first.use, first.memory_used) == (
        "cuda:0",
        discrete["product_name"],
        0.42,
        1048576000,
    )
    assert (first.temperature_c, first.power_w) == (51.0, 35.0)
    assert (second.device, second.use, second.temperature_c, second.power_w) == ("cuda:1", None, None, 9.0)


def test_apples_gpu_is_read_from_ioreg_and_unknown_output_gives_none_and_not_zero():
    (sample,) = apple.parse_ioreg(IOREG, 34359738368)
    assert (sample.device, sample.name, sample.use, sample.memory_used) == ("mps", "Apple M2 Pro", 0.17, 873365504)
    (unknown,) = apple.parse_ioreg("", 34359738368)
    assert (unknown.use, unknown.memory_used, unknown.memory_total) == (None, None, 34359738368)


def test_a_round_trip_is_measured_to_the_head_and_not_on_it_or_where_none_answers(folder):
    here = {"folder": str(folder), "node_address": "127.0.0.1", "head_address": "127.0.0.1"}
    spec = node_spec("nas", "worker", **here)
    with socket.create_server(("127.0.0.1", 0)) as head:
        found = []
        for role, port in (("worker", head.getsockname()[1]), ("head", head.getsockname()[1]), ("worker", 1)):
            written = replace(spec, role=role, gcs_port=port)
            layout.spec_path(folder).write_text(encode(written))
            found.append(HeadLink(folder).read())
    assert found[0] is not None
    assert 0 < found[0] < 1
    assert found[1:] == [None, None]
