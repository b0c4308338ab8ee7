"""The app of `dashboard.py`, for the processes that it starts: forty tasks in eight queues, a poller, two projections.

With BENCH_EVERY_LOOK set, a dashboard that serves it gives nothing again that it read before: every request is a real look.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from rota import Limit, Park, Retry, Rota, Stop
from rota.events.event import Event

__all__ = ["QUEUES", "TASKS", "app", "make_app"]

QUEUES = ("mail", "billing", "reports", "images", "search", "sync", "hooks", "default")
TASKS = tuple(f"{queue}.{verb}" for queue in QUEUES for verb in ("send", "make", "check", "fetch", "close"))


def make_app(dsn: str | None = None) -> Rota:
    app = Rota(dsn)

    async def body(order: int, user: dict[str, Any], note: str = "") -> int:
        await asyncio.sleep(0.005)
        if order % 10 == 0:
            logging.getLogger("bench").info("order %s is done", order)
        if order % 200 == 0:
            raise TimeoutError(f"no answer for order {order}")
        return order

    for name in TASKS:
        app.task(name=name, queue=name.partition(".")[0], retry=Retry(attempts=2, base=0.1))(body)

    @app.task(name="ledger.book", queue="billing", limit=Limit(running=1, by="account"))
    async def book(account: int) -> None:
        await asyncio.sleep(0.01)

    @app.task(name="reports.total", queue="reports")
    async def total(parts: list[int]) -> int:
        return sum(parts)

    orders = app.event_log("orders")

    @app.projection("totals", source=orders, on_error=Stop())
    async def totals(event: Event, connection: Any) -> None: ...

    @app.projection("counts", source=orders, on_error=Park())
    async def counts(event: Event, connection: Any) -> None: ...

    @app.poller(table="public.feeds", key="id", last="fetched_at", interval="1h", name="feeds")
    async def feeds(feed: dict[str, Any]) -> None: ...

    return app


def look_every_time() -> None:
    from rota.dashboard.looking import Known, Readings

    plain = Readings.read

    async def read(
        self: Readings,
        key: Hashable,
        function: Callable[[], Awaitable[Any]],
        fresh: float | None = None,
        *,
        paced: bool = False,
    ) -> Known[Any]:
        return await plain(self, key, function, 0.0)

    Readings.read = read  # type: ignore[method-assign]


if os.environ.get("BENCH_EVERY_LOOK"):
    look_every_time()
app = make_app()
