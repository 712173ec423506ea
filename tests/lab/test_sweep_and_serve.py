"""A sweep over three hosts, one of which loses its power, and a model that is served over SSH, as a user meets them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.lab.lab import Lab
from tests.lab.machines import Host
from tests.lab.product import HeteroTui

pytestmark = [pytest.mark.lab, pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(400, method="signal")]

TRIALS, OPTIMUM, REQUESTS = 20, 0.35, 100

JOB = f"""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Mine:
    place: float = 0.0


class Job:
    settings = Mine()

    def create_model(self):
        return nn.Linear(1, 1)

    def create_data(self):
        return torch.zeros(36, 1), torch.zeros(36, 1)

    def loss(self, model, batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean() * 0 + abs(self.settings.place - {OPTIMUM})
"""

SETTINGS = {"num_iterations": 6, "batch_size": 4, "measure_seconds": 0.1}

BEGUN = re.compile(r"trial (\d+) on (\w+)/cpu: place=\S+")
OVER = re.compile(r"trial (\d+) on (\w+)/cpu: (done|stopped)")
ROW = re.compile(r"(\d+) +(\w+)/cpu +(\d+) +(\S+) +(\S+)( +stopped early)?")
"""A line of the table: trial, host, steps, loss, place."""

CLIENT = f"""
import http.client, json, sys
place, token = sys.argv[1:]

def ask(method, path, body, bearer=token):
    connection = http.client.HTTPConnection(place, timeout=60)
    connection.request(method, path, json.dumps(body), {{"Authorization": "Bearer " + bearer}})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found

answers = [ask("POST", "/predict", {{"inputs": [[number % 256, 7]]}}) for number in range({REQUESTS})]
wrong = [ask("POST", "/predict", {{"inputs": [[1]]}}, bearer) for bearer in ("", "x", token[:-1], token + "x")]
print(json.dumps({{"answers": answers, "wrong": wrong, "put": ask("PUT", "/predict", {{}})}}))
"""

LISTENS = """
import json, psutil
of = [each for each in psutil.process_iter(["cmdline"]) if "remote_agent.serve" in (each.info["cmdline"] or ())]
print(json.dumps([each.laddr for one in of for each in one.net_connections("inet") if each.status == "LISTEN"]))
"""

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
except ConnectionRefusedError:
    print("refused")
"""


@pytest.fixture(scope="module")
def product(fleet: Lab) -> Iterator[HeteroTui]:
    product = HeteroTui(fleet.laptop, fleet.inventory())
    assert product.document("up")["cluster"]["state"] == "up"
    yield product
    product.run("down", "--yes", "--json")


def test_a_sweep_uses_all_hosts_finds_the_optimum_and_outlives_one_of_them(product: HeteroTui, fleet: Lab) -> None:
    head = product.document("status")["cluster"]["head"]
    victim = next(host for host in fleet.hosts if host.name != head)
    (fleet.laptop.home / "planted.py").write_text(JOB)
    words = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    job, lines = str(fleet.laptop.home / "planted.py:Job"), list[str]()
    with product.start("sweep", job, "--param", "place=0..1", "--trials", str(TRIALS), *words) as sweep:
        assert sweep.stdout is not None
        was_there = False
        for line in sweep.stdout:
            lines.append(line.strip())
            was_there = was_there or ((found := OVER.match(line)) is not None and found[2] == victim.name)
            if was_there and victim.is_on and (found := BEGUN.match(line)) is not None and found[2] == victim.name:
                victim.pull_plug()
        assert sweep.stderr is not None
        said = sweep.stderr.read()
    assert sweep.returncode == 0, "\n".join([*lines, said])
    assert not victim.is_on, lines
    assert any("it is made again elsewhere" in line for line in lines)
    over = [found for line in lines if (found := OVER.match(line))]
    assert {found[2] for found in over} == {host.name for host in fleet.hosts}
    rows = [found for line in lines if (found := ROW.fullmatch(line))]
    assert sorted(int(row[1]) for row in rows) == list(range(TRIALS)), "each trial came to its end, once"
    best, *others = ((float(row[4]), float(row[5])) for row in rows)
    assert best[0] == pytest.approx(abs(best[1] - OPTIMUM), abs=1e-3)
    assert best[0] == min(loss for loss, _ in (best, *others)) <= 1 / TRIALS
    assert rows[0][3] == str(SETTINGS["num_iterations"])


def test_a_model_is_served_to_who_has_its_token_on_loopback_alone_until_down(product: HeteroTui, fleet: Lab) -> None:
    assert product.run("train", "text", "--set", "num_iterations=3", "--set", "measure_seconds=0.1").returncode == 0
    with product.start("serve") as serving:
        assert serving.stdout is not None
        about, *commands = (serving.stdout.readline().strip() for _ in range(3))
        assert about, serving.stderr.read() if serving.stderr is not None else ""
        host = fleet.host(about.rpartition(" ")[2])
        token, place = re.findall(r"Bearer (\S+)' http://(127\.0\.0\.1:\d+)/", commands[0])[0]
        for command in commands:
            done = fleet.laptop.run(["sh", "-c", f"{command} --fail-with-body"])
            assert done.returncode == 0, f"what is printed works when it is pasted: {command}: {done.stdout}"
            assert "outputs" in done.stdout or "data: [DONE]" in done.stdout
        done = fleet.laptop.run([sys.executable, "-c", CLIENT, place, token])
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert [status for status, _ in found["answers"]] == [200] * REQUESTS
        outputs = [json.loads(text)["outputs"] for _, text in found["answers"]]
        assert all(len(each) == 1 and len(each[0]) == 2 and len(each[0][0]) == 256 for each in outputs)
        assert [status for status, _ in found["wrong"]] == [401] * 4
        assert (found["put"][0], list(json.loads(found["put"][1]))) == (501, ["error"])

        here = psutil.Process(serving.pid).net_connections("inet")
        assert {each.laddr.ip for each in here if each.status == "LISTEN"} == {"127.0.0.1"}
        ((address, port),) = json.loads(host.exec([sys.executable, "-c", LISTENS]).stdout)
        assert address == "127.0.0.1"
        other = next(each for each in fleet.hosts if each is not host and each.is_on)
        for machine, number in ((host, port), (fleet.laptop, int(place.rpartition(":")[2]))):
            assert other.exec([sys.executable, "-c", CONNECT, machine.address, str(number)]).stdout == "refused\n"

        assert product.run("down", "--yes", "--json").returncode in (0, 4), "4: the host without power"
        assert serving.wait(60) == 1
        assert serving.stderr is not None
        assert f"{host.name}: " in serving.stderr.read()
    assert not servers(host)


def servers(host: Host) -> list[str]:
    return [word for one in host.processes() for word in one.argv if word == "remote_agent.serve"]
