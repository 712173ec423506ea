"""What a step's exchange takes on slow links: ours with each codec, beside gloo's all-reduce and the wire's floor.

``python -m benchmarks.wire [--rates 100,200] [--codecs fp32,bf16,int8] [--tls] [--devices 1,2,4] [--steps N]``
(root: it builds the lab). With ``--tls`` each codec is measured under TLS as well, as with ``security: tls`` in
the inventory. With ``--devices`` the first host has so many devices: measured is then the exchange of ``sync``, as it
is and with connections of each device's own (``apart``), and the reduction of ``allreduce``, as it is (``ring``) and as
one ring in which each device is a peer of its own (``flat``).

Three hosts of the lab, a shard and a worker on each, in processes of their own; 16.9 million parameters, no compute. A
link has the same rate in both directions. In one run on the same links: a plain TCP stream, which gives the rate B of
payload; gloo's all-reduce of the same float32 buffer, as DDP does it with one bucket; and the exchange with each codec
both ways. A step is from the moment when all workers are told to begin until the last of them has all new weights.

The *floor*: with a shard on each of n hosts, (n-1)/n of the gradient and (n-1)/n of the weights leave each host, and as
much enters it: 2 (n-1)/n P b / B seconds for P parameters of b bytes (with both directions of a link busy all the time,
and nothing for headers). A ring all-reduce has the same floor.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from hetero_tui.fleet import authority
from remote_agent import tls
from remote_agent.training.server.relay import Relay, RelayServer
from remote_agent.training.server.shard import Shard
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared.messages import GroupMembership
from remote_agent.training.shared.slices import Part
from remote_agent.training.wire import codecs as wire_codecs
from remote_agent.training.wire.client import ExchangeClient
from remote_agent.training.wire.codecs import EXACT, Codecs
from remote_agent.training.wire.layout import Layout, plan_layout
from remote_agent.training.worker.process_group import ProcessGroup
from remote_agent.training.worker.rendezvous import Rendezvous
from tests.lab.lab import Lab
from tests.lab.machines import Host, HostSpec

PARAMETERS = 16_900_000
HOSTS = ("mercer", "crosby", "studio")
TOKEN = b"a token of the benchmark"
STREAM_PORT, GLOO_PORT = 7001, 7002
STREAM_SECONDS = 3.0
START_S, STEP_S = 60.0, 120.0
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_COUNTERS = Path("/sys/class/net/eth0/statistics")


@dataclass(frozen=True)
class Row:
    """One line of the table; times are medians over the steps, bytes the largest of any host."""

    rate_mbit: float
    way: str
    bytes_a_number: float
    step_s: float
    floor_s: float
    device_mbytes: float
    push_s: float | None = None

    @property
    def over_floor(self) -> float:
        """Step seconds over the floor's."""
        return self.step_s / self.floor_s


# --- In the hosts ----------------------------------------------------------------------------------------------------


def say(**values: Any) -> None:
    """One JSON line to the driver."""
    print(json.dumps(values), flush=True)


def counters() -> tuple[int, int]:
    """Bytes (sent, received) by the host's network device so far, Ethernet headers included."""
    sent, received = ((_COUNTERS / f"{name}_bytes").read_text() for name in ("tx", "rx"))
    return int(sent), int(received)


def layout(numel: int) -> Layout:
    """The cut that shards and workers share."""
    return plan_layout([numel], [1.0] * len(HOSTS))


def serve(number: int, address: str, codec: str, numel: int = PARAMETERS) -> None:
    """A shard with plain SGD, until the driver closes our input."""
    cut, codecs = layout(numel), Codecs(wire_codecs.create(codec), wire_codecs.create(codec))
    update = OptimizerUpdate(cut, lambda _group, parameter: torch.optim.SGD([parameter], lr=0.01))
    shard = Shard(cut, number, torch.zeros(numel), update, codecs)
    with ShardServer(shard, TOKEN, address) as server:
        say(address=server.address)
        sys.stdin.read()


def relay(addresses: Sequence[tuple[str, int]], address: str, codec: str, numel: int) -> None:
    """What adds a host's gradients up, until the driver closes our input."""
    codecs = Codecs(wire_codecs.create(codec), wire_codecs.create(codec))
    relayed = Relay(layout(numel), addresses, TOKEN, codecs, torch.zeros(numel), 0)
    with RelayServer(relayed, TOKEN, address) as server:
        say(address=server.address)
        sys.stdin.read()


def exchange(
    number: int,
    addresses: Sequence[tuple[str, int]],
    codec: str,
    slices: int = len(HOSTS),
    part: Sequence[int] = (0, 0),
    numel: int = PARAMETERS,
) -> None:
    """A worker: one step for each line of input; with a ``part`` (number, of) its one address is a relay's."""
    codecs = Codecs(wire_codecs.create(codec), wire_codecs.create(codec)) if not part[1] else EXACT
    gradient = torch.randn(numel, generator=torch.Generator().manual_seed(number))
    weights, new, cut = torch.zeros(numel), torch.zeros(numel), layout(numel)
    with ExchangeClient(cut.of_one if part[1] else cut, addresses, TOKEN, codecs, step=0) as client:
        say(ready=True)
        for step, _ in enumerate(sys.stdin, start=1):
            before = counters()
            exchanging = client.begin(step, slices, slices, weights, new)
            exchanging.contribute(number, gradient, part=Part(*part)).offer(0, len(gradient))
            timings = exchanging.finish()
            ended, after = time.monotonic(), counters()
            weights, new = new, weights
            say(ended=ended, push_s=timings.push_s, sent=after[0] - before[0], received=after[1] - before[1])


def all_reduce(number: int, master: str) -> None:
    """A gloo rank: one all-reduce for each line of input."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://{master}:{GLOO_PORT}", rank=number, world_size=len(HOSTS)
    )
    gradient = torch.zeros(PARAMETERS)
    say(ready=True)
    for _ in sys.stdin:
        before = counters()
        torch.distributed.all_reduce(gradient)
        ended, after = time.monotonic(), counters()
        say(ended=ended, sent=after[0] - before[0], received=after[1] - before[1])


def meet(address: str, hosts: Sequence[str]) -> None:
    """The meeting place of workers on these hosts, until the driver closes our input."""
    places = Rendezvous(address).invite(hosts)
    say(places=[asdict(place) | {"secret": place.secret.hex()} for place in places])
    sys.stdin.read()


def reduce(place: dict[str, Any], address: str, numel: int) -> None:
    """A worker of ``allreduce``: one sum of its gradients for each line of input."""
    place |= {"secret": bytes.fromhex(place["secret"]), "hosts": tuple(place["hosts"])}
    group, gradient = ProcessGroup(GroupMembership(**place), address), torch.zeros(numel)
    say(ready=True)
    for _ in sys.stdin:
        before = counters()
        group.sum([gradient], lambda: None)
        ended, after = time.monotonic(), counters()
        say(ended=ended, sent=after[0] - before[0], received=after[1] - before[1])


def sink(address: str) -> None:
    """Receive one plain TCP stream, and say how fast its payload came after the first half second."""
    with socket.create_server((address, STREAM_PORT)) as listener:
        say(ready=True)
        connection, _ = listener.accept()
        with connection:
            buffer = bytearray(1 << 18)
            settle, count, since = time.monotonic() + 0.5, 0, 0.0
            while received := connection.recv_into(buffer):
                now = time.monotonic()
                if now >= settle:
                    since, count = (since or now), (count + received if since else 0)
    say(rate=count / (now - since))


def source(address: str) -> None:
    """Send zeros for :data:`STREAM_SECONDS`."""
    with socket.create_connection((address, STREAM_PORT)) as connection:
        end, block = time.monotonic() + STREAM_SECONDS, bytes(1 << 18)
        while time.monotonic() < end:
            connection.sendall(block)
    say(sent=True)


def role(words: Sequence[str]) -> None:
    """Be one of the above, in a host."""
    torch.set_num_threads(1)
    name, arguments = words[0], json.loads(words[1])
    roles: dict[str, Callable[..., None]] = {
        "serve": serve,
        "exchange": exchange,
        "relay": relay,
        "all_reduce": all_reduce,
        "meet": meet,
        "reduce": reduce,
        "sink": sink,
        "source": source,
    }
    roles[name](**arguments)


# --- The driver ------------------------------------------------------------------------------------------------------


class Process:
    """A process of this program in a host's network."""

    def __init__(self, host: Host, name: str, bundle: Path | None = None, **arguments: Any) -> None:
        """``bundle`` is the host's certificate, where connections are encrypted."""
        command = [sys.executable, "-m", "benchmarks.wire", "--role", name, json.dumps(arguments)]
        self._popen = subprocess.Popen(
            ["ip", "netns", "exec", host.namespace, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ) | (tls.variables(bundle, encrypted=True) if bundle is not None else {}),
        )

    def hear(self) -> dict[str, Any]:
        """Its next line."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended with status {self._popen.wait(START_S)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self) -> None:
        """One more step."""
        assert self._popen.stdin is not None
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()

    def end(self) -> None:
        """Close its input, and end it if that does not."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(START_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()


@contextmanager
def processes(*started: Process) -> Iterator[None]:
    """They end when the block does."""
    with ExitStack() as stack:
        for process in started:
            stack.callback(process.end)
        yield


def payload_rate(lab: Lab) -> float:
    """Payload bytes per second that one plain TCP stream carries from the first host to the second."""
    receiver = Process(lab.hosts[1], "sink", address=lab.hosts[1].address)
    receiver.hear()
    sender = Process(lab.hosts[0], "source", address=lab.hosts[1].address)
    with processes(receiver, sender):
        sender.hear()
        return float(receiver.hear()["rate"])


def timed(workers: Sequence[Process], steps: int) -> tuple[float, float, float | None]:
    """Median seconds of a step (the first is not counted), megabytes at the busiest device, seconds of the push."""
    for worker in workers:
        worker.hear()
    seconds, sent, push = [], [], []
    for step in range(steps + 1):
        begun = time.monotonic()
        for worker in workers:
            worker.tell()
        answers = [worker.hear() for worker in workers]
        if step:
            seconds.append(max(answer["ended"] for answer in answers) - begun)
            sent.append(max(max(answer["sent"], answer["received"]) for answer in answers))
            push.append(max(answer.get("push_s", 0.0) for answer in answers))
            print(f"    step {step}: {seconds[-1]:.2f} s", file=sys.stderr)
    return statistics.median(seconds), statistics.median(sent) / 1e6, statistics.median(push) or None


def certificates(lab: Lab) -> list[Path]:
    """A file for each host, of one authority."""
    signer = authority.create("benchmark")
    files = [lab.folder / f"{host.name}.pem" for host in lab.hosts]
    for file, host in zip(files, lab.hosts, strict=True):
        file.write_text(authority.certificate(signer, host.name, [host.address]))
    return files


def measure(
    lab: Lab, rate: float, names: Sequence[str], steps: int, *, gloo: bool, encrypted: bool = False
) -> list[Row]:
    """All rows of one link rate; with ``encrypted``, each codec under TLS too."""
    payload = payload_rate(lab)
    print(f"{rate:g} Mbit/s: one TCP stream carries {payload / 1e6:.2f} MB/s of payload", file=sys.stderr)
    share = 2 * (len(HOSTS) - 1) / len(HOSTS)
    rows = []
    if gloo:
        ranks = [Process(host, "all_reduce", number=n, master=lab.hosts[0].address) for n, host in enumerate(lab.hosts)]
        with processes(*ranks):
            step_s, megabytes, _ = timed(ranks, steps)
        rows.append(Row(rate, "gloo fp32", 4.0, step_s, share * 4 * PARAMETERS / payload, megabytes))
    unsecured: list[Path | None] = [None] * len(lab.hosts)
    secured: list[Path | None] = [*certificates(lab)] if encrypted else []
    for name, files in ((name, files) for name in names for files in (unsecured, secured) if files):
        way = f"ours {name}{'' if files is unsecured else ' TLS'}"
        print(f"  {way}", file=sys.stderr)
        hosts = list(zip(range(len(lab.hosts)), lab.hosts, files, strict=True))
        shards = [Process(host, "serve", file, number=n, address=host.address, codec=name) for n, host, file in hosts]
        with processes(*shards):
            addresses = [shard.hear()["address"] for shard in shards]
            workers = [
                Process(host, "exchange", file, number=n, addresses=addresses, codec=name) for n, host, file in hosts
            ]
            with processes(*workers):
                step_s, megabytes, push_s = timed(workers, steps)
        size = wire_codecs.create(name).size(PARAMETERS) / PARAMETERS
        rows.append(Row(rate, way, size, step_s, share * size * PARAMETERS / payload, megabytes, push_s))
    return rows


def exchanged(lab: Lab, devices: int, numel: int, steps: int, *, apart: bool = False) -> tuple[float, float]:
    """Median seconds of an exchange with so many workers on the first host, and megabytes at the busiest device.

    With ``apart`` each of them has connections of its own.
    """
    first = lab.hosts[0]
    of_all: dict[str, Any] = {"codec": "fp32", "numel": numel}
    shards = [Process(host, "serve", number=n, address=host.address, **of_all) for n, host in enumerate(lab.hosts)]
    with processes(*shards):
        addresses = [shard.hear()["address"] for shard in shards]
        is_added_up = devices > 1 and not apart
        relays = [Process(first, "relay", addresses=addresses, address=first.address, **of_all)] if is_added_up else []
        with processes(*relays):
            of_all["slices"] = slices = len(lab.hosts) + (0 if is_added_up else devices - 1)
            here: dict[str, Any] = {"addresses": [relay.hear()["address"] for relay in relays] or addresses, **of_all}
            workers = [
                Process(first, "exchange", number=0, part=(n, devices), **here)
                if is_added_up
                else Process(first, "exchange", number=n, **here)
                for n in range(devices)
            ]
            workers += [
                Process(host, "exchange", number=slices - 1 - n, addresses=addresses, **of_all)
                for n, host in enumerate(lab.hosts[1:])
            ]
            with processes(*workers):
                seconds, megabytes, _ = timed(workers, steps)
    return seconds, megabytes


def reduced(lab: Lab, devices: int, numel: int, steps: int, *, apart: bool = False) -> tuple[float, float]:
    """Median seconds of a sum over workers of which the first host has so many, and megabytes at the busiest device.

    With ``apart`` each of them counts as a host, and they are one ring.
    """
    hosts = [lab.hosts[0]] * devices + list(lab.hosts[1:])
    names = [f"{host.name}/{number}" if apart else host.name for number, host in enumerate(hosts)]
    meeting = Process(lab.hosts[0], "meet", address=lab.hosts[0].address, hosts=names)
    with processes(meeting):
        places = zip(hosts, meeting.hear()["places"], strict=True)
        workers = [Process(host, "reduce", place=place, address=host.address, numel=numel) for host, place in places]
        with processes(*workers):
            seconds, megabytes, _ = timed(workers, steps)
    return seconds, megabytes


def rings(lab: Lab, rate: float, counts: Sequence[int], steps: int) -> list[Row]:
    """Rows of ``sync`` and ``allreduce`` where the first host has so many devices."""
    rows, payload = list[Row](), payload_rate(lab)
    floor_s = 2 * (len(HOSTS) - 1) / len(HOSTS) * 4 * PARAMETERS / payload
    for devices in counts:
        kinds = (
            ("sync", False, exchanged),
            ("apart", True, exchanged),
            ("ring", False, reduced),
            ("flat", True, reduced),
        )
        for kind, apart, moved in kinds:
            way = f"{kind} {devices}+1+1"
            print(f"  {way}", file=sys.stderr)
            step_s, megabytes = moved(lab, devices, PARAMETERS, steps, apart=apart)
            rows.append(Row(rate, way, 4.0, step_s, floor_s, megabytes))
    return rows


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--role"]:
        role(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wire", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--rates", default="100,200", metavar="MBIT,...", help="link rates in Mbit/s")
    parser.add_argument("--codecs", default="fp32,bf16,int8", help="which of fp32, bf16, int8")
    parser.add_argument("--steps", type=int, default=3, help="steps whose median counts, after one that does not")
    parser.add_argument("--no-gloo", action="store_true", help="leave gloo out")
    parser.add_argument("--tls", action="store_true", help="each codec under TLS as well")
    parser.add_argument("--devices", default="", help="of the first host, such as 1,2,4")
    options = parser.parse_args()
    rows: list[Row] = []
    for rate in (float(word) for word in options.rates.split(",")):
        with Lab([HostSpec(name=name) for name in HOSTS], rate_mbit=rate) as lab:
            names = [name for name in options.codecs.split(",") if name]
            rows += measure(lab, rate, names, options.steps, gloo=not options.no_gloo, encrypted=options.tls)
            if options.devices:
                rows += rings(lab, rate, [int(count) for count in options.devices.split(",")], options.steps)
    setting = f"{len(HOSTS)} hosts on {os.cpu_count()} cores, TCP {_CONGESTION.read_text().strip()}"
    print(f"{PARAMETERS / 1e6:g}M parameters, {setting} (ours: cubic where root allows it)")
    print("Mbit/s  way            bytes/number   step s  floor s  x floor  MB at device  push s  x gloo")
    for row in rows:
        gloo_s = next((one.step_s for one in rows if one.rate_mbit == row.rate_mbit and "gloo" in one.way), None)
        print(
            f"{row.rate_mbit:6g}  {row.way:14} {row.bytes_a_number:12.3f} {row.step_s:8.2f} {row.floor_s:8.2f}"
            f" {row.over_floor:8.2f} {row.device_mbytes:13.1f} {row.push_s or 0:7.2f}"
            f" {row.step_s / gloo_s if gloo_s else float('nan'):7.2f}"
        )


if __name__ == "__main__":
    main()
