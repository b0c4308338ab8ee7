"""Health by HTTP, from a thread of its own: a blocked event loop cannot keep it from saying so.

For probes and nothing else: GET and HEAD, a few connections at a time, a short request within a short time, one answer, no log.
It needs no login, and what it tells is no secret: states, ages and counts, but neither addresses, names of tables nor payloads.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Generator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rota.clock import boottime
from rota.errors import ConfigurationError
from rota.runtime.health import Health, Report

__all__ = ["HealthServer", "Metrics", "health_server"]

#: gives the type of what is shown, and that
Metrics = Callable[[], tuple[str, bytes]]

_CONNECTIONS = 8  # a kubelet, a scraper, a person, and room for those that hang
_REQUEST_BYTES = 8192
_REQUEST_SECONDS = 2.0


class HealthServer(ThreadingHTTPServer):
    """Listens from the moment it is made, answers from `start` until `stop`. `host` empty: on every address of the machine."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, health: Health, port: int, *, host: str = "", metrics: Metrics | None = None) -> None:
        self.health = health
        self.metrics = metrics
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        # a probe comes by whatever family the network of its machine speaks
        host = host or ("::" if _speaks_both() else "0.0.0.0")  # noqa: S104 - see the guide on probes
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Answer)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"Health cannot be served on port {port} of {host}: {error}. Each process needs a port of its own: give another with "
                "--health-port or ROTA_HEALTH_PORT, or end the process that has it."
            ) from error
        self._thread = threading.Thread(target=self.serve_forever, name="rota-health-server", daemon=True)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # not HTTPServer's, which asks for the machine's full name: that may take as long as a name server does
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)  # whoever asks that much asks again
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""

    def report(self, path: str) -> Report | None:
        match path:
            case "/health/live" | "/livez":
                return self.health.live()
            case "/health/ready" | "/readyz":
                return self.health.ready_sync()
            case "/startupz":
                return self.health.startup_sync()
            case "/health":
                return self.health.detail_sync()
        return None


class _Answer(BaseHTTPRequestHandler):
    server: HealthServer
    server_version, sys_version = "rota", ""

    def setup(self) -> None:
        super().setup()
        # read as a whole before anything is made of it, so that neither its size nor its pace is up to the client
        self.rfile = io.BytesIO(_read_head(self.request))
        self.request.settimeout(_REQUEST_SECONDS)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        if path == "/metrics":
            self._show_metrics()
            return
        report = self.server.report(path)
        if report is None:
            self._say(404, "There is /health/live, /health/ready, /startupz, /health and /metrics here.")
        else:
            self._answer(report.status, "application/json", json.dumps(report.body).encode() + b"\n")

    def _refuse(self) -> None:
        self._answer(405, "text/plain; charset=utf-8", b"Use GET.\n", {"Allow": "GET, HEAD"})

    # the names that the library looks for
    do_HEAD = do_GET  # noqa: N815
    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _show_metrics(self) -> None:
        if self.server.metrics is None:
            self._say(404, "Metrics need the extra `prometheus`: pip install 'rota[prometheus]'.")
            return
        try:
            kind, body = self.server.metrics()
        except Exception as error:
            self._say(500, f"The metrics could not be gathered: {type(error).__name__}: {error}")
            return
        self._answer(200, kind, body)

    def _say(self, status: int, sentence: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", f"{sentence}\n".encode())

    def _answer(self, status: int, kind: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A probe each second would drown what is worth reading."""


def _speaks_both() -> bool:
    """Whether this machine has IPv6, and takes IPv4 through the same port."""
    if not socket.has_dualstack_ipv6():
        return False
    with contextlib.suppress(OSError), socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True):
        return True
    return False


def _read_head(client: socket.socket) -> bytes:
    """The request up to its empty line; nothing when it is too long or takes too long."""
    until, head = boottime() + _REQUEST_SECONDS, b""
    try:
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            client.settimeout(max(0.01, until - boottime()))
            more = client.recv(_REQUEST_BYTES)
            head += more
            if not more or len(head) > _REQUEST_BYTES or boottime() > until:
                return b""
    except OSError:
        return b""
    return head


@contextlib.contextmanager
def health_server(
    health: Health, port: int, *, host: str = "", metrics: Metrics | None = None
) -> Generator[HealthServer]:
    """Serve health for the length of a block."""
    server = HealthServer(health, port, host=host, metrics=metrics)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        health.close()
