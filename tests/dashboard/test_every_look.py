"""Of every page: what a look and an open tab cost, who may look at all of it, and what is shown when the database does not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from tests.dashboard.visitor import Visitor
from tests.dashboard.world import World, make_world

from rota import Rota
from rota.dashboard import looking
from rota.dashboard.api.endpoints import ENDPOINTS
from rota.dashboard.looking import Readings
from rota.dashboard.pages import PAGES
from rota.testing import TcpProxy, TestRota

pytestmark = pytest.mark.one_server

# What a look at a page asks of the database at most; an open tab rests for it, so that it is fewer than five a second.
MOST = {
    "now": 20,
    "jobs": 4,
    "job": 4,
    "queues": 8,
    "dead": 6,
    "bulk": 2,
    "bulk new": 4,
    "bulk one": 2,
    "schedules": 4,
    "schedule": 3,
    "schedule-edit": 1,
    "members": 5,
    "pollers": 3,
    "poller": 3,
    "projections": 21,  # two more where something holds events back
    "projection": 13,  # two more where something holds events back
    "database": 9,
    "audit": 1,
    "about": 1,
}


@pytest.fixture
async def world(rota_app: TestRota, rota_database: str, history_aside: None) -> World:
    world = await make_world(rota_app, rota_database)
    await rota_app.bulk.start("cancel", task="send", by="ana")
    return world


def addresses(world: World) -> dict[str, str]:
    """One of each page."""
    given = {
        "job": f"jobs/{world.dead.id}",
        "bulk new": "bulk/new?do=cancel&state=queued",
        "bulk one": "bulk/1",
        "schedule": "schedule?name=reports%2Fnightly",
        "schedule-edit": "schedule/edit?name=reports%2Fnightly",
        "poller": "poller?name=fetch",
        "projection": "projection?name=counts",
    }
    return {page.name: given.get(page.name, page.path.lstrip("/")) for page in PAGES}


def reads(world: World) -> list[str]:
    """Every read of the API."""
    names = {
        "queue": "mail",
        "schedule": "reports/nightly",
        "leader": "indexer",
        "poller": "fetch",
        "projection": "counts",
    }
    found = []
    for endpoint in ENDPOINTS:
        kind = endpoint.path.split("/")[1]
        needed = {"name": names.get(kind, ""), "position": "1", "action": "cancel&state=queued"}
        given = [f"{name}={needed[name]}" for name, param in endpoint.params.items() if param.required]
        path = endpoint.path.replace("{id}", "1" if kind == "bulk" else str(world.dead.id))
        found.append(f"api/v1{path}?{'&'.join(given)}")
    return found


class Counted:
    """Counts what pages ask for, as they are told it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements = 0
        plain = Readings.read

        async def read(readings: Readings, *args: Any, **named: Any) -> Any:
            known = await plain(readings, *args, **named)
            self.statements += known.statements
            return known

        monkeypatch.setattr(Readings, "read", read)

    async def of(self, look: Any) -> int:
        before = self.statements
        await look
        return self.statements - before


async def test_no_page_asks_for_more_statements_than_it_did_and_an_open_tab_for_fewer_than_five_a_second(
    world: World, rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, asked, again = Counted(monkeypatch), {}, {}
    for name, path in addresses(world).items():
        visitor = Visitor(rota_app.dashboard())
        asked[name] = await counted.of(visitor.get(path))
        # all the tab would fetch right after it: not before what was asked is paid for
        page = next(each for each in PAGES if each.name == name)
        fragments = [f"{path}{'&' if '?' in path else '?'}_fragment={region.name}" for region in page.regions]
        again[name] = [await counted.of(visitor.get(each)) for each in fragments]

    assert {name: cost for name, cost in asked.items() if not 0 <= cost <= MOST[name]} == {}
    assert {name: costs for name, costs in again.items() if any(costs)} == {}
    assert sum(cost > 0 for cost in asked.values()) >= len(PAGES) - 1
    assert 0 < looking._PER_SECOND < 5


async def test_a_role_that_may_only_look_reads_every_page_and_the_api_and_is_refused_the_rest(
    world: World, rota_app: TestRota, rota_database: str
) -> None:
    await rota_app.migrate(roles=True)
    with psycopg.connect(rota_database, autocommit=True) as admin:
        name = f"looker_{admin.info.dbname}"
        admin.execute(f"create role {name} login in role rota_read")
    try:
        async with Rota(f"{rota_database} user={name}") as looker:
            for each in ("totals", "counts"):  # whose logs it reads
                looker.projections._projections[each] = rota_app.projections[each]
            reader = Visitor(looker.dashboard(read_only=True))
            pages = {page: await reader.get(path) for page, path in addresses(world).items()}
            told = {path: await reader.get(path) for path in reads(world)}
            asked = await Visitor(looker.dashboard()).client.post(
                "/tools/rota/api/v1/actions/jobs.cancel", json={"id": str(world.queued.id)}
            )
    finally:
        with psycopg.connect(rota_database, autocommit=True) as admin:
            admin.execute(f"drop role {name}")

    assert {page: answer.status_code for page, answer in pages.items() if answer.status_code != 200} == {}
    assert [page for page, answer in pages.items() if "cannot be read now" in answer.text] == []
    assert [
        page
        for page, answer in pages.items()
        if '<form method="post"' in answer.text and 'name="_token"' in answer.text
    ] == []
    assert {path: answer.text for path, answer in told.items() if answer.status_code not in (200, 404, 409)} == {}
    assert asked.status_code == 403
    assert "permission denied" in asked.json()["detail"]
    assert (await rota_app.jobs.get(world.queued.id)).state == "queued"


@pytest.fixture
async def away(
    world: World, rota_app: TestRota, rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[TcpProxy, Rota]]:
    """The same app behind a network that can be cut off, where looks are given up soon."""
    monkeypatch.setattr(looking, "_DEADLINE_SECONDS", 0.5)
    with TcpProxy(rota_database) as proxy:
        rota_app.use(dsn=proxy.dsn(rota_database))
        try:
            yield proxy, rota_app
        finally:
            proxy.heal()
            await rota_app.close()


@pytest.mark.parametrize("trouble", ["blackhole", "refuse"])
async def test_every_page_shows_what_it_knew_and_its_age_while_the_database_does_not_answer(
    trouble: str, away: tuple[TcpProxy, Rota], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, app = away
    visitor = Visitor(app.dashboard())
    monkeypatch.setattr(looking, "_DEADLINE_SECONDS", 30.0)  # a busy machine has its time for the first look
    before = {name: await visitor.get(path) for name, path in addresses(world).items()}
    monkeypatch.setattr(looking, "_DEADLINE_SECONDS", 0.5)
    plain = Readings.read
    monkeypatch.setattr(Readings, "read", lambda self, key, read, fresh=None, paced=False: plain(self, key, read, 0.0))

    getattr(proxy, trouble)()
    async with asyncio.timeout(60):
        after = dict(zip(before, await asyncio.gather(*map(visitor.get, addresses(world).values())), strict=True))
        began = time.monotonic()
        told = await asyncio.gather(*map(visitor.get, reads(world)))
        took = time.monotonic() - began

    assert {name: answer.status_code for name, answer in before.items() if answer.status_code != 200} == {}
    assert {name: answer.status_code for name, answer in after.items() if answer.status_code != 200} == {}
    assert [name for name, answer in after.items() if "Data from" not in answer.text] == []
    assert {answer.status_code for answer in told} <= {200, 404, 409, 503}
    assert sum(answer.status_code == 503 for answer in told) > len(told) // 2
    assert took < 30  # and not the minute that a statement of a program may take


async def test_a_dashboard_that_never_reached_its_database_says_so_at_once(
    away: tuple[TcpProxy, Rota], world: World
) -> None:
    proxy, app = away
    proxy.blackhole()
    visitor = Visitor(app.dashboard())

    async with asyncio.timeout(60):
        answers = dict(
            zip(addresses(world), await asyncio.gather(*map(visitor.get, addresses(world).values())), strict=True)
        )

    # of these two a part asks the database nothing
    assert [name for name, answer in answers.items() if answer.status_code != 503] == ["poller", "about"]
    assert [name for name, answer in answers.items() if "did not answer within" not in answer.text] == []
