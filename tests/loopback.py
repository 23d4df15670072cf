"""A server in this process that answers as a test says: no network, but real HTTP."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request: its path, its body as JSON, its headers."""

    path: str
    body: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Reply:
    """An answer: JSON, or bytes as they are."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class Crowd:
    """Answers as soon as so many requests are there at once, or after seconds.

    Attributes:
        most: how many were there at once at most.
    """

    def __init__(self, size: int) -> None:
        self.most = 0
        self._here = 0
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(size)

    def __call__(self, _: Any = None) -> Reply:
        """Answer a request."""
        with self._lock:
            self._here += 1
            self.most = max(self.most, self._here)
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(20)
        time.sleep(0.05)  # for others to come that should not
        with self._lock:
            self._here -= 1
        return Reply("done")


@contextmanager
def serving(answer: Callable[[Asked], Reply]) -> Iterator[str]:
    """The address of a server on this machine that answers every request by `answer`.

    A reply of None in place of a Reply closes the connection without a word.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are two packets

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(content) if content else None
            reply = answer(Asked(self.path, body, dict(self.headers)))
            if reply is None:
                self.close_connection = True
                return
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.content)))
                self.end_headers()
                self.wfile.write(reply.content)
            except OSError:  # the client has gone
                self.close_connection = True

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            return

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
