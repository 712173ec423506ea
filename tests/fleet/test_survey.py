"""Of two clusters of one name, the newer is the one that is meant."""

from collections.abc import Sequence
from typing import cast

from hetero_tui.events import HostState
from hetero_tui.fleet.survey import Surveyed, head_name, mark_replaced, running_head, survey
from hetero_tui.text import HostText
from hetero_tui.transport import Completed, Transport
from remote_agent.protocol import NodeReport, encode
from remote_agent.states import RayState
from tests.specs import node_spec


def surveyed(host: str, role: str, epoch: int, state: str = "running") -> Surveyed:
    spec = node_spec(host, role, head_address=f"of-epoch-{epoch}", epoch=epoch)
    return Surveyed(host, node=NodeReport(host=host, state=RayState(state), spec=spec))


def test_a_head_that_comes_back_is_told_from_the_one_that_took_its_place() -> None:
    entries = (surveyed("old", "head", 1), surveyed("new", "head", 2), surveyed("third", "worker", 2))
    found = mark_replaced({entry.host: entry for entry in entries})
    assert head_name(found) == "new"
    head = running_head(found)
    assert head is not None
    assert head.head_address == "of-epoch-2"
    assert not found["old"].runs_ray
    assert found["old"].node_state is HostState.FAILED
    assert "`up`" in found["old"].cause
    assert found["third"].node_state is HostState.UP
    assert found["third"].cause == ""


def test_a_node_that_is_about_to_join_is_a_member_and_is_not_said_to_be_up() -> None:
    found = surveyed("mercer", "head", 1, "starting")
    assert found.runs_ray
    assert found.node_state is HostState.STARTING


class Machine:
    """A host as a transport shows it: whatever it is asked, it says how its node is."""

    def __init__(self, host: str, node: NodeReport) -> None:
        self.host = host
        self._node = node

    async def connect(self) -> None:
        """It is there."""

    async def run(self, command: Sequence[str], *, step: str, deadline: float, stdin: bytes | None = None) -> Completed:
        return Completed(0, HostText(f"{encode(self._node)}\n"), HostText(""))


async def test_a_node_counts_once_although_two_hosts_are_its_machine() -> None:
    node = NodeReport(host="mercer", state=RayState.RUNNING, pid=7, spec=node_spec("mercer", "head"))
    machines = {name: Machine(name, node) for name in ("alias", "mercer")}
    found = await survey("lab", cast("dict[str, Transport]", machines))
    assert [name for name, entry in found.items() if entry.runs_ray] == ["mercer"]
    del machines["mercer"]
    renamed = await survey("lab", cast("dict[str, Transport]", machines))
    assert renamed["alias"].runs_ray  # this inventory knows it by that name alone
