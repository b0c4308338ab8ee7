"""What a leader says of its work: carried by the beat, shown with its age, and never in the way of the lease."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from rota import Rota
from rota.clock import boottime
from rota.leases.inspect import LeaderView
from rota.leases.progress import Progress
from rota.leases.session import ControlSession
from rota.testing import until

Db = psycopg.Connection[Any]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


async def shown(app: Rota) -> LeaderView:
    (view,) = await app.leaders.list()
    return view


async def test_it_is_shown_with_its_age_and_costs_no_statement(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = ControlSession.ask
    monkeypatch.setattr(
        ControlSession, "ask", lambda self, query: (asked.append(query.statement.name), ask(self, query))[1]
    )
    async with Rota(rota_database) as app:
        async with app.leadership("indexer") as term:
            before = await shown(app)
            asked.clear()
            for page in range(1000):
                term.progress(f"page {page}")
            after = await until(lambda: says(app, "page 999"), what="the last one is shown")
            term.progress()
            await until(lambda: says(app, None), what="one without a note is shown")
            meanwhile = set(asked)
        over = await shown(app)
        term.progress("late")
        async with app.leadership("indexer"):
            next_term = await shown(app)

    assert [view.progress_age for view in (before, over, next_term)] == [None] * 3
    assert [view.progress_note for view in (before, over, next_term)] == [None] * 3
    assert timedelta(0) <= after.progress_age < timedelta(seconds=5)  # type: ignore[operator]
    assert meanwhile <= {"watch_members", "notify", "prune_leases"}


async def says(app: Rota, note: str | None) -> LeaderView | None:
    view = await shown(app)
    return view if view.progress_note == note else None


async def test_its_age_is_that_of_the_word_and_not_of_the_beat_that_carried_it(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rota(rota_database) as app, app.leadership("indexer") as term:
        with monkeypatch.context() as an_hour_ago:
            an_hour_ago.setattr("rota.leases.progress.boottime", lambda: boottime() - 3600)
            term.progress("earlier")
        view = await until(lambda: says(app, "earlier"), what="it is shown")
    assert timedelta(hours=1) <= view.progress_age < timedelta(hours=1, seconds=30)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("note", "stored"),
    [("\0 and \n\ud800", "  and  "), ("x" * 100_000, "x" * 200), (7, "7"), ({"page": 3}, "{'page': 3}")],
)
async def test_nothing_that_is_said_costs_the_lease(rota_database: str, note: object, stored: str) -> None:
    async with Rota(rota_database) as app, app.leadership("indexer") as term:
        term.progress(note)
        view = await until(lambda: said_anything(app), what="it is shown")
        await term.confirm()
    assert view.progress_note == stored


async def said_anything(app: Rota) -> LeaderView | None:
    view = await shown(app)
    return view if view.progress_note else None


async def test_the_beat_waits_for_nobody_who_has_the_term_locked(rota_database: str, db: Db) -> None:
    """An operator in the middle of a request, whose network is slow."""
    beats = "select renewed_at from rota.members where ended_at is null"
    async with Rota(rota_database, lease="1.5s") as app, app.leadership("indexer") as term:
        with db.transaction():
            db.execute("select from rota.terms for update")
            term.progress("unheard")
            with psycopg.connect(rota_database, autocommit=True) as watching:
                for _ in range(2):
                    last = watching.execute(beats).fetchone()
                    await until(lambda last=last: watching.execute(beats).fetchone() != last, what="a beat")  # type: ignore[misc]
        term.progress("heard")
        await until(lambda: says(app, "heard"), what="the next word is shown")
        await term.confirm()


def test_what_no_beat_has_carried_is_told_by_the_next_one_unless_there_is_news() -> None:
    progress = Progress()
    progress.report("indexer", 1, "one")
    first = progress.untold()  # and the session breaks
    progress.report("indexer", 1, "two")
    progress.report("feeds", 1, None)

    progress.told(first)
    assert [report.note for report in progress.untold()] == ["two", None]
    progress.told(progress.untold())
    assert progress.untold() == []
