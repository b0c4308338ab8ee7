"""What a projection asks of the server, counted and not timed: statements of a batch, and of a second in which nothing happens."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import psycopg
import pytest
from tests.projections.logs import Db, Log, append, append_many, make_seen, positions, seen, working

from rota.events.event import Event
from rota.facts import EventsProjected
from rota.projections.projector import Projector
from rota.testing import TestRota, fact, until

SEE = "insert into public.seen (position) values (%s)"
NAME = re.compile(rb"/\* rota:([^ ]+) \*/")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The statements that go over async connections of this process, by their names; the user's as they are."""
    counted: Counter[str] = Counter()
    execute = psycopg.AsyncCursor.execute

    async def counting(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        text = query if isinstance(query, bytes) else query.encode()
        name = NAME.search(text)
        counted[name[1].decode() if name else text.decode()] += 1
        return await execute(self, query, *args, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counting)
    return counted


async def test_a_batch_costs_a_look_and_four_statements_around_those_of_the_handler(
    rota_app: TestRota, db: Db, asked: Counter[str]
) -> None:
    make_seen(db)
    append_many(db, 200)

    @rota_app.projection("totals", source=Log(), batch=50)
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])

    with rota_app.facts.recorded(EventsProjected) as batches:
        async with working(rota_app):
            await until(lambda: len(seen(db)) == 200, what="all is taken in")

    assert seen(db) == positions(db)
    assert [each.events for each in batches] == [50, 50, 50, 50]
    assert asked[SEE] == 200
    # the term is held fast at the beginning and once more before the commit
    assert (asked["fence"], asked["move_checkpoint"], asked["take_projection"]) == (8, 4, 1)
    openings = [text for text in asked if "isolation level" in text]
    assert sum(asked[text] for text in openings) == 4


async def test_while_nothing_happens_it_asks_once_for_each_pause_and_soon_no_more_than_once_a_second(
    rota_app: TestRota, db: Db, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[tuple[float, int]] = []
    sleep = Projector._sleep

    def idles() -> bool:
        return len(pauses) >= 10 and all(seconds >= 1 for seconds, _ in pauses[-10:])

    async def pretended(self: Projector, seconds: float) -> None:
        if idles():
            await sleep(self, 3600)
        pauses.append((seconds, asked["look_for_events"]))
        await asyncio.sleep(0)

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None: ...

    async with working(rota_app):
        taken = fact(rota_app.facts, EventsProjected)
        append(db)
        await taken
        monkeypatch.setattr(Projector, "_sleep", pretended)
        await until(idles, what="it has paused ten times for a second or longer")

    looks = [number for _, number in pauses[-10:]]
    assert looks == list(range(looks[0], looks[0] + 10))
