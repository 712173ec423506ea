"""hivemind, torchft and DDP beside our own run on one task: samples/s, bytes, and the validation loss after a time.

``python -m benchmarks.peers [--ways ours,ddp,torchft,hivemind] [--rate 100] [--seconds 40] [--python PATH]`` (root on
Linux). The peers need a Python of their own, which the lab's hosts see (not below ``/tmp`` or the home folder)::

    python -m venv /var/tmp/peers
    /var/tmp/peers/bin/pip install -c constraints.txt '.[node,bench]'

All train the ready job ``text`` from the same weights on the same order of samples, on hosts of unlike simulated speed.
A common step has ``--batch`` samples over all hosts; a step that a host makes alone has ``--local-batch``. Ours runs
first: the peers' devices are simulated by its measurement of this computer, and they train for as long as it did until
its end. The clock runs from the first step on. The loss is that of the first host's weights after its last whole step
or round, evaluated when the clock has stopped.

This file is a script on the hosts, too: ``peers.py NAME JSON`` is one process of a peer.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from remote_agent.jobs.text import Text
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.worker.device.simulation import SimulatedDevice

if TYPE_CHECKING:
    from benchmarks.lab import Fleet, Outcome

STORE_PORT, PEER_PORT = 29400, 29500
START_S = 120.0
"""Seconds for all hosts to be ready to train."""

ROUND_DEADLINE = timedelta(seconds=600)
FORWARD_PART = 1 / 3
"""Of the time of forward and backward: the backward pass computes two gradients for each product of the forward."""

MATCHMAKING_S, POLL_S = 2.0, 0.2
"""hivemind's time to find partners, and between two looks at who is there."""

LINGER_S = 1.0
"""Seconds by which the other hosts outlast the first one, so that it does not see them go while it trains."""

_SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


# --- On a host -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one process; ``batch`` is the samples of a step over all hosts, ``round_steps`` those of a round."""

    rank: int
    addresses: list[str]
    speed: float
    reference: list[float]
    batch: int
    round_steps: int
    seconds: float
    learning_rate: float


class Task:
    """The job on this host's simulated device, and the clock, which ends the process with a report."""

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)  # the hosts share the computer's cores
        torch.manual_seed(0)
        self.settings, self.hosts, self.job = settings, len(settings.addresses), Text()
        self.model: torch.nn.Module = self.job.create_model()
        config = dataclasses.replace(self.job.config, learning_rate=settings.learning_rate)
        self.optimizer: Any = self.job.create_optimizer(self.model, config)
        self.device = SimulatedDevice(settings.speed, DeviceProfile(settings.reference[0], settings.reference[1]))
        self._data = self.job.create_data()
        self._order = SampleOrder(0, len(self._data), settings.batch)
        self._steps = self._samples = 0
        self._whole: dict[str, float] = {}
        self._weights = self.model.state_dict()
        self.store = TCPStore(settings.addresses[0], STORE_PORT, is_master=not settings.rank, wait_for_workers=False)
        self.loss(self.model).backward()  # type: ignore[no-untyped-call] # slow the first time
        self.model.zero_grad()

    def loss(self, model: torch.nn.Module) -> torch.Tensor:
        """The job's loss of this host's even part of the next step's samples."""
        indices = torch.from_numpy(self._order.step(self._steps + 1)).chunk(self.hosts)[self.settings.rank]
        loss: torch.Tensor = self.job.loss(model, self._data.batch(indices))
        return loss

    @property
    def part(self) -> int:
        """Samples of a step on this host."""
        return self.settings.batch // self.hosts

    def gradient(self) -> None:
        """Leave the gradient of the next step in the model, at the pace of the simulated device."""
        began = time.perf_counter()
        self.model.zero_grad()
        self.loss(self.model).backward()  # type: ignore[no-untyped-call]
        self.device.sleep_until_target(self.part, began)

    def wait_for_all(self, name: str) -> None:
        """Return when all hosts have come here."""
        if self.store.add(name, 1) == self.hosts:
            self.store.set(f"{name}-open", "1")
        self.store.wait([f"{name}-open"], timedelta(seconds=START_S))

    def start(self) -> None:
        """Start the clock."""
        self._began, self._sent = time.monotonic(), int(_SENT.read_text())
        threading.Timer(self.settings.seconds + LINGER_S * bool(self.settings.rank), self._report).start()

    def stepped(self, *, whole: bool = True) -> None:
        """Count a step; ``whole``: its exchange is behind it."""
        self._steps += 1
        self._samples += self.part
        if whole:
            sent, seconds = int(_SENT.read_text()) - self._sent, time.monotonic() - self._began
            self._whole = {"steps": self._steps, "samples": self._samples, "seconds": seconds, "sent": sent}
            self._weights = copy.deepcopy(self.model.state_dict())

    def _report(self) -> None:
        weights, whole = self._weights, dict(self._whole)
        if not self.settings.rank and whole:
            model = self.job.create_model()
            model.load_state_dict(weights)
            model.eval()
            with torch.no_grad():
                whole["loss"] = float(self.job.evaluate(model)["validation_loss"])
        print(json.dumps(whole), flush=True)
        for child in psutil.Process().children(recursive=True):  # hivemind's: they would hold the pipe open
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(0)


def ddp(task: Task) -> None:
    """Torch's DistributedDataParallel over gloo, the batch cut evenly, fp32.

    A bucket is handed to gloo at the time at which the simulated device would have it.
    """
    first = f"tcp://{task.settings.addresses[0]}:{PEER_PORT}"
    distributed.init_process_group("gloo", init_method=first, rank=task.settings.rank, world_size=task.hosts)
    numbers = sum(parameter.numel() for parameter in task.model.parameters())
    began = done = 0.0

    def reduce(_: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        nonlocal done
        done += bucket.buffer().numel()
        task.device.sleep_until_target(task.part, began, FORWARD_PART + (1 - FORWARD_PART) * done / numbers)
        work: Any = distributed.all_reduce(bucket.buffer().div_(task.hosts), async_op=True)
        found: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda sum_: sum_.value()[0])
        return found

    reduce.__annotations__ = {"bucket": distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}  # type: ignore[attr-defined] # DDP checks them
    model = DistributedDataParallel(task.model)
    model.register_comm_hook(None, reduce)
    distributed.barrier()
    task.start()
    while True:
        task.optimizer.zero_grad()
        began, done = time.perf_counter(), 0.0
        task.loss(model).backward()  # type: ignore[no-untyped-call]
        task.optimizer.step()
        task.stepped()


def torchft(task: Task) -> None:
    """LocalSGD of torchft: every host trains alone for a round, then parameters are averaged in fp32."""
    from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from torchft.coordination import LighthouseServer  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from torchft.local_sgd import LocalSGD  # type: ignore[import-not-found,import-untyped,unused-ignore]

    settings = task.settings
    lighthouse = None
    if settings.rank == 0:
        lighthouse = LighthouseServer(bind=f"[::]:{PEER_PORT}", min_replicas=task.hosts, join_timeout_ms=10_000)
    task.wait_for_all("lighthouse")
    own = TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=ROUND_DEADLINE),
        load_state_dict=task.model.load_state_dict,
        state_dict=task.model.state_dict,
        min_replica_size=task.hosts,
        use_async_quorum=False,
        timeout=ROUND_DEADLINE,
        quorum_timeout=ROUND_DEADLINE,
        connect_timeout=timedelta(seconds=START_S),
        rank=0,
        world_size=1,
        store_addr=socket.gethostname(),
        store_port=own.port,
        lighthouse_addr=f"http://{settings.addresses[0]}:{PEER_PORT}",
        replica_id=f"host{settings.rank}",
        init_sync=False,
    )
    with LocalSGD(manager, task.model, task.optimizer, settings.round_steps):
        task.wait_for_all("managers")
        task.start()
        for step in range(1, sys.maxsize):
            task.gradient()
            task.optimizer.step()
            task.stepped(whole=step % settings.round_steps == 0)
    assert lighthouse is not None


def hivemind(task: Task) -> None:
    """Local updates of hivemind: every host trains alone; parameters are averaged in the background as fp16.

    A round ends when all hosts together have seen its samples, so a slow host makes fewer steps.
    """
    import hivemind as library  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from hivemind.compression import Float16Compression  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from hivemind.utils import get_dht_time  # type: ignore[import-not-found,import-untyped,unused-ignore]

    settings = task.settings
    address = [f"/ip4/{settings.addresses[settings.rank]}/tcp/{PEER_PORT}"]
    peers = None if settings.rank == 0 else task.store.get("first").decode().split()
    dht = library.DHT(host_maddrs=address, initial_peers=peers, start=True)
    if settings.rank == 0:
        task.store.set("first", " ".join(map(str, dht.get_visible_maddrs())))
    there: set[str] = set()
    while len(there) < task.hosts:  # those that start apart can stay apart
        time.sleep(POLL_S)
        dht.store("present", subkey=str(settings.rank), value=1, expiration_time=get_dht_time() + START_S)
        found = dht.get("present", latest=True)
        there = set(found.value) if found else set()
    optimizer = library.Optimizer(
        dht=dht,
        run_id="benchmark",
        batch_size_per_step=task.part,
        target_batch_size=settings.round_steps * settings.batch,
        optimizer=task.optimizer,
        use_local_updates=True,
        matchmaking_time=MATCHMAKING_S,
        averaging_timeout=60.0,
        state_averaging_compression=Float16Compression(),
        averager_opts={"request_timeout": MATCHMAKING_S / 2},
        tracker_opts={"min_refresh_period": POLL_S, "default_refresh_period": POLL_S},
    )
    task.wait_for_all("optimizers")
    task.start()
    while True:
        task.gradient()
        optimizer.step()
        task.stepped()


PEERS = {"ddp": ddp, "torchft": torchft, "hivemind": hivemind}


# --- On the laptop ---------------------------------------------------------------------------------------------------


def run(fleet: Fleet, name: str, options: argparse.Namespace, own: Outcome) -> Outcome:
    """Run a peer on the lab's hosts at the same time, for as long as our own run took."""
    from benchmarks.lab import SETUP_DEADLINE, Outcome, last_line

    assert own.reference is not None
    hosts, python = fleet.lab.hosts, options.python
    batch = options.batch if name == "ddp" else options.local_batch * len(hosts)
    # A round of hivemind keeps its samples: it needs seconds to find partners, and stands still if a round is shorter.
    round_steps = options.round * options.batch // batch if name == "hivemind" else options.round
    commands = []
    for rank, host in enumerate(hosts):
        code = host.home / "peers"
        shutil.copytree(Path(__file__).parents[1] / "remote_agent", code / "remote_agent", dirs_exist_ok=True)
        shutil.copy(__file__, code)
        settings = Settings(
            rank=rank,
            addresses=[one.address for one in hosts],
            speed=fleet.speeds[rank],
            reference=[own.reference.speed, own.reference.overhead_s],
            batch=batch,
            round_steps=round_steps,
            seconds=own.seconds,
            learning_rate=options.learning_rate,
        )
        seen = Path.home() / "peers"  # the folder as the host sees it
        variables = ["env", f"PYTHONPATH={seen}", "GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1"]
        commands.append([*variables, python, str(seen / "peers.py"), name, json.dumps(dataclasses.asdict(settings))])
    try:
        with ThreadPoolExecutor(len(hosts)) as pool:
            deadline = own.seconds + SETUP_DEADLINE
            done = list(pool.map(lambda host, words: host.exec(words, deadline=deadline), hosts, commands))
    except subprocess.TimeoutExpired as late:
        return Outcome(name=name, error=f"did not end within {late.timeout:.0f} s")
    finally:
        for host in hosts:
            left = [str(one.pid) for one in host.processes() if python in one.argv or "/bin/p2pd" in one.argv[0]]
            host.exec(["kill", "-KILL", *left])
    ends = [json.loads(one.stdout.splitlines()[-1]) if one.stdout.startswith("{") else {} for one in done]
    if not all(ends):
        silent = next(one for one, end in zip(done, ends, strict=True) if not end)
        return Outcome(name=name, error=f"exit code {silent.returncode}: {last_line(silent.stderr)}")
    return Outcome(
        name=name,
        steps=ends[0]["steps"],
        samples=sum(end["samples"] for end in ends),
        samples_per_second=sum(end["samples"] / end["seconds"] for end in ends),
        sent=tuple(end["sent"] for end in ends),
        loss=ends[0]["loss"],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    from benchmarks import ours
    from benchmarks.lab import Plan, open_fleet, simulated_notes

    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default="ddp,torchft,hivemind", help="peers beside ours, with commas between")
    parser.add_argument("--ours", default="local_sgd:local_steps=20:overlap=true:codec=int8", help="our way to train")
    parser.add_argument("--rate", type=float, default=100.0, metavar="MBIT", help="speed of each link (default: 100)")
    parser.add_argument("--speeds", default="1,0.4,0.2", help="the hosts' simulated speeds (default: 1,0.4,0.2)")
    parser.add_argument("--seconds", type=float, default=40.0, help="training of each (default: 40)")
    parser.add_argument("--batch", type=int, default=48, help="samples of a common step (default: 48)")
    parser.add_argument("--local-batch", type=int, default=2, help="samples of a step of one host (default: 2)")
    parser.add_argument("--round", type=int, default=10, help="steps of a peer's round (default: 10)")
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of all (default: 0.0005)")
    parser.add_argument("--python", default="/var/tmp/peers/bin/python", help="of the peers")  # noqa: S108 - hosts see it
    options = parser.parse_args(arguments)
    speeds = [float(speed) for speed in options.speeds.split(",")]
    plan = Plan(
        job="text",
        job_class="remote_agent.jobs.text:Text",
        batch=options.batch,
        seconds=options.seconds,
        local_batch=options.local_batch,
        learning_rate=options.learning_rate,
        evaluated=True,
    )
    print("\n".join(simulated_notes(options.rate, speeds)))
    print(f"{'':56} {'samples/s':>10} {'MB/step':>8} {'loss':>6}", flush=True)
    with open_fleet(options.rate, speeds) as fleet:
        (own,) = ours.run(fleet, [ours.OurWay.parse(options.ours)], plan)
        print(_line(own, plan.batch), flush=True)
        if own.error:
            return 1
        print(f"each peer trains for {own.seconds:.1f} s")
        found = [own]
        for name in filter(None, options.ways.split(",")):
            found.append(run(fleet, name, options, own))
            print(_line(found[-1], plan.batch), flush=True)
    return 1 if any(one.error for one in found) else 0


def _line(one: Outcome, batch: int) -> str:
    if one.error:
        return f"{one.name:56} failed: {one.error}"
    sent = sum(one.sent) / 1e6 * batch / one.samples
    loss = "" if one.loss is None else f"{one.loss:6.3f}"
    return f"{one.name:56} {one.samples_per_second:10.1f} {sent:8.1f} {loss}"


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in PEERS:
        PEERS[sys.argv[1]](Task(Settings(**json.loads(sys.argv[2]))))
    else:
        sys.exit(main())
