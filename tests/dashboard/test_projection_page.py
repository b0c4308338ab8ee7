"""One projection on a page of its own: what it shows, what it foretells, and what it keeps to itself."""

from __future__ import annotations

import html
import json
from typing import Any

import psycopg
import pytest
from tests.dashboard.visitor import PREFIX, Visitor
from tests.projections.logs import working

from rota import Park, Rota
from rota.events.event import Event
from rota.testing import TestRota, until

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("history_aside")]

API = f"{PREFIX}/api/v1"


async def some_events(app: TestRota, number: int) -> Any:
    """Taken in by a projection that cannot take in those of cards; its worker is gone."""
    orders = app.event_log("orders")

    @app.projection("counts", source=orders, on_error=Park())
    async def counts(event: Event, connection: Any) -> None:
        if "card" in event.data:
            raise ValueError(f"the card {event.data['card']} is not valid")

    for each in range(number):
        await orders.append(f"order-{each}", "Paid", {"sum": each})
    await orders.append("order-card", "Paid", {"card": "4111-1111", "sum": 7})
    async with working(app):
        await until(lambda: _is_parked(app), 30, "all is taken in but one")
    return orders


async def _is_parked(app: TestRota) -> bool:
    views = await app.projections.list()
    return bool(views and views[0].parked)


async def test_a_rewind_tells_what_it_would_have_read_again_before_it_is_done(rota_app: TestRota) -> None:
    await some_events(rota_app, 3)
    visitor, page = Visitor(rota_app.dashboard()), "projection?name=counts"
    before = await rota_app.projections.show("counts")

    asked = await visitor.act(page, "projections.rewind", name="counts", version="1", position="2")
    told = (await visitor.client.post(f"{API}/previews/projections.rewind", json={"name": "counts"})).json()
    untouched = await rota_app.projections.show("counts")
    wrong = await visitor.act(page, "projections.rewind", name="counts", version="1", position="2nd")
    done = await visitor.act(page, "projections.rewind", name="counts", version="1", position="2", _typed="counts")

    assert asked.status_code == 200
    assert "From the event at position 2 on, 3 event(s) are read again" in asked.text
    assert 'name="position" value="2"' in asked.text
    assert told["said"].startswith("From the first event on, 4 event(s) are read again")
    assert untouched.position == before.position
    assert (wrong.status_code, 'value="2nd"' in wrong.text) == (422, True)
    assert done.status_code == 303
    assert (await rota_app.projections.show("counts")).position == 1


async def test_what_waits_is_counted_and_pictured_with_its_table(rota_app: TestRota) -> None:
    orders = await some_events(rota_app, 3)
    await orders.append("order-9", "Paid", {"sum": 9})
    await orders.append("order-9", "Paid", {"sum": 10})
    visitor = Visitor(rota_app.dashboard())

    page = html.unescape((await visitor.get("projection?name=counts")).text)
    told = (await visitor.get("api/v1/projection/status?name=counts")).json()

    assert "2 event(s) behind" in page
    assert "build 1: 60 %, 2 event(s) to come" in page
    assert "Table: How much of the log is taken in" in page
    assert (told["lag"]["events"], told["view"]["position"]) == (2, "4")


async def test_what_is_redacted_is_neither_in_the_event_nor_in_its_error(rota_app: TestRota) -> None:
    await some_events(rota_app, 1)
    plain, redacted = Visitor(rota_app.dashboard()), Visitor(rota_app.dashboard(redact=["card"]))
    paths = (
        "projection?name=counts",
        "projections",
        "api/v1/projection?name=counts",
        "api/v1/projections",
        "api/v1/projection/status?name=counts",
        "api/v1/projection/parked?name=counts",
        "api/v1/projection/parked/event?name=counts&position=2",
    )

    shown = {path: (await plain.get(path)).text for path in paths}
    hidden = {path: (await redacted.get(path)).text for path in paths}

    assert "4111-1111" in shown["projection?name=counts"]
    assert json.loads(shown["api/v1/projection/parked/event?name=counts&position=2"])["data"]["card"] == "4111-1111"
    assert [path for path, text in hidden.items() if "4111" in text] == []
    assert json.loads(hidden["api/v1/projection/parked/event?name=counts&position=2"])["data"] == {
        "card": "•••",
        "sum": 7,
    }


async def test_without_its_app_a_projection_is_shown_and_what_needs_the_app_says_so(
    rota_app: TestRota, rota_database: str
) -> None:
    await some_events(rota_app, 1)
    async with Rota(rota_database) as stranger:
        visitor = Visitor(stranger.dashboard())
        page = (await visitor.get("projection?name=counts")).text
        answers = [
            await visitor.get("api/v1/projection/status?name=counts"),
            await visitor.get("api/v1/projection/parked/event?name=counts&position=2"),
            await visitor.client.post(f"{API}/actions/projections.rebuild", json={"name": "counts"}),
            await visitor.client.post(f"{API}/actions/projections.rewind", json={"name": "counts", "position": "1"}),
        ]
        told = (await visitor.client.post(f"{API}/previews/projections.rewind", json={"name": "counts"})).json()

    assert "does not have this version" in page
    assert "is not valid" in page
    assert [answer.status_code for answer in answers] == [409] * 4
    assert all("app" in answer.json()["detail"] for answer in answers)
    assert "can only be told by an app" in told["said"]


async def test_who_holds_up_what_waits_is_named_but_not_what_they_do(rota_app: TestRota, rota_database: str) -> None:
    orders = await some_events(rota_app, 1)
    visitor = Visitor(rota_app.dashboard())
    with psycopg.connect(rota_database) as holder:
        pid = holder.info.backend_pid
        holder.execute("create temporary table held (secret text)")
        holder.execute("insert into held values ('hush-hush')")
        await orders.append("order-9", "Paid", {"sum": 9})

        async def is_named() -> bool:
            told = (await visitor.get("api/v1/projection/status?name=counts")).json()
            return bool(told["held_by"]) and told["held_by"]["pid"] == pid

        # those of other tests may be older, and end
        await until(is_named, 60, "it is held up by this transaction")
        told = await visitor.get("api/v1/projection/status?name=counts")
        page = (await visitor.get("projection?name=counts")).text

    assert f"pid {pid}</a>, open for" in page
    assert told.json()["held_by"]["query"] is None
    assert "hush-hush" not in page + told.text
