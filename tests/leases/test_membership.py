"""Being a member for as long as anyone here needs it: joining, giving up on it, and leaving."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from rota import DatabaseUnavailable, Retry, Rota
from rota.errors import ForeignDatabase
from rota.facts import MemberJoined, MemberLeft
from rota.leases.control import Control, Reactions
from rota.postgres.connection import Connector
from rota.testing import fact, until

pytestmark = pytest.mark.one_server

NOWHERE = "host=127.0.0.1 port=1 dbname=nowhere user=nobody"


@pytest.fixture
async def app(rota_database: str) -> AsyncIterator[Rota]:
    async with Rota(rota_database) as app:
        yield app


class Silent:
    """A server that does not answer who joins, until `may_answer` is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.may_answer = threading.Event()
        self.asked: list[Control] = []
        start = Control.start

        def wait_and_start(control: Control) -> None:
            self.asked.append(control)
            self.may_answer.wait(30)
            start(control)

        patch.setattr(Control, "start", wait_and_start)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    server = Silent(monkeypatch)
    yield server
    server.may_answer.set()


def guests(app: Rota) -> int:
    return sum(len(member.guests) for member in app._membership._members)


async def lead(app: Rota, name: str = "indexer") -> None:
    async with app.leadership(name):
        pass


@pytest.mark.timeout(20)
async def test_whoever_is_cancelled_while_the_server_is_silent_goes_on_at_once_and_leaves_nothing_behind(
    app: Rota, silent: Silent
) -> None:
    left = fact(app.facts, MemberLeft)
    leading = asyncio.create_task(lead(app))
    await until(lambda: silent.asked, what="it joins")

    leading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leading

    silent.may_answer.set()
    await left
    assert await app.members() == []
    await lead(app)


async def test_all_who_come_while_it_joins_wait_for_the_same(app: Rota, silent: Silent) -> None:
    with app.facts.recorded(MemberJoined) as joined:
        leading = [asyncio.create_task(lead(app, name)) for name in ("a", "b", "c")]
        await until(lambda: guests(app) == 3, what="all wait")
        leading.pop().cancel()
        silent.may_answer.set()
        await asyncio.gather(*leading)

    assert (len(silent.asked), len(joined)) == (1, 1)


async def test_a_worker_that_comes_while_it_joins_is_shown_as_one(app: Rota, silent: Silent) -> None:
    first = asyncio.create_task(app._membership.enter(Reactions()))
    await until(lambda: silent.asked, what="it joins")
    second = asyncio.create_task(app._membership.enter(Reactions(), {"queues": ["mail"]}))
    await until(lambda: guests(app) == 2, what="both wait")
    silent.may_answer.set()

    places = await first, await second
    await until(lambda: [member.work for member in app.members_sync()] == [{"queues": ["mail"]}], what="it shows")
    for place in places:
        await place.leave()
    assert await app.members() == []


async def test_threads_that_are_lent_out_are_not_waited_for(app: Rota) -> None:
    over = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    busy = asyncio.create_task(asyncio.to_thread(over.wait, 30))
    try:
        async with asyncio.timeout(10), app.leadership("indexer") as term:
            assert term.valid
        assert not busy.done()
    finally:
        over.set()
        await busy


async def test_a_member_whose_thread_has_ended_is_replaced_once(app: Rota) -> None:
    first = await app._membership.enter(Reactions())
    first.control.stop()
    second, third = await app._membership.enter(Reactions()), await app._membership.enter(Reactions())

    assert first.control is not second.control is third.control
    for place in (first, second, third):
        await place.leave()
    assert await app.members() == []


async def test_a_copy_of_the_database_that_nobody_adopted_has_no_leader(app: Rota) -> None:
    with psycopg.connect(app.settings.dsn.conninfo, autocommit=True) as db:  # type: ignore[union-attr]
        db.execute("update rota.meta set database = 'elsewhere'")
        with pytest.raises(ForeignDatabase):
            await lead(app)
        assert db.execute("select from rota.members").fetchall() == []
        await app.adopt()
        await lead(app)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> list[DatabaseUnavailable]:
    """Out of reach for as many connections as there are errors left."""
    errors = [DatabaseUnavailable("away for a moment")] * 2
    connect = Connector.connect_sync

    def refuse(self: Connector) -> Any:
        if errors:
            raise errors.pop()
        return connect(self)

    monkeypatch.setattr(Connector, "connect_sync", refuse)
    return errors


async def test_a_wait_outlasts_a_database_that_is_away_at_first(app: Rota, away: list[Any]) -> None:
    async with app.leadership("indexer").wait("30s") as term:
        assert (term.valid, away) == (True, [])


def test_so_does_one_in_sync_code(rota_database: str, away: list[Any]) -> None:
    with Rota(rota_database) as app, app.leadership("indexer").wait("30s") as term:
        assert (term.valid, away) == (True, [])


async def test_a_policy_decides_about_a_database_that_is_away_at_first(app: Rota, away: list[Any]) -> None:
    async with app.leadership("indexer").retry(Retry(attempts=3, backoff=lambda failures: 0.0)) as term:
        assert term.valid
    assert away == []


async def test_a_wait_for_a_database_that_stays_away_has_an_end() -> None:
    tries: list[int] = []
    async with Rota(NOWHERE) as app:
        with pytest.raises(DatabaseUnavailable):
            async with app.leadership("indexer").wait("0.2s"):
                pass
        with pytest.raises(DatabaseUnavailable):
            async with app.leadership("indexer").retry(
                Retry(attempts=3, backoff=lambda n: float(tries.append(n) or 0))
            ):
                pass
    assert tries == [1, 2]


async def test_only_who_stood_by_says_that_it_no_longer_does(app: Rota, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = Control.ask
    monkeypatch.setattr(Control, "ask", lambda self, query: (asked.append(query.statement.name), ask(self, query))[1])
    async with Rota(app.settings.dsn.conninfo) as other, other.leadership("indexer"):  # type: ignore[union-attr]
        with contextlib.suppress(Exception):
            await lead(app)
        assert "leave_standbys" not in asked
        with contextlib.suppress(Exception):
            async with app.leadership("indexer").wait("0.5s"):
                pass
        assert asked.count("leave_standbys") == 1
