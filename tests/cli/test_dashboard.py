"""`rota dashboard`: open on this machine, closed elsewhere unless it has credentials."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ended
from tests.web.servers import Server

pytestmark = [pytest.mark.one_server, pytest.mark.writes_nothing]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "box.example"])
def test_it_refuses_to_be_reached_from_elsewhere_without_a_credential(
    host: str, rota: Callable[..., Ended], rota_database: str
) -> None:
    ended = rota("dashboard", "--host", host, "--dsn", rota_database)

    assert ended.code == 2
    assert "--auth user:password" in ended.err


def test_a_credential_that_is_too_short_is_refused(rota: Callable[..., Ended], rota_database: str) -> None:
    ended = rota("dashboard", "--host", "0.0.0.0", "--auth", "ana:x", "--dsn", rota_database)

    assert ended.code == 2
    assert "8 characters" in ended.err


def test_a_credential_of_the_environment_opens_it_to_others(rota_database: str, tmp_path: Path) -> None:
    command = ("rota", "dashboard", "--host", "0.0.0.0", "--port", "PORT", "--read-only")
    known = base64.b64encode(b"ana:a-long-password").decode()
    with Server(tmp_path, rota_database, *command, env={"ROTA_DASHBOARD_AUTH": "ana:a-long-password"}) as server:
        server.wait_until_ready()
        stranger = server.get("/jobs", headers={"Host": "box.example"})
        ana = server.get("/jobs", headers={"Host": "box.example", "Authorization": f"Basic {known}"})
        said = server.output()

    assert (stranger.status, ana.status) == (401, 200)
    assert b"read only" in ana.body
    assert "dashboard on http://0.0.0.0:" in said
    assert "open to who knows a credential of it: they may look. " in said
    assert "Ctrl-C ends it" in said
    assert "a-long-password" not in said
