"""What is marked for redaction is nowhere: on no page, in no answer of the API, no word of a stream and no line of a log."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from tests.dashboard.test_hostile_text import addresses, written
from tests.dashboard.test_live import stream
from tests.dashboard.visitor import Visitor
from tests.projections.logs import working

import rota
from rota import Park, Retry, Stop
from rota.dashboard.api.openapi import document
from rota.dashboard.pages import PAGES
from rota.events.event import Event
from rota.testing import DatabaseServer, TestRota, until

pytestmark = pytest.mark.one_server

#: of the dashboard, by `redact=["card"]`; and of a task, which redacts it itself
CARD, PIN = "4929-tulip-1337-8080", "pin-of-a-daffodil-77"
LATER = {"card": CARD, "nested": {"card": CARD, "rows": [{"card": CARD}]}, "order": 7}


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    return event_server


@pytest.fixture
async def told(rota_app: TestRota, rota_database: str, history_aside: None, patient_logs: None) -> None:
    """Secrets in all that can hold one: arguments, results, errors, logs, keys, tags, notes, schedules, rows and events."""
    app, log = rota_app, logging.getLogger("shop")

    @app.task(queue="payments", redact=["pin"], retry=None)
    async def charge(card: str, nested: dict[str, Any], order: int, pin: str = PIN) -> dict[str, Any]:
        job = rota.current_job()
        await job.progress(0.5, f"charging {card}")
        log.error("charging %s", card)
        if order > 7:
            raise ValueError(f"{card!r} with {pin} was declined: {nested}")
        return {"card": card, "said": f"charged {card}"}

    orders = app.event_log("orders")

    @app.projection("totals", source=orders, on_error=Stop())
    async def totals(event: Event, connection: Any) -> None:
        raise KeyError(event.data["card"])

    @app.projection("counts", source=orders, on_error=Park())
    async def counts(event: Event, connection: Any) -> None:
        raise KeyError(event.data["card"])

    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("create table public.cards (id int primary key, card text, fetched_at timestamptz)")
        connection.execute("insert into public.cards values (1, %s)", [CARD])

    @app.poller(table="public.cards", key="id", last="fetched_at", interval="5m", name="cards", retry=Retry(attempts=1))
    async def ask(row: dict[str, Any]) -> None:
        raise ValueError(f"no answer about {row['card']}")

    await app.schedules.put("monthly", task=charge, args={**LATER, "order": 8}, cron="0 2 1 * *")
    await orders.append("order-1", "Paid", LATER)
    done = await charge.using(tags=[f"tag-{CARD}", "plain"], key=f"key-{CARD}").enqueue(**LATER)
    dead = await charge.enqueue(**{**LATER, "order": 8})
    run = await app.schedules.trigger("monthly")
    group = await rota.group([charge.bind(**LATER), charge.bind(**{**LATER, "order": 9})]).enqueue()

    async def is_done() -> bool:
        jobs = [await app.jobs.get(id) for id in (done.id, dead.id, run.id)]
        views = {view.name: view for view in await app.projections.list()}
        pollers = await app.pollers.list()
        return bool(
            all(job.finished_at for job in jobs)
            and {"totals", "counts"} <= set(views)
            and views["totals"].state == "stopped"
            and views["counts"].parked
            and pollers
            and pollers[0].parked == 1
            and group is not None
        )

    async with working(app):
        await until(is_done, 40, "all was tried")
    await charge.using(delay="1h", tags=[f"tag-{CARD}"]).enqueue(**LATER)
    unwanted = await charge.using(delay="1h").enqueue(**LATER)
    await app.jobs.cancel(unwanted.id, f"{CARD} is not to be charged")
    # nobody is there to take its turns, so it and its filter stay
    await app.bulk.start("acknowledge", state="dead", error=CARD)


async def everything(visitor: Visitor, dsn: str) -> dict[str, str]:
    """What can be read by who may read all, by address."""
    seen = {address: (await visitor.get(address)).text for address in addresses(dsn) if "onzq" not in address}
    for page in PAGES:
        for address in [each for each in seen if each.partition("?")[0] == page.path.lstrip("/")]:
            for region in page.regions:
                fragment = f"{address}{'&' if '?' in address else '?'}_fragment={region.name}"
                seen[fragment] = (await visitor.get(fragment)).text
    names = {"schedule": "monthly", "poller": "cards", "projection": "counts", "leader": "totals", "queue": "payments"}
    ids = [id for table in ("jobs", "history", "dead") for id in written(dsn, "id", table)]
    for path in [path for path, methods in document()["paths"].items() if "get" in methods]:
        what = path.split("/")[1]
        query = f"?name={quote(names[what])}&position=1" if what in names and "event" in path else ""
        query = query or (f"?name={quote(names[what])}" if what in names else "")
        for asked in [path.replace("{id}", str(id)) for id in ids] if "{id}" in path else [path]:
            answer = await visitor.get(f"api/v1{asked}{query}")
            seen[f"api/v1{asked}{query}"] = json.dumps(answer.json(), ensure_ascii=False)
    return seen


@pytest.mark.parametrize("redact", [["card"], ["card", "pin"], ["*"]], ids=["card", "both", "all"])
@pytest.mark.by_default("card")
async def test_no_secret_is_on_any_page_in_any_answer_or_any_line(
    redact: list[str], told: None, rota_app: TestRota, rota_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    dashboard = rota_app.dashboard(redact=redact)
    caplog.clear()

    with caplog.at_level(logging.DEBUG):
        seen = await everything(Visitor(dashboard), rota_database)
        async with stream(dashboard, "jobs") as messages, asyncio.timeout(20):
            words = [await messages.get(), await messages.get()]
    seen |= {"the stream": str(words), "the log": caplog.text}

    assert [address for address, text in seen.items() if CARD in text or CARD[:12] in text] == []
    assert [address for address, text in seen.items() if PIN in text] == []
    assert sum("•••" in text for text in seen.values()) > 10


async def test_without_redact_only_what_the_task_redacts_is_kept(
    told: None, rota_app: TestRota, rota_database: str
) -> None:
    seen = await everything(Visitor(rota_app.dashboard()), rota_database)

    assert [address for address, text in seen.items() if PIN in text] == []
    assert sum(CARD in text for text in seen.values()) > 10


@pytest.mark.parametrize("address", ["jobs", "api/v1/jobs/search", "api/v1/bulk/preview"])
async def test_what_is_redacted_cannot_be_guessed_by_what_it_is_part_of(address: str, rota_app: TestRota) -> None:
    @rota_app.task
    async def sign(user: dict[str, Any]) -> None: ...

    await sign.enqueue({"id": 7, "pin": PIN})
    visitor = Visitor(rota_app.dashboard(redact=["pin"]))

    async def ask(arg: str) -> tuple[int, str]:
        action = "&action=cancel" if "bulk" in address else ""
        answer = await visitor.get(f"{address}?arg={quote(arg)}{action}")
        return answer.status_code, answer.text

    for guess in (PIN, "another"):
        status, text = await ask(f"user={json.dumps({'id': 7, 'pin': guess})}")
        assert status == 422
        assert "search for one value of it" in text
    assert (await ask("user.id=7"))[0] == 200
