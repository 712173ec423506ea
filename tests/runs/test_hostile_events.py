"""A host that sends garbage in place of a run's events or of its use: one typed error or one line, and it goes on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from hetero_tui import answers, events
from hetero_tui.errors import HeteroTuiError
from hetero_tui.fleet import agent, telemetry
from hetero_tui.inventory import Host
from hetero_tui.runs.follow import follow
from hetero_tui.transport.local import LocalTransport
from remote_agent import protocol
from tests.garbage import EVENTS, GARBAGE, harmless
from tests.test_answers import LINES

LAST = protocol.encode(
    protocol.RunFinished(
        seq=9, time=9.0, steps=9, samples=18, final_loss=0.5, samples_per_second=3.0, checkpoint="/tmp/there"
    )
)


@pytest.fixture
def transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalTransport:
    """A host that answers with what is in the file ``said``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    runner = tmp_path / agent.folder("lab") / "agent" / "run"
    runner.parent.mkdir(parents=True)
    runner.write_text("cat ~/said; exec sleep 60\n")
    return LocalTransport(Host(name="nas", connection="local"))


@pytest.mark.parametrize("kind", GARBAGE)
async def test_a_run_is_followed_past_garbage_or_ended_with_a_typed_error(
    transport: LocalTransport, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "said").write_bytes(b"\n".join((GARBAGE[kind](EVENTS[0]), LAST.encode(), b"")))
    shown = []
    async with asyncio.timeout(30):
        with suppress(HeteroTuiError):
            async with aclosing(follow(transport, "lab", "text-7f3a")) as coming:
                async for line, event in coming:
                    shown += [str(line), answers.json_line(line), event.kind]
    assert all(map(harmless, shown))
    assert shown[-1:] == ["run_finished"] or kind in ("20 MB in one line", "200,000 objects", "300,000 newlines")


@pytest.mark.parametrize("kind", GARBAGE)
async def test_what_a_host_says_of_its_use_is_shown_or_refused_once(
    transport: LocalTransport, tmp_path: Path, kind: str
) -> None:
    good = LINES["sample"].encode()
    (tmp_path / "said").write_bytes(b"\n".join((*[GARBAGE[kind](LINES["sample"])] * 3, good, b"")))
    come: asyncio.Queue[events.Event] = asyncio.Queue()
    watching = asyncio.create_task(telemetry.watch("lab", transport, come.put_nowait))
    notices = 0
    async with asyncio.timeout(30):
        while True:
            event = await come.get()
            if isinstance(event, events.Notice):
                notices += 1
                assert harmless(event.text)
            elif isinstance(event, events.HostLost):
                assert harmless(event.cause)
                break  # too much came, and the connection was given up
            elif isinstance(event, events.HostSampled) and event.sample.time == 1.0 and event.sample.cpu_use == 0.5:
                break
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert notices <= 1
