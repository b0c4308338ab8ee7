"""The project's own fixtures: a server that a test may break."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from rota import Rota


@pytest.mark.one_server
def test_an_own_server_is_restarted_at_the_same_address(own_server: Any) -> None:
    with Rota(own_server.dsn) as app, psycopg.connect(own_server.dsn) as connection:

        @app.task
        async def work() -> None: ...

        work.enqueue_sync()
        own_server.restart()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
        assert [job.task for job in app.jobs.list_sync()] == [work.name]
