"""One of many that holds nothing beats rarely, and at once when it takes hold of something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from rota import Rota
from rota.leases import ease
from rota.leases.control import Control
from rota.leases.ease import Ease
from rota.leases.trust import LeaseSettings
from rota.testing import until

MANY = 40
JOIN = """
    insert into rota.members (id, name, host, pid, release, expires_at, work)
    select gen_random_uuid(), 'other', 'elsewhere', n, 'any', now() + interval '1 day', '{}'
    from generate_series(1, %s) as n
"""


def test_few_beat_as_ever_and_many_share_their_looks() -> None:
    rest = Ease(LeaseSettings())

    rest.begin(8)
    few = rest.pause
    rest.begin(24)
    more = rest.pause
    rest.begin(1000)
    very_many = rest.pause

    assert few == 0.5
    assert 1.2 <= more <= 1.5
    assert 1.6 <= very_many <= 2.0


def test_who_holds_something_does_not_rest_for_long() -> None:
    rest = Ease(LeaseSettings())
    rest.begin(1000)

    assert rest.end()
    assert not rest.end()
    assert rest.pause == 0.5


def test_a_short_lease_is_renewed_in_time() -> None:
    rest = Ease(LeaseSettings.of(timedelta(seconds=4)))

    rest.begin(1000)

    assert rest.pause <= 0.64


@pytest.fixture
async def app(rota_database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rota]:
    """Among many, where one that holds nothing would rest until the test is over."""
    monkeypatch.setattr(ease, "_LOOKS_PER_SECOND", 0.1)
    monkeypatch.setattr(ease, "_LONGEST_SECONDS", 100.0)
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(JOIN, [MANY])
    async with Rota(rota_database, lease="10m") as app:
        yield app


async def control_at_ease(app: Rota) -> Control:
    await until(lambda: bool(app._membership._members) and app._membership._members[0].joined.done())
    control = app._membership._members[0].joined.result()
    await until(lambda: control._ease.is_on, what="it rests for long")
    return control


async def beats(control: Control, count: int) -> None:
    seen = {control._trust.renewed_at}
    await until(lambda: seen.add(control._trust.renewed_at) or len(seen) > count, what=f"{count} beats")  # type: ignore[func-returns-value]


@pytest.mark.one_server
@pytest.mark.parametrize("jobs", [1, 2])  # a lone one is named by its wake-up, others are looked for
async def test_a_worker_that_takes_a_job_beats_at_once_and_then_as_often_as_anyone(app: Rota, jobs: int) -> None:
    began, free, eased = asyncio.Event(), asyncio.Event(), list[bool]()

    @app.task(name="hold")
    async def hold() -> None:
        eased.append(control._ease.is_on)
        began.set()
        await free.wait()

    working = asyncio.create_task(app.work())
    control = await control_at_ease(app)
    await until(lambda: control.renewed_ago > 0.5)
    await (hold.enqueue() if jobs == 1 else app.enqueue_many([hold.bind()] * jobs))
    await began.wait()
    await beats(control, 3)
    free.set()
    await until(lambda: control._ease.is_on, what="it rests for long again")
    app.stop()
    await working

    assert eased == [False] * jobs


@pytest.mark.one_server
async def test_one_that_leads_does_not_rest_for_long(app: Rota) -> None:
    @app.task(name="other")
    async def other() -> None: ...

    working = asyncio.create_task(app.work())
    control = await control_at_ease(app)
    async with app.leadership(f"of {uuid4()}"):
        await beats(control, 3)
    app.stop()
    await working


@pytest.mark.one_server
async def test_who_takes_rows_by_hand_beside_a_worker_at_ease_does_not_rest_for_long(
    app: Rota, rota_database: str
) -> None:
    eased = list[bool]()
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("create table feeds (id int primary key, last_at timestamptz); insert into feeds values (1)")

    @app.task(name="other")
    async def other() -> None: ...

    @app.poller(table="feeds", key="id", last="last_at", interval="1h")
    async def fetch(row: dict[str, object]) -> None:
        eased.append(control._ease.is_on)
        await beats(control, 3)

    working = asyncio.create_task(app.work(pollers=[]))
    control = await control_at_ease(app)
    await fetch.run_once()
    app.stop()
    await working

    assert eased == [False]
