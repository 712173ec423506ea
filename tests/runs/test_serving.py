"""A checkpoint behind HTTP over real SSH, asked by a real HTTP client; on loopback alone, and gone with its reader."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import torch
from safetensors.torch import save_file

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import RunError, UsageError
from hetero_tui.fleet import agent
from hetero_tui.inventory.file import load
from hetero_tui.runs.serving import place_of, serving
from hetero_tui.transport import Transport, open_transport
from remote_agent.host.process_table import find_marked
from remote_agent.jobs.text import Text
from tests.processes import ends
from tests.specs import write_run

REQUESTS = 100


@pytest.fixture
async def machine(short_folder: Path) -> AsyncIterator[tuple[Transport, str, Path]]:
    """A machine with two runs of ``text``, one of them without a checkpoint: transport, cluster, the runs' folder."""
    async with EmbeddedMachines(short_folder, speeds=(1.0,)) as machines:
        inventory = load(machines.write_inventory())
        transport = open_transport(inventory.hosts[0], inventory)
        await agent.ship(transport, machines.cluster, sys.executable)
        runs = machines.machines[0].home / agent.folder(machines.cluster) / "runs"
        for name in ("trained", "empty"):
            (runs / name / "checkpoints").mkdir(parents=True)
            write_run(runs / name, "text", host=inventory.hosts[0].name, cluster=machines.cluster)
        place = runs / "trained" / "checkpoints"
        weights = place / "step-00000007.safetensors"
        save_file(model().state_dict(), weights)
        about = {"step": 7, "position": 7, "weights": weights.name, "config": {"batch_size": 1, "seed": 0}}
        (place / "step-00000007.json").write_text(json.dumps(about))
        yield transport, machines.cluster, runs
        await transport.close()


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return Text().create_model().eval()


def ask(url: str, token: str, path: str, body: Any, raw: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    data = raw if raw is not None else json.dumps(body).encode()
    connection.request("POST", path, data, {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def greedy(prompt: str, count: int) -> list[int]:
    text, made = list(prompt.encode()), model()
    for _ in range(count):
        with torch.inference_mode():
            text.append(int(made(torch.tensor([text[-64:]]))[0, -1].argmax()))
    return text[len(prompt.encode()) :]


async def test_a_checkpoint_answers_a_client_with_its_token_and_nobody_else(
    machine: tuple[Transport, str, Path],
) -> None:
    transport, cluster, runs = machine
    run, host = await place_of(cluster, {transport.host: transport}, "trained", "")
    assert (run, host) == ("trained", transport.host)
    async with serving(transport, cluster, run, device="cpu") as service:
        assert (service.serving.step, service.serving.paths) == (7, ("/predict", "/generate"))
        assert service.url.startswith("http://127.0.0.1:")
        assert set(service.serving.examples) == {"/predict", "/generate"}
        for path, body in service.serving.examples.items():
            status, text = await asyncio.to_thread(ask, service.url, service.token, path, None, body.encode())
            assert status == 200, f"what a user is shown works as it stands: {body}: {text.decode()}"
        url, token = service.url, service.token
        (server,) = [
            process
            for process in find_marked(runs.parent)
            if "remote_agent.serve" in psutil.Process(process.pid).cmdline()
        ]
        listening = [
            each.laddr.ip for each in psutil.Process(server.pid).net_connections("inet") if each.status == "LISTEN"
        ]
        assert listening == ["127.0.0.1"]
        mine = {each.laddr.ip for each in psutil.Process().net_connections("inet") if each.status == "LISTEN"}
        assert all(address.startswith("127.") for address in mine), "on this side as well"
        everything = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
        assert not any(token in words for words in everything), "the token is on no command line"

        samples = torch.randint(0, 256, (REQUESTS, 8), generator=torch.Generator().manual_seed(1))
        with ThreadPoolExecutor(8) as pool, torch.inference_mode():
            loop = asyncio.get_running_loop()
            wanted = [{"inputs": [row]} for row in samples.tolist()]
            answers = await asyncio.gather(
                *(loop.run_in_executor(pool, ask, url, token, "/predict", body) for body in wanted)
            )
            expected = model()(samples)
        assert {status for status, _ in answers} == {200}
        outputs = torch.tensor([json.loads(text)["outputs"][0] for _, text in answers])
        torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)

        def told(path: str, body: Any, *, bearer: str = token, raw: bytes | None = None) -> tuple[int, str]:
            status, text = ask(url, bearer, path, body, raw)
            return status, text.decode()

        def rest() -> None:
            for wrong in ("", "x", token[:-1], token + "x"):
                assert told("/predict", {"inputs": [[1]]}, bearer=wrong)[0] == 401
            status, text = told("/generate", {"prompt": "import ", "max_tokens": 20})
            assert (status, json.loads(text)["text"]) == (200, bytes(greedy("import ", 20)).decode(errors="replace"))
            status, streamed = told("/generate", {"prompt": "import ", "max_tokens": 20, "stream": True})
            events = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
            assert events[-1] == "[DONE]"
            assert "".join(json.loads(event)["text"] for event in events[:-1]) == json.loads(text)["text"]
            drawn = {"prompt": "import ", "max_tokens": 20, "temperature": 1.0, "top_k": 50}
            first, again, other = (told("/generate", drawn | {"seed": seed}) for seed in (1, 1, 2))
            assert first == again != other
            for path, body, status, words in (
                ("/predict", {"inputs": [[1, 2], [3]]}, 400, "inputs: "),
                ("/predict", {"inputs": [[[[1]]]]}, 400, "do not fit the model"),
                ("/predict", {"input": 1}, 400, "inputs"),
                ("/predict", [1], 400, "a JSON object"),
                ("/generate", {"prompt": ""}, 400, "prompt"),
                ("/generate", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens: a whole number from 1"),
                ("/generate", {"prompt": "a", "temperature": "hot", "stream": True}, 400, "temperature: a number"),
                ("/other", {}, 404, "/predict"),
            ):
                assert told(path, body)[0] == status, (path, body)
                assert words in json.loads(told(path, body)[1])["error"]
            assert told("/predict", None, raw=b"{")[0] == 400

        await asyncio.to_thread(rest)
        with pytest.raises(UsageError, match="--port"):
            async with transport.forward(1, int(url.rpartition(":")[2])):
                pass
    assert await asyncio.to_thread(ends, server.pid), "it lives as long as its reader"
    assert sorted(path.name for path in (runs / "trained").iterdir()) == ["checkpoints", "run.json"]


async def test_what_can_not_be_served_is_one_line(machine: tuple[Transport, str, Path]) -> None:
    transport, cluster, _ = machine
    transports = {transport.host: transport}
    with pytest.raises(RunError, match=r"empty ended without a checkpoint \(lost\) -> train again"):
        await place_of(cluster, transports, "empty", "")
    with pytest.raises(UsageError, match=f"-> --host {transport.host}"):
        await place_of(cluster, transports, "trained", "other")
    with pytest.raises(RunError, match="it has no device 'cuda:77' -> --device cpu"):
        async with serving(transport, cluster, "trained", device="cuda:77"):
            pass


async def test_a_port_is_wanted_on_this_computer_alone(machine: tuple[Transport, str, Path]) -> None:
    """The host is this computer, too: it would be taken twice."""
    transport, cluster, _ = machine
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    async with serving(transport, cluster, "trained", port=port, device="cpu") as service:
        assert service.url == f"http://127.0.0.1:{port}"
        assert service.serving.port != port
