"""Of two clusters of one name, the newer is the one that is meant."""

from hetero_tui.events import HostState
from hetero_tui.fleet.survey import Surveyed, head_name, mark_replaced, running_head
from remote_agent.protocol import NodeReport, NodeSpec


def surveyed(host: str, role: str, epoch: int, state: str = "running") -> Surveyed:
    spec = NodeSpec(
        cluster="lab",
        host=host,
        role=role,
        folder="~/x",
        node_address="10.0.0.2",
        head_address=f"of-epoch-{epoch}",
        gcs_port=6389,
        dashboard_port=8365,
        labels={},
        resources={},
        epoch=epoch,
    )
    return Surveyed(host, node=NodeReport(host=host, state=state, spec=spec))


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


def test_a_host_without_a_node_is_no_leftover_of_an_older_cluster() -> None:
    bare = Surveyed("bare", node=NodeReport(host="bare", state="stopped"))
    found = mark_replaced({"bare": bare, "new": surveyed("new", "head", 2)})
    assert not found["bare"].replaced
    assert found["bare"].node_state is None
