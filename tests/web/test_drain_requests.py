"""Requests that a drain might forget: of old clients, with a body that still comes in, and to one worker of several that goes."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.commands import is_running
from tests.web.servers import SERVE, SITE, UVICORN, Server

from rota.testing import TestRota, until_sync

pytestmark = [pytest.mark.one_server, pytest.mark.long]

UPLOADS = """
async def upload(request):
    read = 0
    async for piece in request.stream():
        read += len(piece)
        say(f"read {read}")
    return JSONResponse({"read": read})

api.router.routes.append(Route("/upload", upload, methods=["POST"]))
"""


class Client:
    """A connection on which one says what one likes."""

    def __init__(self, server: Server, *words: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        self.say(*words)

    def say(self, *words: str) -> None:
        self._socket.sendall("\r\n".join(words).encode())

    def hear(self) -> str:
        """All that is answered, until the server closes the connection."""
        heard = b""
        with self._socket:
            while piece := self._socket.recv(65536):
                heard += piece
        return heard.decode().lower()

    def hear_some(self) -> str:
        return self._socket.recv(65536).decode().lower()


@pytest.mark.parametrize("command", [UVICORN, (*UVICORN, "--http", "h11"), SERVE], ids=["uvicorn", "h11", "rota serve"])
def test_old_clients_and_uploads_under_way_are_served_to_their_end(
    tmp_path: Path, rota_database: str, command: tuple[str, ...]
) -> None:
    with Server(tmp_path, rota_database, *command, window=1, site=SITE + UPLOADS) as server:
        server.wait_until_ready()
        whole = Client(server, "POST /upload HTTP/1.1", "Host: site", "Content-Length: 2000", "", "x" * 999)
        server.says("read 999")
        pieces = Client(server, "POST /upload HTTP/1.1", "Host: site", "Transfer-Encoding: chunked", "", "a", "x" * 10)
        server.says("read 10")
        began = time.monotonic()
        server.signal()
        server.until(lambda: server.status("/readyz") == 503, "it drains")

        old = Client(server, "GET / HTTP/1.0", "Connection: keep-alive", "", "").hear()
        assert " 200 " in old
        assert "connection: close" in old
        for path, status in (("/", " 200 "), ("/readyz", " 503 ")):
            head = Client(server, f"HEAD {path} HTTP/1.1", "Host: site", "", "").hear()
            assert status in head
            assert "connection: close" in head
            assert head.endswith("\r\n\r\n")
        asks = Client(
            server, "POST /upload HTTP/1.1", "Host: site", "Expect: 100-continue", "Content-Length: 2", "", ""
        )
        assert " 100 " in asks.hear_some()
        asks.say("xx")
        assert asks.hear().endswith('{"read":2}')

        server.until(lambda: "Shutting down" in server.output(), "the window is over")
        assert time.monotonic() - began >= 1
        whole.say("x" * 1001)
        pieces.say("", "5", "x" * 5, "0", "", "")

        assert whole.hear().endswith('{"read":2000}')
        assert pieces.hear().endswith('{"read":15}')
        server.wait(10)


class Load:
    """Clients that know of no readiness: each asks again and again, on a new connection."""

    def __init__(self, server: Server, clients: int) -> None:
        self._server = server
        self._over = threading.Event()
        self.answered = 0
        self.failed: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                assert self._server.get("/").status == 200
                self.answered += 1
            except (OSError, AssertionError) as error:
                self.failed.append(repr(error))


def test_a_worker_of_several_that_is_recycled_costs_no_request_and_no_job(
    tmp_path: Path, rota_app: TestRota, rota_database: str
) -> None:
    """What `--limit-max-requests` of a server does without a drain: here the worker is told to end, and another is started."""

    def pids() -> set[int]:
        said = re.findall(r"started process \d \(pid (\d+)\)", server.output())
        return {int(pid) for pid in said if is_running(int(pid))}

    nap = rota_app.task(name="nap")(lambda seconds: 0)
    jobs = []
    with Server(tmp_path, rota_database, *SERVE, "--workers", "2", window=0.5) as server:
        until_sync(lambda: len(rota_app.members_sync()) == 2, 30, "both work")
        with Load(server, 8) as load:
            for _ in range(3):
                old = min(pids())
                jobs += [nap.enqueue_sync(0.5) for _ in range(30)]
                os.kill(old, signal.SIGTERM)
                server.until(lambda old=old: not is_running(old) and len(pids()) == 2, "another is there")
                server.until(lambda: len(rota_app.members_sync()) == 2, "and works")
        until_sync(lambda: all(job.refresh_sync().state == "succeeded" for job in jobs), 30, "all are done")
    print(load.answered, "answered,", len(load.failed), "failed")
    assert load.failed == []
    assert load.answered > 500
    assert {job.refresh_sync().attempt for job in jobs} == {1}
    assert {m.end_reason for m in rota_app.members_sync(ended=True)} <= {"left", None}


def test_a_server_that_recycles_itself_gives_no_window_and_drains_its_jobs(
    tmp_path: Path, rota_app: TestRota, rota_database: str
) -> None:
    nap = rota_app.task(name="nap")(lambda seconds: 0)
    with Server(tmp_path, rota_database, *UVICORN, "--limit-max-requests", "50", window=60) as server:
        server.wait_until_ready()
        job = nap.enqueue_sync(1)
        server.says("nap")

        until_sync(lambda: server.status("/") is None, 20, "it has had enough")

        server.wait(10)
        assert (job.refresh_sync().state, job.refresh_sync().attempt) == ("succeeded", 1)
        assert [member.end_reason for member in rota_app.members_sync(ended=True)] == ["left"]
