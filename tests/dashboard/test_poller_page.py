"""One poller on a page of its own: who polls what, taking that away, and how PostgreSQL finds what is due."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from tests.dashboard.visitor import PREFIX, Visitor
from tests.projections.logs import working

from rota import Retry, Rota
from rota.testing import TestRota, until

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("history_aside")]

API = f"{PREFIX}/api/v1"


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def app(rota_app: TestRota, rota_database: str, gate: asyncio.Event) -> TestRota:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("create table public.feeds (id int primary key, secret text, fetched_at timestamptz)")
        connection.execute("insert into public.feeds values (1, 'hush-hush'), (2, 'quiet')")

    @rota_app.poller(table="public.feeds", last="fetched_at", interval="5m", name="fetch", retry=Retry(attempts=1))
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] == 1:
            raise ValueError(f"no feed {feed['secret']}")
        await gate.wait()

    return rota_app


async def test_a_row_that_is_polled_now_is_told_with_who_has_it_and_is_taken_away(
    app: TestRota, gate: asyncio.Event
) -> None:
    visitor, page = Visitor(app.dashboard()), "poller?name=fetch"
    async with working(app):
        await until(lambda: _stands(app, held=1, parked=1), 30, "one is held, one parked")
        shown = (await visitor.get(page)).text
        told = (await visitor.client.get(f"{API}/poller/held?name=fetch")).json()["items"]
        done = await visitor.act(page, "pollers.release", name="fetch", keys="[2]", held="on")
        said = await visitor.said(page)
        gate.set()

    assert "Take it away" in shown
    assert [(row["key"], row["attempts"]) for row in told] == [([2], 0)]
    assert told[0]["holder"] in shown
    assert (done.status_code, said) == (303, "1 row(s) of poller fetch are released.")


async def test_how_due_rows_are_found_is_told_when_asked_for(app: TestRota) -> None:
    async with working(app):
        await until(lambda: _stands(app, held=1, parked=1), 30, "it is declared and at work")
    visitor = Visitor(app.dashboard())

    plain = (await visitor.get("poller?name=fetch")).text
    checked = (await visitor.get("poller?name=fetch&check=1")).text
    told = (await visitor.client.get(f"{API}/poller/check?name=fetch")).json()

    assert "The plan" not in plain
    assert "No index leads to the due rows." in checked
    assert "create index concurrently" in checked
    assert "Due next" in checked
    assert told["missing"]["statement"] in checked.replace("&#34;", '"')
    assert told["plan"]


async def test_without_its_app_a_poller_is_shown_and_what_needs_the_app_says_so(
    app: TestRota, rota_database: str
) -> None:
    async with working(app):
        await until(lambda: _stands(app, held=1, parked=1), 30, "it is declared and at work")
    async with Rota(rota_database) as stranger:
        visitor = Visitor(stranger.dashboard(redact=["secret"]))
        shown = await visitor.get("poller?name=fetch")
        checked = await visitor.client.get(f"{API}/poller/check?name=fetch")
        parked = await visitor.client.get(f"{API}/poller/parked?name=fetch")

    assert shown.status_code == 200
    assert (checked.status_code, "has no poller 'fetch'" in checked.json()["detail"]) == (409, True)
    assert "hush-hush" not in shown.text + parked.text
    assert parked.json()["items"][0]["error_message"] == "•••"


async def _stands(app: TestRota, *, held: int, parked: int) -> bool:
    found = await app.pollers.list()
    return bool(found) and (found[0].held, found[0].parked) == (held, parked)
