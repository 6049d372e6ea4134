"""An HTTP server that answers as a test tells it to: for what no real server can be made to say."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Request:
    """What a client asked.

    Attributes:
        method: Of HTTP.
        path: With its query.
        headers: By lower-case names.
        body: All of it.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What it is told.

    Attributes:
        status: Of HTTP.
        body: What follows.
        headers: Beside Content-Length, which is that of the body unless it is among them.
        reset: The connection is reset after so many bytes of the body.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    reset: int | None = None


LOST = Reply(reset=-1)
"""No byte of an answer, only a reset."""

Script = Callable[[Request], Reply]


@dataclass
class Scripted:
    """A running server.

    Attributes:
        url: Of its root.
        script: How it answers; may be changed.
        requests: What it has been asked.
    """

    url: str
    script: Script
    requests: list[Request] = field(default_factory=list)


@contextmanager
def scripted(script: Script = lambda _: Reply()) -> Iterator[Scripted]:
    """A server on loopback until the end of the block."""
    found = Scripted("", script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            found.requests.append(request)
            self.send(found.script(request))

        def send(self, reply: Reply) -> None:
            if reply.reset is None or reply.reset >= 0:
                self.send_response_only(reply.status)
                for name, value in ({"Content-Length": str(len(reply.body))} | reply.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.body[: reply.reset])
                self.wfile.flush()
            if reply.reset is not None:
                at_once = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                self.connection.close()
                self.close_connection = True

    for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
