"""Which hosts a run does without, as its events tell."""

from __future__ import annotations

from hetero_tui.runs.attending import doing_without
from remote_agent import protocol
from remote_agent.protocol import Event


def lost(host: str) -> Event:
    return protocol.WorkerLost(
        seq=1, time=0.0, worker=f"{host}/cpu", host=host, device="cpu", step=3, cause="its process ended"
    )


def joined(host: str) -> Event:
    return protocol.WorkerJoined(seq=2, time=0.0, worker=f"{host}/cpu", host=host, device="cpu", name="CPU")


def failed() -> Event:
    return protocol.RunFailed(seq=3, time=0.0, step=3, host="mercer", cause="the loss is nan", hint="", detail="")


def test_a_host_is_missed_from_the_loss_of_its_worker_until_one_joins() -> None:
    hosts = doing_without(doing_without(frozenset(), lost("nas")), lost("studio"))
    assert hosts == {"nas", "studio"}
    assert doing_without(hosts, joined("nas")) == {"studio"}


def test_nobody_is_missed_once_the_run_is_over() -> None:
    assert doing_without(frozenset({"nas"}), failed()) == frozenset()
