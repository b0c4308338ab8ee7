"""The projection of `events.py`, for the worker processes that it starts: it writes down when it took in each event."""

from __future__ import annotations

from typing import Any

from rota import Rota
from rota.events.event import Event

__all__ = ["app", "make_app"]


def make_app(dsn: str | None = None, schema: str | None = None) -> Rota:
    app = Rota(dsn, schema=schema)
    log = app.event_log("orders")

    @app.projection("taken", source=log)
    async def taken(event: Event, connection: Any) -> None:
        await connection.execute("insert into bench_taken values (%s, clock_timestamp())", [event.position])

    return app


app = make_app()
