"""A run's checkpoint behind HTTP, on this machine's loopback, as long as the reader is there.

::

    python -m remote_agent.serve --folder FOLDER --run RUN [--port PORT] [--device DEVICE] [--weights newest]

The first line on stdin is the bearer token; the end of stdin ends the server, and so does SIGTERM. One JSON line is
printed once it answers (:class:`~remote_agent.protocol.Serving`); empty lines are heartbeats. A model that can't be
served: exit status 1 and ``cause -> hint`` on stderr. It carries the cluster's mark, so that ``down`` finds it.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_agent import deadlines, protocol
from remote_agent.errors import TrainingError, first_line
from remote_agent.host.processes import absolute_path

if TYPE_CHECKING:
    from remote_agent.serving import Served

ADDRESS = "127.0.0.1"
MAX_BODY = 64 << 20
"""Bytes of a request's body."""


class Refused(Exception):
    """A request that gets ``status`` and a sentence as its answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Server(ThreadingHTTPServer):
    """Answers for one model; a request without ``token`` learns nothing."""

    daemon_threads = True
    address_family = socket.AF_INET

    def __init__(self, port: int, token: str, served: Served) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.token, self.served = token.encode(), served

    def end(self, cause: str) -> None:
        """End the process: its device can't be used any more, by any request."""
        print(f"the device failed: {cause} -> serve it again", file=sys.stderr, flush=True)
        os._exit(1)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left in the middle of its answer is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hetero-tui", ""
    timeout = deadlines.REQUEST_SECONDS

    def do_GET(self) -> None:
        self._answer(self._about)

    def do_POST(self) -> None:
        self._answer(self._asked)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the standard library
        """Nothing is logged: requests are the user's own."""

    def _answer(self, work: Any) -> None:
        self._begun = False
        try:
            if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), b"Bearer " + self.server.token):
                self.close_connection = True  # its body is not read
                raise Refused(401, "give the token: Authorization: Bearer TOKEN")
            work()
        except Refused as refused:
            self._send(refused.status, {"error": str(refused)})
            self._end_if_lost(refused)
        except OSError:
            raise  # the client left
        except Exception as error:  # noqa: BLE001 - of the job's code: the caller gets an answer whatever it is
            if not self._begun:
                self._send(500, {"error": _said(error)})
            self._end_if_lost(error)

    def _end_if_lost(self, error: BaseException) -> None:
        from remote_agent.serving import is_device_lost

        if is_device_lost(error):
            self.server.end(_said(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the standard library refuses: an unknown method, or one that is not HTTP."""
        self.close_connection = True  # its body is not read
        self._send(code, {"error": message or HTTPStatus(code).phrase})

    def send_response(self, code: int, message: str | None = None) -> None:
        self._begun = True
        super().send_response(code, message)

    def _about(self) -> None:
        if self.path != "/":
            raise Refused(404, "GET / says what is served; POST /predict and /generate ask it")
        self._send(200, self.server.served.about())

    def _asked(self) -> None:
        body = self._body()
        if self.path == "/predict":
            if "inputs" not in body:
                raise Refused(400, 'the body is {"inputs": [...]}, a list with an entry for each sample')
            self._send(200, {"outputs": _checked(lambda: self.server.served.predict(body["inputs"]))})
        elif self.path == "/generate":
            pieces = _checked(lambda: self.server.served.generate(body))
            if body.get("stream"):
                self._stream(pieces)
            else:
                self._send(200, {"text": _checked(lambda: "".join(pieces))})
        else:
            self.close_connection = True
            raise Refused(404, "POST /predict and /generate ask the model")

    def _body(self) -> dict[str, Any]:
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            raise Refused(411, "the request needs a Content-Length") from None
        if not 0 <= size <= MAX_BODY:
            self.close_connection = True
            raise Refused(413, f"the body may have {MAX_BODY >> 20} MiB")
        try:
            found = json.loads(self.rfile.read(size))
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise Refused(400, "the body is a JSON object")
        return found

    def _stream(self, pieces: Iterator[str]) -> None:
        """Server-sent events, each with a piece of the text; the last one is ``[DONE]``."""
        first = _checked(lambda: next(pieces, ""))  # what is wrong with the request shows by then
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._event(json.dumps({"text": first}))
        try:
            for piece in pieces:
                self._event(json.dumps({"text": piece}))
            self._event("[DONE]")
        except OSError:
            raise  # the client left
        except Exception as error:  # noqa: BLE001 - as above
            self._event(json.dumps({"error": _said(error)}))
            self._end_if_lost(error)
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, status: int, document: object) -> None:
        try:
            data = json.dumps(document, allow_nan=False).encode()
        except ValueError:
            status, data = 500, b'{"error": "the model gave a number that is not finite"}'
        except TypeError as error:
            status, data = 500, json.dumps({"error": f"the model gave what is no JSON: {error}"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _said(error: BaseException) -> str:
    return error.cause if isinstance(error, TrainingError) else f"{type(error).__name__}: {first_line(error)}"


def _checked(work: Any) -> Any:
    """What ``work`` gives; a request that does not fit the model is the caller's mistake."""
    try:
        return work()
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(400, str(error)) from error


def serve(place: Path, port: int, device: str, choice: protocol.Choice) -> int:
    """Serve the run in ``place`` until stdin ends; returns the exit code."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the job's code prints
    signal.alarm(int(deadlines.READER_SILENCE_SECONDS))  # ends this where the laptop has vanished before it said it
    token = sys.stdin.readline().strip()
    signal.alarm(0)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    threading.Thread(target=_end_with_reader, daemon=True).start()
    threading.Thread(target=_beat, args=(answers, ended), daemon=True).start()
    from remote_agent.serving import Served

    try:
        served = Served(place, device, choice)
        server = Server(port, token, served)
    except TrainingError as error:
        print(f"{error.cause} -> {error.hint}" if error.hint else error.cause, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"port {port} can't be had: {error.strerror} -> choose another with --port", file=sys.stderr)
        return 1
    about = protocol.Serving(
        port=server.server_port,
        step=served.step,
        device=served.device,
        paths=served.paths,
        examples=served.examples,
    )
    print(protocol.encode(about), file=answers, flush=True)
    server.serve_forever()
    return 0


def _end_with_reader() -> None:
    while sys.stdin.readline():
        pass
    os._exit(0)


def _beat(answers: Any, ended: threading.Event) -> None:
    while not ended.wait(deadlines.HEARTBEAT_SECONDS):
        try:
            print(file=answers, flush=True)
        except OSError:
            os._exit(0)


def main() -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="remote_agent.serve")
    parser.add_argument("--folder", required=True, type=absolute_path)
    parser.add_argument("--run", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--device", default="")
    parser.add_argument("--weights", type=protocol.Choice, choices=protocol.Choice, default=protocol.Choice.NEWEST)
    options = parser.parse_args()
    mark = {protocol.CLUSTER_MARK: str(options.folder)}
    if not mark.items() <= os.environ.items():  # a process's own environment is what it began with
        words = [sys.executable, "-P", "-m", "remote_agent.serve", *sys.argv[1:]]
        os.execve(sys.executable, words, os.environ | mark)  # noqa: S606 - meant
    return serve(options.folder / "runs" / Path(options.run).name, options.port, options.device, options.weights)


if __name__ == "__main__":
    sys.exit(main())
