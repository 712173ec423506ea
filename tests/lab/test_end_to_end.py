"""From an inventory to a trained model on three hosts, and back to nothing, beside another Ray that stays as it is.

The tests tell one story in the file's order; each also passes alone.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote_agent import protocol
from tests.lab.following import Following
from tests.lab.lab import NOBODY, Lab
from tests.lab.machines import Host, HostProcess, login
from tests.lab.product import HeteroTui, event, only, steps
from tests.lab.reader import Reader

pytestmark = [pytest.mark.lab, pytest.mark.ray]

BACK_SECONDS = 300.0
"""Until Ray that crashed must have been started again, on a busy computer."""

SPREAD = 0.15
"""Most by which the workers' fastest steps under one cut may differ, as a fraction of the longest."""

_COUNT = """
import ray
@ray.remote(num_cpus=0)
class Counter:
    def __init__(self): self.value = 0
    def next(self): self.value += 1; return self.value
ray.init(address="{address}", log_to_driver=False, logging_level="error")
counter = Counter.options(name="theirs", lifetime="detached", namespace="theirs", get_if_exists=True).remote()
print(ray.get(counter.next.remote(), timeout=30))
"""


@dataclass(frozen=True)
class OtherRay:
    """A Ray cluster that the same user started by hand on a host, with Ray's usual ports."""

    host: Host
    pids: frozenset[int]

    def count(self) -> int:
        """Ask an actor that lives there for its next number: it has forgotten if it was ever restarted."""
        script = _COUNT.format(address=f"{self.host.address}:6379")
        done = self.host.exec([sys.executable, "-c", script])
        assert done.returncode == 0, done.stderr[-2000:]
        return int(done.stdout.split()[-1])


@pytest.fixture(scope="module")
def theirs(fleet: Lab) -> OtherRay:
    """Ray of somebody else on the slowest host, with an actor that has counted to 1."""
    host = fleet.host("nas")
    ray = str(Path(sys.executable).with_name("ray"))
    options = [f"--node-ip-address={host.address}", "--port=6379", "--num-cpus=1", "--object-store-memory=80000000"]
    done = host.exec([ray, "start", "--head", *options, "--include-dashboard=false", "--disable-usage-stats"])
    assert done.returncode == 0, done.stdout + done.stderr
    other = OtherRay(host, frozenset())
    assert other.count() == 1
    # The driver has gone, and with it what was idle: what is left now is to stay.
    names = {"gcs_server", "raylet", "ray::Counter"}
    lasting = [one for one in host.processes() if Path(one.argv[0]).name.partition(".")[0] in names]
    assert len(lasting) == len(names)
    return OtherRay(host, frozenset(one.pid for one in lasting))


@pytest.fixture(scope="module")
def bare(fleet: Lab) -> Mapping[str, str]:
    """What lies in each host's temporary folders before the product was there: a clone in /tmp is seen there too."""
    return {host.name: temporary_files(host) for host in fleet.hosts}


@pytest.fixture(scope="module")
def product(fleet: Lab, theirs: OtherRay, bare: Mapping[str, str]) -> Iterator[HeteroTui]:
    """The product on the laptop, with an inventory of the three hosts; ``down`` at the end, whatever happened."""
    product = HeteroTui(fleet.laptop, fleet.inventory())
    yield product
    product.run("down", "--yes", "--json")


def test_probe_says_what_every_host_is(product: HeteroTui, fleet: Lab) -> None:
    hosts = product.document("probe")["hosts"]
    assert [(host["name"], host["status"]) for host in hosts] == [(host.name, "ok") for host in fleet.hosts]
    assert [host["facts"]["simulated_speed"] for host in hosts] == [0.4, 0.2, 0.1]
    assert all(host["facts"]["packages"]["ray"] for host in hosts)


def test_up_starts_the_hosts_that_can_be_reached_names_the_other_and_adds_it_when_it_is_there(
    product: HeteroTui, fleet: Lab
) -> None:
    inventory = fleet.inventory({"crosby": {"address": NOBODY}})
    document = HeteroTui(fleet.laptop, inventory).document("up", exit_code=3)
    errors = {host["name"]: host["error"] for host in document["hosts"]}
    assert errors["mercer"] is errors["nas"] is None
    assert NOBODY in errors["crosby"]["cause"]
    assert document["cluster"]["state"] == "degraded"
    before = {host.name: raylets(host) for host in fleet.hosts}
    document = product.document("up")
    assert document["cluster"]["state"] == "up"
    for host in fleet.hosts:
        assert len(raylets(host)) >= 1
        if host.name != "crosby":
            assert raylets(host) == before[host.name]
        if host.name != "nas":  # which somebody else uses too
            assert strangers(host) == []
    status = product.document("status")
    assert status["cluster"]["state"] == "up"
    assert status["cluster"]["head"] in {host.name for host in fleet.hosts}
    assert [host["state"] for host in status["hosts"]] == ["up"] * 3


def test_the_clusters_secret_is_nowhere_that_another_user_of_a_host_can_read_it(product: HeteroTui, fleet: Lab) -> None:
    assert product.run("up").returncode in (0, 3)  # 3: alone, when one host's address is not right yet
    members = [host for host in fleet.hosts if (host.home / ".hetero-tui/lab/token").exists()]
    assert len(members) > 1
    for host in members:
        secret = (host.home / ".hetero-tui/lab/token").read_text()
        host.exec(["sh", "-c", "umask 022; cat > /tmp/readable"], stdin=secret)
        places = '/tmp /run /dev/shm /var/tmp "$HOME" /proc/[0-9]*/cmdline /proc/[0-9]*/environ'
        look = ["sh", "-c", f"grep -rlsF -D skip -f - {places}"]
        found = host.exec(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *look], stdin=secret)
        assert found.stdout.split() == ["/tmp/readable"], "only what this test has put there"
        host.exec(["rm", "/tmp/readable"])


def test_a_run_outlives_the_laptops_command_and_attach_shows_all_of_it(product: HeteroTui, fleet: Lab) -> None:
    iterations = 50
    # A plan leaves a device out that takes longer for its first sample than the others for all, as it may seem where
    # few slices are measured on a busy computer.
    settings = [f"num_iterations={iterations}", "batch_size=1400", "strategy=sync", "measure_seconds=3"]
    settings = [part for setting in settings for part in ("--set", setting)]
    with product.start("train", "digits", *settings, "--json") as train:
        assert train.stdout is not None
        seen: list[protocol.Event] = []
        for line in train.stdout:
            seen.append(event(line))
            if len(steps(seen)) == 3:
                train.kill()
                break
        train.stdout.close()
    assert train.returncode == -signal.SIGKILL
    run = only(seen, protocol.RunStarted).run
    for host in fleet.hosts[:2]:
        workers = [one for one in host.processes() if one.argv[0].startswith("ray::")]
        assert workers
        assert not set(workers) & set(strangers(host))

    events = product.events("attach", run)
    assert_whole(events)
    assert events[: len(seen)] == seen
    assert len(steps(events)) == iterations
    assert_falls(events)
    finished = only(events, protocol.RunFinished)
    assert finished.steps == iterations
    assert finished.checkpoint
    (listed,) = [one for one in product.document("status")["runs"] if one["id"] == run]
    assert (listed["state"], listed["step"]) == ("finished", iterations)
    again = product.run("resume", run)
    assert again.returncode == 1
    assert f"{run} is finished" in again.stderr

    # The same run tells whether slices follow speed: 4 : 2 : 1 by simulation, so that two cores are enough.
    assert {share.host: share.simulated_speed for share in only(events, protocol.PlanMade).shares} == {
        "mercer": 0.4,
        "crosby": 0.2,
        "nas": 0.1,
    }
    # What else this computer does makes single steps longer, and may move a share; no step is faster than its device.
    cut_anew = next((one.step for one in events if isinstance(one, protocol.Rebalanced)), iterations)
    fastest = fastest_seconds([one for one in steps(events) if 0 < one.step < cut_anew])
    assert len(fastest) == 3, [one for one in events if not isinstance(one, protocol.Step)][:12]
    print("compute seconds of the fastest step under the plan's shares:", fastest)
    assert (max(fastest.values()) - min(fastest.values())) / max(fastest.values()) <= SPREAD, fastest


def test_what_the_documents_show_for_a_run_that_goes_on_works_as_it_stands_there(
    product: HeteroTui, fleet: Lab
) -> None:
    """In one run, on one fleet; ``test_documented_commands.py`` has all other commands."""
    run, head = a_finished_run(product), product.document("status")["cluster"]["head"]
    away = next(host for host in fleet.hosts if host.name not in (head, "nas"))
    home = fleet.laptop.home
    reader = Reader(product, {"text-7f3a": run, "text-7f3": run, "studio": away.name, "plan text": "plan digits"})
    told = reader.run("hetero-tui plan text --explain", "--set", "batch_size=840")
    assert re.search(r"^use .* a step", told, re.MULTILINE), told
    alone = Reader(HeteroTui(fleet.laptop, fleet.inventory()), {})
    assert "nas is no longer in" in alone.run("hetero-tui remove nas")

    words = reader.words("hetero-tui resume text-7f3 --set learning_rate=1e-4 --set num_iterations=8000")
    with (
        Following(product, *words) as resumed,
        reader.staying("hetero-tui logs text-7f3a --follow", code=0) as logs,
        reader.staying("hetero-tui serve text-7f3") as served,
        reader.staying("hetero-tui metrics --port 9464") as metrics,
        reader.staying("hetero-tui web") as web,
    ):
        resumed.until(protocol.RunResumed)
        resumed.until(protocol.Step)
        told_of = reader.at_once(
            [
                "hetero-tui report text-7f3",
                "hetero-tui export text-7f3 --output text.csv",
                "hetero-tui export text-7f3 --format json --output text.json",
                "hetero-tui logs text-7f3",
            ]
        )
        assert "<svg" in (home / f"{run}.html").read_text()
        rows = list(csv.DictReader((home / "text.csv").read_text().splitlines()))
        assert [int(row["step"]) for row in rows[:50]] == [*range(1, 51)]
        assert len(json.loads((home / "text.json").read_text())["steps"]) >= 50
        assert head in re.findall(r"^\S+Z \[(\w+)/coordinator\]", told_of["hetero-tui logs text-7f3"], re.MULTILINE)

        assert served.stdout is not None
        assert f"on cpu of {head}" in served.stdout.readline()
        (home / "inputs.json").write_text(json.dumps({"inputs": [[[[0.5] * 8] * 8]] * 3}))
        outputs = json.loads(typed(fleet, served.stdout.readline()))["outputs"]
        assert [len(row) for row in outputs] == [10] * 3

        assert metrics.stdout is not None
        address, seen = metrics.stdout.readline().strip(), ""
        while f'hetero_tui_run_step{{run="{run}"' not in seen:
            time.sleep(0.2)
            seen = typed(fleet, f"curl -sf {address}")
            assert metrics.poll() is None, seen
        assert web.stdout is not None
        assert "hetero-tui" in typed(fleet, f"curl -sfL -c cookies {shlex.quote(web.stdout.readline().strip())}")

        reader.run("hetero-tui drain studio")
        resumed.until(protocol.WorkerLost, having=lambda one: one.host == away.name and "drained" in one.cause)
        reader.run("hetero-tui undrain studio")
        resumed.until_step_with(away)
        assert f"{run} is stopped at step" in reader.run("hetero-tui stop text-7f3a")
        assert logs.wait(120) == 0, "the run has ended, and its logs with it"
    (listed,) = [one for one in product.document("runs")["runs"] if one["id"] == run]
    assert (listed["state"], listed["step"] > 50) == ("stopped", True)


def test_after_a_run_and_a_crash_the_secret_is_in_its_own_file_alone_and_no_process_would_dump_it(
    product: HeteroTui, fleet: Lab
) -> None:
    """Whoever looks, root too: not in events and logs, not in Ray's sessions, not in what the laptop keeps."""
    product.document("up")
    crosby = fleet.host("crosby")
    before = raylets(crosby)
    for pid in before:
        crosby.signal(pid, signal.SIGABRT)
    ends = time.monotonic() + BACK_SECONDS
    while raylets(crosby) in (set(), before):
        assert time.monotonic() < ends, "Ray is not started again"
        time.sleep(0.2)
    secret = (crosby.home / ".hetero-tui/lab/token").read_text().strip()
    folder = f"{login().pw_dir}/.hetero-tui"
    for host in fleet.hosts:
        found = host.exec(["grep", "-rlsF", "-D", "skip", "-f", "-", folder, "/tmp", "/dev/shm", "/run"], stdin=secret)
        assert found.stdout.split() == [f"{folder}/lab/token"], host.name
        would_dump = [one for one in host.processes() if is_ours(host, one) and core_limit(host, one) not in ("0", "")]
        assert would_dump == [], host.name
    kept = [path for place in (".local", ".cache") for path in (fleet.laptop.home / place).rglob("*") if path.is_file()]
    holding = [path for path in kept if secret.encode() in path.read_bytes()]
    assert holding == [fleet.laptop.home / ".local/state/hetero-tui/lab/token"]


def test_another_ray_is_untouched_while_ours_runs_and_down_leaves_nothing_of_ours_and_all_of_theirs(
    product: HeteroTui, fleet: Lab, theirs: OtherRay, bare: Mapping[str, str]
) -> None:
    product.document("up")
    assert theirs.pids <= {one.pid for one in theirs.host.processes()}
    counted = theirs.count()
    assert counted > 1, "it was not started again while ours ran"
    document = product.document("down", "--yes")
    assert document["leftovers"] == []
    assert document["removed"]
    for host in fleet.hosts:
        marked = [one for one in host.processes() if is_ours(host, one)]
        assert marked == [], host.name
        if host is not theirs.host:
            assert host.processes() == ()
            assert host.listening_ports() == frozenset()
            assert temporary_files(host) == bare[host.name]
        assert host.exec(["sh", "-c", "cat ~/.hetero-tui/*/token"]).returncode != 0
    assert theirs.pids <= {one.pid for one in theirs.host.processes()}
    assert theirs.count() == counted + 1
    status = product.document("status")
    assert status["cluster"]["state"] == "down"
    assert product.document("down", "--yes")["leftovers"] == []


# --- What the tests ask of events and hosts --------------------------------------------------------------------------


def a_finished_run(product: HeteroTui) -> str:
    """That of the test above, or one like it."""
    for one in product.document("runs")["runs"]:
        if one["job"] == "digits" and one["state"] == "finished":
            return str(one["id"])
    settings = ["--set", "num_iterations=50", "--set", "batch_size=840", "--set", "strategy=sync"]
    return only(product.events("train", "digits", *settings), protocol.RunStarted).run


def typed(fleet: Lab, line: str) -> str:
    """What a shell on the laptop prints for a line that it was given."""
    done = fleet.laptop.run(["sh", "-c", line])
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def assert_whole(events: list[protocol.Event]) -> None:
    """Every event from the first to the last is there, once."""
    assert [one.seq for one in events] == list(range(1, len(events) + 1))
    assert events[-1].kind in protocol.FINAL_KINDS


def assert_falls(events: list[protocol.Event]) -> None:
    """The loss of every step is a number, and that of the last ones is smaller than that of the first."""
    losses = [one.loss for one in steps(events) if one.loss is not None]
    assert len(losses) == len(steps(events))
    assert statistics.mean(losses[-3:]) < 0.8 * losses[0]


def fastest_seconds(of: list[protocol.Step]) -> Mapping[str, float]:
    """Each worker's compute time in the fastest of these steps, in seconds."""
    times: dict[str, list[float]] = defaultdict(list)
    for step in of:
        for worker in step.workers:
            times[worker.worker].append(worker.compute_s)
    return {worker: min(values) for worker, values in times.items()}


def temporary_files(host: Host) -> str:
    return host.exec(["ls", "-A", "/tmp", "/dev/shm"]).stdout


def raylets(host: Host) -> set[int]:
    """PIDs of our cluster's raylets on a host."""
    return {one.pid for one in host.processes() if one.argv[0].endswith("raylet") and is_ours(host, one)}


def strangers(host: Host) -> list[HostProcess]:
    """Processes on a host that are not our cluster's; one that ends while we look is none."""
    suspects = [one for one in host.processes() if not is_ours(host, one)]
    return [one for one in suspects if one in host.processes()]


def core_limit(host: Host, process: HostProcess) -> str:
    """How large a core dump of this process may be; empty: it has ended."""
    found = re.search(
        r"^Max core file size +(\S+)", host.exec(["cat", f"/proc/{process.pid}/limits"]).stdout, re.MULTILINE
    )
    return found[1] if found else ""


def is_ours(host: Host, process: HostProcess) -> bool:
    """Whether a process carries our cluster's mark, which all that it starts inherits."""
    environment: subprocess.CompletedProcess[str] = host.exec(["cat", f"/proc/{process.pid}/environ"])
    return any(entry.startswith(f"{protocol.CLUSTER_MARK}=") for entry in environment.stdout.split("\0"))
