"""A body that refuses to be cancelled, in the process of a web server: its job is handed back, and the process ends without it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.web.servers import SERVE, SITE, UVICORN, Server

from rota.testing import TestRota, until_sync

pytestmark = [pytest.mark.one_server]

STUBBORN = """
@app.task(name="stubborn")
async def stubborn():
    say("stubborn")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        pytest.param(UVICORN, signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.long),
        (UVICORN, signal.SIGINT, 0),  # then it leaves by way of its event loop, which waits for every task
        pytest.param(SERVE, signal.SIGTERM, 1, marks=pytest.mark.long),
    ],
    ids=["uvicorn", "uvicorn at Ctrl-C", "rota serve"],
)
def test_a_body_that_refuses_to_end_keeps_no_web_process(
    tmp_path: Path, rota_app: TestRota, rota_database: str, command: tuple[str, ...], number: int, code: int
) -> None:
    job = rota_app.task(name="stubborn")(lambda: None).enqueue_sync()
    env = {"ROTA_GRACE": "1"}
    with Server(tmp_path, rota_database, *command, window=0.2, site=SITE + STUBBORN, env=env) as server:
        server.says("stubborn")

        server.signal(number)

        assert server.wait(15) == code
        assert "refuse to be cancelled" in server.output()
        assert "has not ended by itself" not in server.output()  # it did not take the hard limit
    assert (job.refresh_sync().state, job.refresh_sync().attempt) == ("queued", 0)
    assert {member.end_reason for member in rota_app.members_sync(ended=True)} == {"left"}


@pytest.mark.long
def test_nor_does_one_that_was_given_up_before(tmp_path: Path, rota_app: TestRota, rota_database: str) -> None:
    job = rota_app.task(name="stubborn", retry=None)(lambda: None).enqueue_sync()
    site = SITE + STUBBORN.replace('name="stubborn"', 'name="stubborn", timeout=0.1, retry=None')
    with Server(tmp_path, rota_database, *UVICORN, window=0.2, site=site) as server:
        until_sync(lambda: job.refresh_sync().state == "dead", 20, "its time is up")

        server.signal(signal.SIGINT)

        assert server.wait(8) == 0
        assert "refuse to be cancelled" in server.output()
