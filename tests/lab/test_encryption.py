"""``security: tls``: what hosts send each other can't be read, a stranger ends nothing, and runs recover as without.

The switch is listened to while a model with a known constant in its weights is trained. The same without TLS shows that
what is looked for would have been found.
"""

from __future__ import annotations

import signal
import stat
import time
from collections.abc import Iterator

import pytest
import torch

from hetero_tui.fleet import authority
from remote_agent import protocol
from tests.lab import outsider
from tests.lab.following import ENDLESS, Following
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui, only, setting, steps
from tests.lab.test_outsider import attack, ended, ours
from tests.lab.wiretap import Wiretap

pytestmark = [pytest.mark.lab, pytest.mark.ray]

NAMES = ("mercer", "crosby", "nas")
CONSTANT = 0.0123456
NEEDLE = torch.full((8,), CONSTANT).numpy().tobytes()
JOB = f"""
import torch
from torch import nn

class Planted:
    def create_model(self):
        model = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 2900), nn.Linear(2900, 5))
        with torch.no_grad():
            model[2].weight.fill_({CONSTANT})
        return model

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.0)

    def create_data(self):
        generator = torch.Generator().manual_seed(1)
        return torch.randn(600, 64, generator=generator), torch.randint(5, (600,), generator=generator)
"""
SETTINGS = {"strategy": "sync", "batch_size": 120, "checkpoint_every": 5}
LEAST_BYTES = 50e6


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    with Lab(
        [HostSpec(name=name, simulated_speed=0.1, cpus=1) for name in (*NAMES, "stranger")], rate_mbit=1000
    ) as lab:
        (lab.laptop.home / "planted.py").write_text(JOB)
        yield lab


@pytest.fixture
def product(lab: Lab, request: pytest.FixtureRequest) -> Iterator[HeteroTui]:
    """The first two hosts; ``request.param`` is the inventory's ``security``."""
    product = HeteroTui(lab.laptop, lab.inventory(hosts=NAMES[:2], security=request.param))
    assert product.document("up")["cluster"]["state"] == "up"
    yield product
    assert product.document("down", "--yes")["leftovers"] == []


def token(lab: Lab) -> bytes:
    return (lab.host("mercer").home / ".hetero-tui/lab/token").read_text().strip().encode()


def train(lab: Lab, product: HeteroTui, iterations: int) -> Following:
    words = setting(SETTINGS | {"num_iterations": iterations})
    return Following(product, "train", str(lab.laptop.home / "planted.py"), *words)


@pytest.mark.long
@pytest.mark.parametrize("product", ["token"], indirect=True)
def test_without_tls_weights_are_seen_on_the_wire_and_the_token_is_not(lab: Lab, product: HeteroTui) -> None:
    with Wiretap(lab, [NEEDLE, token(lab)]) as tap, train(lab, product, 6) as run:
        run.to_the_end()
        heard = tap.end()
    print(heard)
    assert heard["bytes"] > LEAST_BYTES
    assert heard["found"][0] > 0
    assert heard["found"][1] == 0, "Ray's gRPC, which sends it with each call, is always under TLS"


@pytest.mark.parametrize("product", ["tls"], indirect=True)
def test_with_tls_nothing_is_seen_strangers_get_nothing_and_what_is_not_encrypted_is_refused(
    lab: Lab, product: HeteroTui
) -> None:
    state = lab.laptop.home / ".local/state/hetero-tui/lab"
    for file in (state / "authority.pem", *(lab.host(name).home / ".hetero-tui/lab/tls.pem" for name in NAMES[:2])):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    secret = token(lab)
    with Wiretap(lab, [NEEDLE, secret]) as tap, train(lab, product, ENDLESS) as run:
        run.until_step(3, 180)
        before = ours(lab)
        found = attack(lab, [outsider.KILLS, "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"], 2.0)
        run.until_step(run.step + 3, 60)
        assert ended(lab, before) == []
        assert [answer for answer in found["answers"] if "OK " in answer[3] or secret.decode() in answer[3]] == []
        assert found["calls"] == 0, "no port of Ray's lets a stranger in as far as to a call"
        heard = tap.end()
        run.stop()
    print(heard, len(steps(run.events)), "steps")
    assert heard["bytes"] > LEAST_BYTES
    assert heard["found"] == [0, 0]
    done = product.run("train", "digits", "--set", "strategy=allreduce")
    assert done.returncode == 1
    assert "strategy=allreduce would send gradients in clear" in done.stderr
    clear = HeteroTui(lab.laptop, lab.inventory(hosts=NAMES[:2], security="token"))
    for words in (("up",), ("train", "digits")):
        done = clear.run(*words)
        assert done.returncode == 1
        assert "the cluster runs with `security: tls`, and the inventory says `security: token`" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("product", ["tls"], indirect=True)
def test_with_tls_a_host_joins_killed_workers_and_a_lost_head_end_no_run_and_nothing_is_seen(
    lab: Lab, product: HeteroTui
) -> None:
    with Wiretap(lab, [NEEDLE, token(lab)]) as tap, train(lab, product, ENDLESS) as run:
        run.until_step(3, 180)
        joins_with_a_certificate_of_this_authority_alone(lab, product, run.head)
        run.until_step_with(lab.host("nas"))

        crosby = lab.host("crosby")
        workers = [one.pid for one in crosby.processes() if one.argv[0].startswith("ray::Worker")]
        assert workers
        for pid in workers:
            crosby.signal(pid, signal.SIGKILL)
        run.until(protocol.WorkerLost, 60)
        run.until_step_with(crosby)

        run.until_copied()
        began = time.monotonic()
        lab.host(run.head).pull_plug()
        run.until_step_after_resume()
        print(f"the head lost power: the next step comes {time.monotonic() - began:.0f} s later")
        heard = tap.end()
        assert run.head != "mercer"
        lab.host("mercer").boot()
        lab.await_hosts(lab.host("mercer"))
        run.until_step_with(lab.host("mercer"))
        run.stop()
    assert only(run.events, protocol.HeadLost).host == "mercer"
    assert heard["bytes"] > LEAST_BYTES
    assert heard["found"] == [0, 0]


def joins_with_a_certificate_of_this_authority_alone(lab: Lab, product: HeteroTui, head: str) -> None:
    """A third host is refused without a certificate, and with another authority's, each with a line that says so.

    A laptop that did not form the cluster takes the authority from the head.
    """
    product.inventory.write_text(lab.inventory(hosts=NAMES, security="tls").read_text())  # the user adds a line to it
    on_laptop = lab.laptop.home / ".local/state/hetero-tui/lab/authority.pem"
    on_head = lab.host(head).home / ".hetero-tui/lab/authority.pem"
    own = on_head.read_text()
    assert stat.S_IMODE(on_head.stat().st_mode) == 0o600
    for path in (on_laptop, on_head):
        path.unlink()
    refused = product.run("up")
    assert refused.returncode == 3, refused.stderr
    assert "nas" in refused.stderr
    assert "this machine's certificate is missing" in refused.stderr
    on_laptop.write_text(authority.create("lab"))
    refused = product.run("up")
    assert refused.returncode == 3, refused.stderr
    assert "do not accept each other's certificates" in refused.stderr
    on_head.write_text(own)
    assert product.document("up")["cluster"]["state"] == "up"
