"""What a language model's files tell on the hosts is refused before anything is started there."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hetero_tui.errors import OrderError, RunError
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.inventory import Host, Inventory
from hetero_tui.runs import before_start
from hetero_tui.runs.order import read_order
from hetero_tui.transport import open_transport


def fleet(monkeypatch: pytest.MonkeyPatch, homes: dict[str, Path], head: str | None = None) -> LiveFleet:
    """Fit hosts, each with a home of its own on this computer."""
    hosts = tuple(Host(name=name, connection="local") for name in homes)
    inventory = Inventory(cluster="lab", head=head, hosts=hosts)
    transports = {}
    for host in hosts:
        transport = open_transport(host, inventory)
        run = transport.run

        async def at_home(command: list[str], *, run: Any = run, home: Path = homes[host.name], **more: Any) -> Any:
            return await run(["env", f"HOME={home}", *command], **more)

        transport.run = at_home  # type: ignore[method-assign,assignment]
        transports[host.name] = transport
    memory = SimpleNamespace(total_bytes=10**9)
    facts = SimpleNamespace(python=SimpleNamespace(executable=sys.executable), memory=memory, accelerators=())
    monkeypatch.setattr(before_start, "judged", lambda *_: ({host.name: (host, facts) for host in hosts}, {}))
    return cast("LiveFleet", SimpleNamespace(inventory=inventory, surveyed={}, probed=(), transports=transports))


@pytest.fixture
def homes(tmp_path: Path) -> dict[str, Path]:
    """The first has a model and text, the second an empty folder of the model's name."""
    for name in ("a", "b"):
        (tmp_path / name / "model").mkdir(parents=True)
    (tmp_path / "a" / "model" / "config.json").write_text(json.dumps({"vocab_size": 3}))
    (tmp_path / "a" / "model" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"x": 0, "y": 3}}}))
    (tmp_path / "a" / "text.txt").write_text("words")
    return {name: tmp_path / name for name in ("a", "b")}


GIVEN = ("model=~/model", "data=~/text.txt", "from_scratch=true")


async def refusal(fleet: LiveFleet, *pairs: str) -> str:
    try:
        await before_start.refuse_files(fleet, read_order("hf-lm", [*GIVEN, *pairs]))
    except OrderError as error:
        return str(error)
    return ""


async def test_a_mistake_on_the_head_is_told_and_one_that_another_host_does_not_have_is_left_to_the_run(
    monkeypatch: pytest.MonkeyPatch, homes: dict[str, Path]
) -> None:
    of_a = "its tokenizer does not fit the model: its numbers go up to 3, the model knows 3 (on a)"
    assert of_a in await refusal(fleet(monkeypatch, homes, head="a"))
    said = await refusal(fleet(monkeypatch, homes, head="b"))
    assert "model=~/model: no config.json (on b)" in said
    assert "data=~/text.txt: not there (on b)" in said
    assert await refusal(fleet(monkeypatch, homes)) == "", "each of them may be the head"
    everywhere = await refusal(fleet(monkeypatch, homes), "tokenizer=~/none")
    assert "tokenizer=~/none: not a folder (on a and on b)" in everywhere


async def test_a_model_that_fits_nowhere_is_refused_with_how_much_is_missing(
    monkeypatch: pytest.MonkeyPatch, homes: dict[str, Path]
) -> None:
    """By the headers of its weights: nothing of them is read."""
    table = json.dumps({"a.weight": {"dtype": "BF16", "shape": [1000, 200_000]}, "__metadata__": {"format": "pt"}})
    for home in homes.values():
        (home / "model" / "config.json").write_text("{}")
        (home / "model" / "model.safetensors").write_bytes(len(table).to_bytes(8, "little") + table.encode())
        (home / "text.txt").write_text("words")
    both = fleet(monkeypatch, homes)
    said = await refusal(both, "from_scratch=false")
    assert (
        "its 200,000,000 weights take at least 3.2 GB to train, and all machines have 2 GB: 1.2 GB are missing" in said
    )
    assert await refusal(both, "from_scratch=false", "lora_rank=4") == ""


@pytest.mark.parametrize(
    ("pair", "security", "said"),
    [
        ("strategy=allreduce", "tls", "strategy=allreduce would send gradients in clear"),
        ("deterministic=true", "tls", "deterministic=true would send gradients in clear"),
        ("strategy=sync", "tls", ""),
        ("strategy=allreduce", "token", ""),
    ],
)
async def test_what_can_not_be_encrypted_is_refused_before_the_cluster_is_started(
    monkeypatch: pytest.MonkeyPatch, homes: dict[str, Path], pair: str, security: Any, said: str
) -> None:
    looked_at = fleet(monkeypatch, homes)
    looked_at.inventory = looked_at.inventory.model_copy(update={"security": security})
    with pytest.raises(RunError, match=said) if said else nullcontext():
        await before_start.refuse_early(looked_at, read_order("digits", [pair]))


async def test_a_host_whose_python_fails_is_left_to_the_run(
    monkeypatch: pytest.MonkeyPatch, homes: dict[str, Path]
) -> None:
    looked_at = fleet(monkeypatch, homes, head="b")
    monkeypatch.setattr(before_start.agent, "inline", lambda *_: "-c 'raise SystemExit(3)'")
    assert await refusal(looked_at) == ""


@pytest.mark.parametrize(
    ("settings", "hosts", "refused"),
    [
        ({"shards": "3"}, 2, True),
        ({"shards": "3", "strategy": "ssp"}, 1, True),
        ({"shards": "3"}, 3, False),
        ({"shards": "3", "strategy": "allreduce"}, 1, False),
        ({"strategy": "sync"}, 1, False),
    ],
)
def test_more_shards_than_hosts_are_refused_before_anything_is_contacted(
    settings: dict[str, str], hosts: int, refused: bool
) -> None:
    order, there = read_order("digits", settings), [Host(name=f"h{number}", address="h") for number in range(hosts)]
    if not refused:
        before_start.refuse_for(order, there)
        return
    with pytest.raises(OrderError, match=f"shards=3: there {'is 1 host' if hosts == 1 else 'are 2 hosts'}"):
        before_start.refuse_for(order, there)


@pytest.mark.parametrize(
    ("limits", "refused"), [((), False), ((16, 8), True), ((16, None), False), ((64, 8), False), ((16, 8, None), True)]
)
def test_a_unit_that_no_device_may_take_is_refused_before_anything_is_contacted(
    limits: tuple[int | None, ...], refused: bool
) -> None:
    order = read_order("digits", {"unit": "512", "batch_size": "32"})
    roles = ["any", "any", "server"]
    there = [
        Host(name=f"h{number}", address="h", max_batch=most, role=cast("Any", roles[number]))
        for number, most in enumerate(limits)
    ]
    with (
        pytest.raises(OrderError, match=r"unit=32: .* largest max_batch is 16 -> set unit=16 or less")
        if refused
        else nullcontext()
    ):
        before_start.refuse_for(order, there)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"staleness": "3", "strategy": "sync"}, ["staleness=3 has no effect: it counts with strategy=ssp"]),
        ({"staleness": "3"}, []),
        ({"outer_momentum": "0.5"}, ["outer_momentum=0.5 has no effect: it counts with outer=nesterov"]),
    ],
)
async def test_a_setting_without_effect_is_told_before_anything_starts(
    settings: dict[str, str], said: list[str]
) -> None:
    told: list[str] = []
    assert await before_start.archive_of(read_order("digits", settings), lambda _, text: told.append(text)) is None
    assert told == said
