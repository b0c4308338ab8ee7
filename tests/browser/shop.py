"""A small shop, as its processes import it: what the pages are looked at with, and what their buttons are pressed for.

Its bodies fail, wait and go on as their arguments say, so that a test needs nothing but a job to have any state it wants.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import rota
from rota import Park, Retry, Rota, Stop

app = Rota(job_logs="info")
log = logging.getLogger("shop")
log.setLevel(logging.INFO)


class CardDeclined(Exception):
    """The bank does not want to."""


@app.task(queue="mail")
async def send_receipt(order: int, to: str) -> str:
    log.info("receipt of order %s to %s", order, to)
    return f"sent to {to}"


@app.task(queue="payments", retry=None)
async def charge(order: int, amount: int) -> str:
    if amount > 1000:
        raise CardDeclined(f"order {order}: the bank declined {amount} <b>EUR</b>")
    return f"charged {amount}"


@app.task(queue="warehouse")
async def pack(order: int) -> None:
    """Goes on until it is told to end."""
    job = rota.current_job()
    await job.progress(0.4, f"looking for the parcel of order {order}")
    await asyncio.Event().wait()


@app.task(queue="warehouse")
def weigh(seconds: float) -> None:
    """Does not listen: a thread cannot be stopped."""
    time.sleep(seconds)


@app.task(queue="media")
async def import_catalog(file: str, rows: int) -> None:
    """Is in the middle of it, for as long as one looks."""
    job = rota.current_job()
    log.info("reading %s: %s rows", file, rows)
    for place, what in enumerate(("books", "lamps", "chairs"), 1):
        await job.progress(place * 0.2, f"{what} are in")
        log.info("%s are in: %s rows", what, rows * place // 5)
    log.warning("row %s has no price: left out", rows // 2)
    await asyncio.Event().wait()


@app.every("1h")
@app.task
async def tidy_carts() -> None: ...


@app.cron("0 2 * * *", tz="Europe/Berlin")
@app.task(queue="reports")
async def nightly_report(day: str = "yesterday") -> str:
    return f"report of {day}"


@app.cron("30 7 * * mon-fri", tz="America/New_York")
@app.task(queue="reports")
async def stock_report() -> None: ...


@app.singleton("stock-indexer")
async def stock_indexer(term: rota.Term) -> None:
    await term.progress("indexing")
    await asyncio.Event().wait()


@app.poller(
    table="public.suppliers", key="id", last="asked_at", interval="1h", name="suppliers", retry=Retry(attempts=1)
)
async def ask_supplier(supplier: dict[str, Any]) -> None:
    if supplier["answers"] is False:
        raise ConnectionError(f"supplier {supplier['id']} does not answer")


@app.singleton("price-feed")
async def price_feed(term: rota.Term) -> None:
    await asyncio.Event().wait()


orders = app.event_log("orders")


@app.projection("revenue", source=orders, on_error=Stop())
async def revenue(event: Any, connection: Any) -> None:
    await connection.execute("insert into public.revenue values (%s)", [event.data["sum"]])


@app.projection("newsletter", source=orders, on_error=Park())
async def newsletter(event: Any, connection: Any) -> None:
    found = await connection.execute("select from public.readers where stream = %s", [event.stream])
    if not await found.fetchall():
        raise LookupError(f"nobody reads of {event.stream}")


async def make_shelf(connection: Any, build: int) -> None:
    await connection.execute(f"create table public.stock_{build} (position bigint)")


async def show_shelf(connection: Any, build: int) -> None:
    await connection.execute(f"create or replace view public.stock as select position from public.stock_{build}")


@app.projection("stock", source=orders, on_error=Stop(), prepare=make_shelf, switch=show_shelf)
async def stock(event: Any, connection: Any, build: int) -> None:
    """A rebuild of it stops while the shop is closed."""
    found = await connection.execute("select why from public.closed")
    if build > 1 and await found.fetchall():
        raise RuntimeError("the shop is closed")
    await connection.execute(f"insert into public.stock_{build} values (%s)", [event.position])
