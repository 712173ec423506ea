"""What ``up`` says of a cluster whose head fails: a running one is not down, and no host is left as being started."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509

from hetero_tui import events
from hetero_tui.errors import ClusterError, Unreachable
from hetero_tui.events import ClusterState, Event, HostState
from hetero_tui.fleet import authority
from hetero_tui.fleet.bring_up import OnHead, UpReport, bring_up, is_new
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.probing import Probed
from hetero_tui.fleet.survey import FleetView, Surveyed
from hetero_tui.fold import apply
from hetero_tui.inventory import Host, Inventory
from hetero_tui.state import State, initial
from hetero_tui.text import HostText
from hetero_tui.transport import Completed, Transport
from remote_agent import protocol
from remote_agent.states import RayState
from tests.specs import node_spec

HOSTS = ("mercer", "crosby", "nas")
HEAD = "mercer"
SECRET = "5ec2e7" + 58 * "0"


def node(host: str) -> protocol.NodeSpec:
    return node_spec(host, "head" if host == HEAD else "worker")


def running_node(host: str, security: str) -> protocol.NodeReport:
    spec = replace(node(host), encrypted=security == "tls")
    return protocol.NodeReport(host=host, state=RayState.RUNNING, spec=spec)


class Machine:
    """A host as a transport shows it: it answers each command, or from the command named ``fails_at`` on no more."""

    def __init__(
        self, host: str, fails_at: str = "", report: protocol.NodeReport | None = None, authority: str = ""
    ) -> None:
        self.host = host
        self._authority = authority
        self.address = f"10.0.0.{2 + HOSTS.index(host)}"
        self._fails_at = fails_at
        self.given: dict[str, bytes] = {}
        self._report = report or protocol.NodeReport(host=host, state=RayState.RUNNING, already=True, spec=node(host))

    async def run(self, command: Sequence[str], *, step: str, deadline: float, stdin: bytes | None = None) -> Completed:
        if step == self._fails_at:
            raise Unreachable(self.host, "the connection broke", step=step, hint="is the machine on?")
        if step == "read token":
            return Completed(0, HostText(f"\n{SECRET}\n{self._authority}"), HostText(""))
        if step == "start Ray" and "stop" in command:
            return Completed(0, HostText(protocol.encode(protocol.StopReport()) + "\n"), HostText(""))
        return Completed(0, HostText(protocol.encode(self._report) + "\n"), HostText(""))

    def converse(self, command: Sequence[str], *, step: str, silence: float) -> Any:
        raise Unreachable(self.host, "the connection broke", step=step, hint="what it reaches is not measured")

    async def put(self, data: bytes, path: str, *, step: str, deadline: float, mode: int = 0o600) -> None:
        if step == self._fails_at:
            raise Unreachable(self.host, "the connection broke", step=step, hint="is the machine on?")
        assert mode == 0o600
        self.given[path.rpartition("/")[2]] = data


class Fleet:
    """Three machines; ``running`` says where the last look found Ray. The state is what a screen shows."""

    def __init__(
        self,
        folder: Path,
        facts: Any,
        head: Machine,
        running: Sequence[str],
        *,
        security: str = "token",
        named: str | None = HEAD,
    ) -> None:
        hosts = tuple(Host(name=name, address=f"{name}.local") for name in HOSTS)
        self._inventory = Inventory(cluster="lab", head=named, hosts=hosts, security=security)
        self.machines = (head, Machine("crosby"), Machine("nas"))
        self._transports = cast("dict[str, Transport]", {machine.host: machine for machine in self.machines})
        self._probed = tuple(Probed(name, facts=facts) for name in HOSTS)
        self.surveyed = {
            name: Surveyed(name, node=running_node(name, security)) if name in running else Surveyed(name)
            for name in HOSTS
        }
        self.ledger = Ledger("lab", folder)
        self.state: State = initial("lab", tuple((name, name) for name in HOSTS))
        self.heard: list[Event] = []
        for name in running:
            self._emit(events.HostChanged(time=1.0, host=name, state=HostState.UP))
        if running:
            self._emit(events.ClusterChanged(time=1.0, state=ClusterState.DEGRADED, head=HEAD))

    def _emit(self, event: Event) -> None:
        self.heard.append(event)
        self.state = apply(self.state, event)

    def swap(self, machine: Machine) -> None:
        self._transports[machine.host] = cast("Transport", machine)

    async def up(self, on_head: OnHead | None = None) -> UpReport:
        view = FleetView(self._inventory, self._transports, self._probed, self.surveyed)
        return await bring_up(view, self.ledger, self._emit, on_head=on_head)

    def sampled(self, host: str) -> None:
        sample = protocol.HostSample(time=1.0, cpu_use=0.5, memory_used=1, memory_total=2, ray=RayState.RUNNING)
        self._emit(events.HostSampled(time=9.0, host=host, sample=sample))

    @property
    def host_states(self) -> list[HostState]:
        return [host.state for host in self.state.hosts]


ENDED = protocol.NodeReport(host=HEAD, state=RayState.FAILED, cause="Ray ended at once", hint="see logs/ray.log there")


@pytest.mark.parametrize(
    ("head", "state", "says"),
    [
        (Machine(HEAD, fails_at="start Ray"), HostState.UNREACHABLE, "the connection broke -> is the machine on?"),
        (Machine(HEAD, fails_at="send token"), HostState.UNREACHABLE, "the connection broke -> is the machine on?"),
        (Machine(HEAD, report=ENDED), HostState.FAILED, "Ray ended at once -> see logs/ray.log there"),
    ],
)
async def test_a_running_cluster_whose_head_fails_is_degraded_and_the_others_are_up(
    tmp_path: Path, make_facts: Any, head: Machine, state: HostState, says: str
) -> None:
    fleet = Fleet(tmp_path, make_facts(), head, running=("mercer", "crosby"))
    report = await fleet.up()
    assert fleet.state.cluster_state is ClusterState.DEGRADED
    assert fleet.state.head == HEAD
    assert fleet.host_states == [state, HostState.UP, HostState.UP]
    assert report.joined == ("crosby", "nas")
    assert list(report.failed) == [HEAD]
    cause, hint = says.split(" -> ")
    assert any(cause in line.text and hint in line.text for line in fleet.state.log)

    fleet.sampled(HEAD)
    assert fleet.state.cluster_state is ClusterState.UP, "it says itself that its Ray runs"
    assert fleet.host_states == [HostState.UP] * 3


async def test_a_member_that_was_renamed_is_not_started_anew_under_its_new_name(
    tmp_path: Path, make_facts: Any
) -> None:
    fleet = Fleet(tmp_path, make_facts(), Machine(HEAD), running=("mercer", "crosby"))
    fleet.surveyed["crosby"] = Surveyed("crosby", node=running_node("former", "token"))
    with pytest.raises(ClusterError, match="crosby of the inventory is in the cluster that runs as former") as refused:
        await fleet.up()
    assert refused.value.hint.startswith("name it former again")
    assert [machine.given for machine in fleet.machines] == [{}] * 3


KILLED = protocol.NodeReport(host=HEAD, state=RayState.STOPPED, cause="Ray was killed", hint="see its memory")


async def test_another_head_is_tried_where_none_is_named_and_the_chosen_one_can_not_be_it(
    tmp_path: Path, make_facts: Any
) -> None:
    fleet = Fleet(tmp_path, make_facts(), Machine(HEAD, report=KILLED), running=(), named=None)
    report = await fleet.up()
    assert report.plan is not None
    assert report.plan.head in report.joined == ("crosby", "nas")
    assert {name: error.cause for name, error in report.failed.items()} == {HEAD: "Ray was killed"}
    assert (fleet.state.cluster_state, fleet.state.head) == (ClusterState.DEGRADED, report.plan.head)
    assert fleet.host_states == [HostState.FAILED, HostState.UP, HostState.UP]
    (told,) = [one.text for one in fleet.heard if isinstance(one, events.Notice) and one.host == HEAD]
    assert told == "Ray does not start on mercer, so another machine is the head: Ray was killed"


async def test_a_named_head_that_fails_is_not_replaced_nor_is_the_second_one(tmp_path: Path, make_facts: Any) -> None:
    fleet = Fleet(tmp_path, make_facts(), Machine(HEAD, report=KILLED), running=())
    with pytest.raises(ClusterError, match="the head mercer did not start: Ray was killed") as failed:
        await fleet.up()
    assert failed.value.hint == "see its memory; or name another machine as the cluster's `head:` in the inventory"

    fleet = Fleet(tmp_path, make_facts(), Machine(HEAD, report=KILLED), running=(), named=None)
    for name in HOSTS[1:]:
        fleet.swap(Machine(name, report=replace(KILLED, host=name)))
    with pytest.raises(ClusterError, match=r"the head (crosby|nas) did not start: Ray was killed"):
        await fleet.up()
    assert fleet.state.cluster_state is ClusterState.DOWN


def test_the_secret_is_a_new_one_unless_a_host_still_has_a_node_of_an_up_that_was_killed() -> None:
    bare = Surveyed("nas", node=protocol.NodeReport(host="nas", state=RayState.NONE))
    begun = Surveyed("nas", node=protocol.NodeReport(host="nas", state=RayState.STOPPED, spec=node("nas")))
    assert is_new({"nas": bare}, None)
    assert not is_new({"nas": begun}, None)
    assert is_new({"nas": begun}, frozenset({"nas"}))


@pytest.mark.parametrize("security", ["token", "tls"])
async def test_each_host_of_a_new_cluster_gets_a_certificate_for_its_address_and_the_head_the_authority(
    tmp_path: Path, make_facts: Any, security: str
) -> None:
    fleet = Fleet(tmp_path, make_facts(), Machine(HEAD), running=(), security=security)
    await fleet.up()
    keys = set()
    for machine in fleet.machines:
        (tmp_path / "tls.pem").write_bytes(machine.given["tls.pem"])
        context = ssl.create_default_context(cafile=tmp_path / "tls.pem")
        context.load_cert_chain(tmp_path / "tls.pem")
        certificate, root = x509.load_pem_x509_certificates(machine.given["tls.pem"].partition(b"-----END P")[2])
        certificate.verify_directly_issued_by(root)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = names.get_values_for_type(x509.IPAddress)
        assert "127.0.0.1" in map(str, addresses)
        assert len(addresses) == 3
        keys.add(certificate.public_key().public_numbers())
    assert len(keys) == len(HOSTS)
    assert stat.S_IMODE((tmp_path / "lab/authority.pem").stat().st_mode) == 0o600
    given = [set(machine.given) for machine in fleet.machines]
    assert given == [{"token", "tls.pem", "authority.pem"}, {"token", "tls.pem"}, {"token", "tls.pem"}]


async def test_a_new_host_gets_a_certificate_of_the_authority_that_the_head_keeps_and_members_keep_theirs(
    tmp_path: Path, make_facts: Any
) -> None:
    own = authority.create("lab")
    fleet = Fleet(tmp_path, make_facts(), Machine(HEAD, authority=own), running=("mercer", "crosby"))
    fleet.ledger.keep_token("of an earlier cluster")
    fleet.ledger.keep_authority(authority.create("lab"))
    await fleet.up()
    assert [set(machine.given) for machine in fleet.machines] == [{"token"}, {"token"}, {"token", "tls.pem"}]
    assert fleet.machines[2].given["tls.pem"].endswith(own[own.index("-----BEGIN CERT") :].encode())
    assert fleet.ledger.authority() == own
    fleet.ledger.forget_token()
    assert fleet.ledger.authority() is None


@pytest.mark.parametrize("code", ["", "of last month"])
async def test_a_cluster_of_another_version_is_left_as_it_is(tmp_path: Path, make_facts: Any, code: str) -> None:
    fleet = Fleet(tmp_path, make_facts(), Machine(HEAD), running=("mercer",))
    older = replace(node("mercer"), code=code)
    report = protocol.NodeReport(host="mercer", state=RayState.RUNNING, spec=older)
    fleet.surveyed["mercer"] = Surveyed("mercer", node=report)
    with pytest.raises(ClusterError, match="another version of hetero-tui than this laptop has") as refused:
        await fleet.up()
    assert "`hetero-tui down`, then `hetero-tui up`" in refused.value.hint
    assert fleet.machines[0].given == {}


@pytest.mark.parametrize(("runs", "wanted"), [("token", "tls"), ("tls", "token")])
async def test_a_cluster_that_runs_with_another_security_is_refused(
    tmp_path: Path, make_facts: Any, runs: str, wanted: str
) -> None:
    fleet = Fleet(tmp_path, make_facts(), Machine(HEAD), running=("mercer",), security=wanted)
    fleet.surveyed["mercer"] = Surveyed("mercer", node=running_node("mercer", runs))
    with pytest.raises(ClusterError, match=f"and the inventory says `security: {wanted}`"):
        await fleet.up()
    assert fleet.machines[0].given == {}
