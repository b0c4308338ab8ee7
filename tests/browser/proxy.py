"""A reverse proxy as there are many: it has a path for the dashboard, tells whom it speaks for, and may be no good at streams."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Streams = Literal["passed", "held", "refused"]
OF_ONE_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


@contextlib.contextmanager
def proxied(port: int, path: str = "/tools/rota", *, streams: Streams = "passed") -> Iterator[str]:
    """The address at which the server at this port is found under the path, until the block ends.

    Streams are passed on as they come, held until they end, or answered with an error.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self.path.startswith(f"{path}/"):
                self.send_error(404)
                return
            is_stream = "text/event-stream" in self.headers.get("Accept", "")
            if is_stream and streams == "refused":
                self.send_error(502)
                return
            length = int(self.headers.get("Content-Length", 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in OF_ONE_HOP}
            headers |= {"X-Forwarded-For": self.client_address[0], "X-Forwarded-Host": self.headers["Host"]}
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            with contextlib.closing(upstream), contextlib.suppress(ConnectionError):
                upstream.request(self.command, self.path.removeprefix(path), self.rfile.read(length), headers)
                self._pass_on(upstream.getresponse(), held=is_stream and streams == "held")

        do_POST = do_GET  # noqa: N815

        def _pass_on(self, answer: http.client.HTTPResponse, *, held: bool) -> None:
            body = answer.read() if held else None
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in OF_ONE_HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")  # which is the end of the body
            self.end_headers()
            self.close_connection = True
            if body is not None:
                self.wfile.write(body)
                return
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.server_address[1]}{path}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
